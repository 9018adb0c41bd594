//! Writing a set of files so that a reader sees either all of the old ones or all of the new ones.
//!
//! ```text
//! volume/..2026_01_02_03_04_05.678901234/key     the files
//! volume/..data -> ..2026_…                      swapped by rename
//! volume/key -> ..data/key                       what the container opens
//! ```
//! Source: k/k pkg/volume/util/atomic_writer.go.

use std::{
    collections::BTreeSet,
    path::{Component, Path},
};

use podlab_api::core::Pod;

use super::{
    VolumeError,
    manager::Shared,
    ownership::{self, Access},
    payload::{Files, Plugin},
};
use crate::{
    container::MountSource,
    host::{FileKind, Host, Tmpfs},
};

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// Makes the volume's directory if need be and writes the files into it.
pub(super) fn set_up(
    s: &Shared,
    pod: &Pod,
    name: &str,
    plugin: Plugin,
    files: &Files,
) -> Result<MountSource, VolumeError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = s.config.volume_dir(uid, plugin.dir(), name);
    let mut fresh = s.host.stat(&path).is_err();
    if !fresh && plugin.in_memory() {
        // After a reboot the directory is there and what was mounted on it is not.
        fresh = !s.host.mounts_under(&path).map_err(VolumeError::file("read mounts"))?.contains(&path);
    }
    if !fresh && same_on_disk(s.host.as_ref(), &path.join(DATA), files) {
        return Ok(MountSource { path, read_only: true, block: false });
    }
    s.host.create_dir_all(&path, 0o777).map_err(VolumeError::file(format!("create {}", path.display())))?;
    if fresh && plugin.in_memory() {
        s.host
            .mount_tmpfs(&path, Tmpfs { size: None, mode: 0o777 })
            .map_err(VolumeError::file(format!("mount tmpfs at {}", path.display())))?;
    }
    let stamp = s.clock.wall().strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    let dir = format!("{stamp}.{}", s.rng.below(10_000_000_000));
    write(s.host.as_ref(), &path, &dir, files, &|fresh_dir| {
        ownership::apply(s.host.as_ref(), pod, fresh_dir, Access::ReadOnly)
    })?;
    if fresh {
        // The root itself, whose links are not followed.
        ownership::apply(s.host.as_ref(), pod, &path, Access::ReadOnly)?;
    }
    Ok(MountSource { path, read_only: true, block: false })
}

/// Whether the files are there already: an agent that was restarted must not make containers see a change.
fn same_on_disk(host: &dyn Host, data: &Path, files: &Files) -> bool {
    let tops: BTreeSet<String> = files.keys().map(|p| p.split('/').next().unwrap_or(p).to_owned()).collect();
    let there: BTreeSet<String> = host.list(data).unwrap_or_default().into_iter().collect();
    tops == there
        && files
            .iter()
            .all(|(path, f)| host.read_at(&data.join(path), 0, f.bytes.len() + 1).is_ok_and(|b| b == f.bytes))
}

/// Swaps the contents of `root` for `files`, kept in a new directory `dir` below it.
fn write(
    host: &dyn Host,
    root: &Path,
    dir: &str,
    files: &Files,
    own: &dyn Fn(&Path) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let fail = |what: &Path| VolumeError::file(format!("write {}", what.display()));
    let fresh = root.join(dir);
    host.create_dir_all(&fresh, 0o755).map_err(fail(&fresh))?;
    for (relative, file) in files {
        let relative = Path::new(relative);
        if !relative.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(VolumeError::Text(format!("invalid path: {}", relative.display())));
        }
        let target = fresh.join(relative);
        if let Some(parent) = target.parent() {
            host.create_dir_all(parent, 0o755).map_err(fail(parent))?;
        }
        host.write(&target, &file.bytes, file.mode).map_err(fail(&target))?;
        if let Some(uid) = file.owner {
            host.chown(&target, Some(uid), None).map_err(fail(&target))?;
        }
    }
    own(&fresh)?;
    let old = host.read_link(&root.join(DATA)).ok();
    let tmp = root.join(DATA_TMP);
    host.remove_file(&tmp).map_err(fail(&tmp))?;
    host.symlink(Path::new(dir), &tmp).map_err(fail(&tmp))?;
    host.rename(&tmp, &root.join(DATA)).map_err(fail(&tmp))?;

    let tops: BTreeSet<&str> = files.keys().map(|p| p.split('/').next().unwrap_or(p)).collect();
    for top in &tops {
        let link = root.join(top);
        if host.lstat(&link).is_err() {
            host.symlink(&Path::new(DATA).join(top), &link).map_err(fail(&link))?;
        }
    }
    for name in host.list(root).map_err(fail(root))? {
        let link = root.join(&name);
        let ours = !name.starts_with("..") && host.lstat(&link).is_ok_and(|s| s.kind == FileKind::Symlink);
        if ours && !tops.contains(name.as_str()) {
            host.remove_file(&link).map_err(fail(&link))?;
        }
    }
    if let Some(old) = old.filter(|o| o != Path::new(dir)) {
        host.remove_tree(&root.join(old)).map_err(fail(root))?;
    }
    Ok(())
}
