//! The cluster's own cgroup: made before its first process, removed after its last.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use podlab_cri::cgroup::Cgroups;

/// Makes a group, with all controllers handed down to it.
pub(crate) fn create(name: &str) -> io::Result<()> {
    let group = Cgroups::detect(None)?.group(name);
    group.create()?;
    group.delegate_children()
}

/// Makes the group of a cluster and claims it: nobody sweeps it while the returned file, or a copy of it that a forked
/// child has, is open. Emptiness says nothing: a cluster that is booting, or whose nodes are down, has empty groups.
pub(crate) fn claim(name: &str) -> io::Result<File> {
    loop {
        create(name)?;
        let dir = first_dir(name)?;
        let file = match File::open(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        // Waits for nobody but a sweeper, which is done at once: the state's lock keeps namesakes away.
        file.lock()?;
        // The sweeper may have removed what was opened.
        if fs::metadata(&dir).is_ok_and(|now| file.metadata().is_ok_and(|held| held.ino() == now.ino())) {
            return Ok(file);
        }
    }
}

fn first_dir(name: &str) -> io::Result<PathBuf> {
    let dir = Cgroups::detect(None)?.group(name).dirs().next();
    dir.ok_or_else(|| io::Error::other("there is no cgroup hierarchy"))
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

/// Removes a cluster's group with all below it, deepest first, unless it is claimed. What is still in use stays for
/// the next sweep.
pub(crate) fn sweep(name: &str) {
    let Ok(dir) = first_dir(name) else { return };
    // Without its first directory a group is nobody's yet, or somebody's in a moment.
    if let Ok(file) = File::open(dir)
        && file.try_lock().is_ok()
    {
        remove(name);
    }
}

fn remove(name: &str) {
    fn remove_tree(dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                remove_tree(&entry.path());
            }
        }
        let _ = fs::remove_dir(dir);
    }
    let Ok(cgroups) = Cgroups::detect(None) else { return };
    // The first directory carries the claim, so it goes last, and only when the next sweep needs it no more.
    let mut dirs: Vec<PathBuf> = cgroups.group(name).dirs().collect();
    dirs.reverse();
    let Some(first) = dirs.pop() else { return };
    dirs.iter().for_each(|dir| remove_tree(dir));
    if !dirs.iter().any(|dir| dir.exists()) {
        remove_tree(&first);
    }
}

/// The groups of clusters, of any state directory, below ours.
pub(crate) fn clusters() -> Vec<String> {
    let Ok(cgroups) = Cgroups::detect(None) else { return Vec::new() };
    let mut names: Vec<String> = Vec::new();
    for base in cgroups.group("").dirs() {
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str().filter(|n| n.starts_with("podlab-") && n.contains('.')) {
                names.push(name.to_owned());
            }
        }
    }
    names.sort();
    names.dedup();
    names
}
