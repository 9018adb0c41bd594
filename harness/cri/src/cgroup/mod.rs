//! Cgroups of both versions behind one type: make a group, limit it, let a child put itself in, measure, kill, remove.
//!
//! Version 1 hierarchies are used where they have the controllers; a unified hierarchy is used when it has them (hybrid
//! boots mount both). A foreign process is never moved: that waits for an RCU grace period, while a child that writes
//! itself (v1) or is born inside (v2) does not.

mod detect;
mod limits;
mod stats;

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

pub use detect::{Cgroups, Version};
pub use limits::{Limits, weight_of_shares};
pub use stats::Stats;

/// One group: the same relative path in every hierarchy in use. Cheap to make; nothing exists until [`Group::create`].
#[derive(Debug, Clone)]
pub struct Group {
    pub(crate) all: Cgroups,
    pub(crate) path: String,
}

/// Where a child goes at birth.
#[derive(Debug)]
pub enum Entry {
    /// v1: the child writes `0` into each of these.
    Tasks(Vec<OwnedFd>),
    /// v2: the directory for `CLONE_INTO_CGROUP`.
    Directory(OwnedFd),
}

impl Group {
    /// The path below the base, without a leading slash.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A group below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { all: self.all.clone(), path: format!("{}/{name}", self.path).trim_start_matches('/').to_owned() }
    }

    /// The directory that has a controller, e.g. `memory`. The cpuset hierarchy (v1) is made only when it is needed.
    pub fn dir(&self, controller: &str) -> Option<PathBuf> {
        self.all.hierarchy(controller).map(|h| h.base.join(&self.path))
    }

    /// Directories made by [`Group::create`], one a hierarchy.
    pub fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        self.all.hierarchies.iter().filter(|h| !h.lazy).map(|h| h.base.join(&self.path))
    }

    /// Makes the group and its parents. Existing ones are fine.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn create(&self) -> io::Result<()> {
        for h in self.all.hierarchies.iter().filter(|h| !h.lazy) {
            let dir = h.base.join(&self.path);
            match fs::create_dir(&dir) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(&dir)?;
                    if h.version == Version::V2 {
                        self.delegate(&h.base)?;
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// v2: hands the controllers down to every ancestor of this group, base included.
    fn delegate(&self, base: &Path) -> io::Result<()> {
        let mut dir = base.to_owned();
        let steps: Vec<&str> = self.path.split('/').filter(|s| !s.is_empty()).collect();
        for step in &steps {
            hand_down(&dir)?;
            dir.push(step);
        }
        Ok(())
    }

    /// v2: lets groups be made below this one with all controllers. Nothing to do for v1.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn delegate_children(&self) -> io::Result<()> {
        if self.all.version() == Version::V2
            && let Some(h) = self.all.hierarchies.first()
        {
            self.delegate(&h.base)?;
            hand_down(&h.base.join(&self.path))?;
        }
        Ok(())
    }

    /// How a child is to enter. The group must exist.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn entry(&self) -> io::Result<Entry> {
        if self.all.version() == Version::V2 {
            let dir = self.dirs().next().ok_or(io::ErrorKind::NotFound)?;
            return fs::File::open(dir).map(|f| Entry::Directory(f.into()));
        }
        let mut fds = Vec::new();
        for h in self.all.hierarchies.iter() {
            let tasks = h.base.join(&self.path).join("tasks");
            match fs::File::options().write(true).open(tasks) {
                Ok(f) => fds.push(crate::init::dup_high(&f)?),
                Err(e) if h.lazy && e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Entry::Tasks(fds))
    }

    /// Puts the calling process (and its later children) into the group, which must exist.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        self.dirs().try_for_each(|d| fs::write(d.join("cgroup.procs"), "0"))
    }

    /// Removes the group if nothing is in it or below it.
    pub fn remove_empty(&self) {
        for dir in self.dirs() {
            let _ = fs::remove_dir(dir);
        }
    }

    /// Pids in the group itself, not below.
    pub fn procs(&self) -> Vec<i32> {
        let Some(dir) = self.dirs().next() else { return Vec::new() };
        let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|l| l.parse().ok()).collect()
    }

    /// Sends SIGKILL to all processes in the group and below. One pass; call again until [`Group::procs`] is empty.
    pub fn kill(&self) {
        let Some(dir) = self.dirs().next() else { return };
        if fs::write(dir.join("cgroup.kill"), "1").is_err() {
            kill_below(&dir, 0);
        }
    }

    /// Removes the group and everything below. Gone is success; a group that still has processes is an error.
    ///
    /// # Errors
    /// `ResourceBusy` while processes are inside.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for h in self.all.hierarchies.iter() {
            if let Err(e) = remove_below(&h.base.join(&self.path), 0)
                && e.kind() != io::ErrorKind::NotFound
            {
                result = Err(e);
            }
        }
        result
    }

    /// Whether the group exists in the main hierarchy.
    pub fn exists(&self) -> bool {
        self.dirs().next().is_some_and(|d| d.is_dir())
    }

    /// How often the kernel killed a process of this group for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let Some(dir) = self.dir("memory") else { return 0 };
        let file = if self.all.version() == Version::V2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

/// Deepest nesting of groups that is followed: a container may make groups of its own, but not without bound.
const MAX_DEPTH: usize = 32;

fn hand_down(dir: &Path) -> io::Result<()> {
    let available = fs::read_to_string(dir.join("cgroup.controllers"))?;
    // A group that has processes of its own cannot hand anything down; groups below it then have no limits, which
    // `apply` passes over.
    let wanted: Vec<String> = available
        .split_ascii_whitespace()
        .filter(|c| ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"].contains(c))
        .map(|c| format!("+{c}"))
        .collect();
    match fs::write(dir.join("cgroup.subtree_control"), wanted.join(" ")) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            tracing::warn!(dir = %dir.display(), "cgroup holds processes, so groups below it go without limits");
            Ok(())
        }
        other => other,
    }
}

fn kill_below(dir: &Path, depth: usize) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in text.lines().filter_map(|l| l.parse().ok()) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
    each_subdir(dir, |sub| {
        if depth < MAX_DEPTH {
            kill_below(sub, depth + 1);
        }
    });
}

fn remove_below(dir: &Path, depth: usize) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy && depth < MAX_DEPTH => {
            each_subdir(dir, |sub| {
                let _ = remove_below(sub, depth + 1);
            });
            fs::remove_dir(dir)
        }
        other => other,
    }
}

fn each_subdir(dir: &Path, mut f: impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            f(&entry.path());
        }
    }
}
