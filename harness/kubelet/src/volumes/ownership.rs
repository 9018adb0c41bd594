//! fsGroup: giving a volume's files to a group. Source: k/k pkg/volume/volume_linux.go.

use std::path::Path;

use podlab_api::core::Pod;
use podlab_lifecycle::spec;

use super::VolumeError;
use crate::host::{FileKind, Host};

/// What the group may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadWrite,
    ReadOnly,
}

/// The Pod's fsGroup.
pub(super) fn fs_group(pod: &Pod) -> Option<u32> {
    spec::pod_spec(pod).security_context.as_ref()?.fs_group.and_then(|g| u32::try_from(g).ok())
}

/// Changes group and mode of a tree as the Pod's fsGroup asks; nothing when it has none, or when the root already fits
/// and the policy is `OnRootMismatch`.
pub(super) fn apply(host: &dyn Host, pod: &Pod, root: &Path, access: Access) -> Result<(), VolumeError> {
    let Some(group) = fs_group(pod) else { return Ok(()) };
    let on_mismatch = spec::pod_spec(pod).security_context.as_ref().and_then(|s| s.fs_group_change_policy.as_deref())
        == Some("OnRootMismatch");
    if on_mismatch && fits(host, root, group, access) {
        return Ok(());
    }
    walk(host, root, group, access)
}

fn mask(kind: FileKind, access: Access) -> u32 {
    let base = match access {
        Access::ReadWrite => 0o660,
        Access::ReadOnly => 0o440,
    };
    if kind == FileKind::Dir { base | 0o2110 } else { base }
}

fn fits(host: &dyn Host, root: &Path, group: u32, access: Access) -> bool {
    host.stat(root).is_ok_and(|s| {
        let want = mask(FileKind::Dir, access);
        s.gid == group && s.mode & want == want
    })
}

fn walk(host: &dyn Host, path: &Path, group: u32, access: Access) -> Result<(), VolumeError> {
    let s = host.lstat(path).map_err(VolumeError::file(format!("stat {}", path.display())))?;
    if s.kind == FileKind::Symlink {
        return Ok(());
    }
    if s.kind == FileKind::Dir {
        for name in host.list(path).map_err(VolumeError::file(format!("read {}", path.display())))? {
            walk(host, &path.join(name), group, access)?;
        }
    }
    host.chown(path, None, Some(group)).map_err(VolumeError::file(format!("chown {}", path.display())))?;
    host.chmod(path, s.mode | mask(s.kind, access)).map_err(VolumeError::file(format!("chmod {}", path.display())))
}
