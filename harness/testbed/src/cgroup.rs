//! The cluster's own cgroup: made before its first process, removed after its last.

use std::{fs, io, path::PathBuf};

use podlab_cri::cgroup::Cgroups;

/// Makes the group of a cluster, with all controllers handed down to it.
pub(crate) fn create(name: &str) -> io::Result<()> {
    let group = Cgroups::detect(None)?.group(name);
    group.create()?;
    group.delegate_children()
}

/// The directories of a group, as this process sees them.
pub(crate) fn dirs(name: &str) -> io::Result<Vec<PathBuf>> {
    Ok(Cgroups::detect(None)?.group(name).dirs().filter(|d| d.exists()).collect())
}

/// Moves the calling process into a group. Called by a fresh child for itself: moving another process costs an RCU
/// grace period.
pub(crate) fn enter(dirs: &[PathBuf]) -> io::Result<()> {
    dirs.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), "0"))
}

/// Removes a group with all below it, deepest first. Groups still in use stay for the next sweep.
pub(crate) fn remove(name: &str) {
    fn remove_tree(dir: &std::path::Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                remove_tree(&entry.path());
            }
        }
        let _ = fs::remove_dir(dir);
    }
    let Ok(cgroups) = Cgroups::detect(None) else { return };
    for dir in cgroups.group(name).dirs() {
        remove_tree(&dir);
    }
}

/// Names of all clusters that have a group below ours.
pub(crate) fn clusters() -> Vec<String> {
    let Ok(cgroups) = Cgroups::detect(None) else { return Vec::new() };
    let mut names: Vec<String> = Vec::new();
    for base in cgroups.group("").dirs() {
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str().and_then(|n| n.strip_prefix("podlab-")) {
                names.push(name.to_owned());
            }
        }
    }
    names.sort();
    names.dedup();
    names
}
