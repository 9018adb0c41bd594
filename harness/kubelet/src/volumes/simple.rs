//! emptyDir, hostPath and local volumes.

use std::path::{Path, PathBuf};

use podlab_api::core::{EmptyDirVolumeSource, HostPathVolumeSource, Pod};
use podlab_lifecycle::resources::{pod_limits, quantity};

use super::{VolumeError, manager::Shared, ownership};
use crate::{
    container::MountSource,
    host::{FileKind, Host, Tmpfs},
};

/// A directory that lives as long as the Pod. Source: k/k pkg/volume/emptydir.
pub(super) fn empty_dir(
    s: &Shared,
    pod: &Pod,
    name: &str,
    source: &EmptyDirVolumeSource,
) -> Result<MountSource, VolumeError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = s.config.volume_dir(uid, "kubernetes.io~empty-dir", name);
    let existed = s.host.stat(&path).is_ok();
    s.host.create_dir_all(&path, 0o777).map_err(VolumeError::file(format!("create {}", path.display())))?;
    if source.medium.as_deref() == Some("Memory") {
        let mounted = s.host.mounts_under(&path).map_err(VolumeError::file("read mounts"))?.contains(&path);
        if !mounted {
            let limit = source.size_limit.as_ref().map(|q| quantity("memory", q)).filter(|v| *v > 0);
            let pod_limit = pod_limits(pod).get("memory").copied().filter(|v| *v > 0);
            let size = limit.into_iter().chain(pod_limit).min().or(Some(s.allocatable.memory)).filter(|v| *v > 0);
            let options = Tmpfs { size: size.and_then(|v| u64::try_from(v).ok()), mode: 0o1777 & 0o777 };
            s.host
                .mount_tmpfs(&path, options)
                .map_err(VolumeError::file(format!("mount tmpfs at {}", path.display())))?;
        }
    }
    if !existed {
        ownership::apply(s.host.as_ref(), pod, &path, ownership::Access::ReadWrite)?;
    }
    Ok(MountSource { path, read_only: false, block: false })
}

/// A path of the node. Source: k/k pkg/volume/hostpath.
pub(super) fn host_path(host: &dyn Host, source: &HostPathVolumeSource) -> Result<MountSource, VolumeError> {
    let path = PathBuf::from(&source.path);
    check_type(host, &path, source.type_.as_deref().unwrap_or_default())?;
    Ok(MountSource { path, read_only: false, block: false })
}

fn check_type(host: &dyn Host, path: &Path, kind: &str) -> Result<(), VolumeError> {
    let shown = path.display();
    let found = host.stat(path).ok().map(|s| s.kind);
    let fail = |what: &str| Err(VolumeError::Text(format!("hostPath type check failed: {shown} is not {what}")));
    match (kind, found) {
        ("", _)
        | ("DirectoryOrCreate" | "Directory", Some(FileKind::Dir))
        | ("FileOrCreate" | "File", Some(FileKind::File)) => Ok(()),
        ("DirectoryOrCreate", None) => {
            host.create_dir_all(path, 0o755).map_err(VolumeError::file(format!("create {shown}")))
        }
        ("FileOrCreate", None) => host.write(path, b"", 0o644).map_err(VolumeError::file(format!("create {shown}"))),
        ("Directory" | "DirectoryOrCreate", _) => fail("a directory"),
        ("File" | "FileOrCreate", _) => fail("a file"),
        ("Socket", Some(FileKind::Socket))
        | ("CharDevice", Some(FileKind::CharDevice))
        | ("BlockDevice", Some(FileKind::BlockDevice)) => Ok(()),
        ("Socket", _) => fail("a socket file"),
        ("CharDevice", _) => fail("a character device"),
        ("BlockDevice", _) => fail("a block device"),
        (other, _) => Err(VolumeError::Text(format!("{other} is an invalid volume type"))),
    }
}

/// A directory or device of the node that a PersistentVolume names. Source: k/k pkg/volume/local.
pub(super) fn local(
    s: &Shared,
    pod: &Pod,
    name: &str,
    source: &str,
    block: bool,
    read_only: bool,
) -> Result<MountSource, VolumeError> {
    let from = PathBuf::from(source);
    if s.host.stat(&from).is_err() {
        return Err(VolumeError::Text(format!("path \"{source}\" does not exist")));
    }
    if block {
        return Ok(MountSource { path: from, read_only, block: true });
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = s.config.volume_dir(uid, "kubernetes.io~local-volume", name);
    s.host.create_dir_all(&path, 0o750).map_err(VolumeError::file(format!("create {}", path.display())))?;
    if !s.host.mounts_under(&path).map_err(VolumeError::file("read mounts"))?.contains(&path) {
        s.host.bind_mount(&from, &path).map_err(VolumeError::file(format!("bind {source} at {}", path.display())))?;
        if !read_only {
            ownership::apply(s.host.as_ref(), pod, &path, ownership::Access::ReadWrite)?;
        }
    }
    Ok(MountSource { path, read_only, block: false })
}
