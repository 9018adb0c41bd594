//! A container's files: its own layer and its mounts, all of them on the node in memory.

use std::{
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use podlab_kubelet::{FileKind, Host, Stat, fake::MemoryHost};

/// A mount as the runtime was told it.
#[derive(Debug, Clone)]
pub(in crate::world) struct Mount {
    pub(in crate::world) inside: PathBuf,
    pub(in crate::world) outside: PathBuf,
    pub(in crate::world) read_only: bool,
}

/// The files of one container.
#[derive(Clone)]
pub(in crate::world) struct Files {
    host: Arc<MemoryHost>,
    root: PathBuf,
    mounts: Arc<Vec<Mount>>,
    read_only_root: bool,
}

impl Files {
    /// The view below `root` with mounts on top; makes the directories every image has.
    pub(in crate::world) fn new(
        host: Arc<MemoryHost>,
        root: PathBuf,
        mut mounts: Vec<Mount>,
        read_only_root: bool,
    ) -> Self {
        mounts.sort_by_key(|m| std::cmp::Reverse(m.inside.components().count()));
        for dir in ["tmp", "etc", "dev", "bin"] {
            // A layer in memory cannot be full.
            let _ = host.create_dir_all(&root.join(dir), 0o755);
        }
        Self { host, root, mounts: Arc::new(mounts), read_only_root }
    }

    /// The node's path of a container's path, and whether it may be written.
    fn outside(&self, path: &Path) -> (PathBuf, bool) {
        let mut clean = PathBuf::from("/");
        for part in path.components() {
            match part {
                Component::Normal(p) => clean.push(p),
                Component::ParentDir => drop(clean.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        for m in self.mounts.iter() {
            if let Ok(rest) = clean.strip_prefix(&m.inside) {
                let out = if rest.as_os_str().is_empty() { m.outside.clone() } else { m.outside.join(rest) };
                return (out, !m.read_only);
            }
        }
        let rest = clean.strip_prefix("/").map(Path::to_owned).unwrap_or_default();
        (self.root.join(rest), !self.read_only_root)
    }

    fn writable(&self, path: &Path) -> io::Result<PathBuf> {
        match self.outside(path) {
            (p, true) => Ok(p),
            (_, false) => Err(io::Error::from_raw_os_error(30)),
        }
    }

    pub(in crate::world) fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.host.stat(&self.outside(path).0)
    }

    pub(super) fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.host.lstat(&self.outside(path).0)
    }

    pub(super) fn may_write(&self, path: &Path) -> bool {
        self.outside(path).1 && self.stat(path).is_ok()
    }

    pub(in crate::world) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == Path::new("/dev/null") {
            return Ok(Vec::new());
        }
        let outside = self.outside(path).0;
        if self.host.stat(&outside)?.kind == FileKind::Dir {
            return Err(io::Error::from_raw_os_error(21));
        }
        self.host.read_at(&outside, 0, 16 << 20)
    }

    pub(super) fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if path == Path::new("/dev/null") {
            return Ok(());
        }
        let outside = self.writable(path)?;
        let mode = self.host.stat(&outside).map_or(0o644, |s| s.mode);
        self.host.write(&outside, bytes, mode)
    }

    pub(super) fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if path == Path::new("/dev/null") {
            return Ok(());
        }
        let outside = self.writable(path)?;
        if self.host.stat(&outside).is_err() {
            self.host.write(&outside, b"", 0o644)?;
        }
        self.host.append(&outside, bytes);
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.host.list(&self.outside(path).0)
    }

    pub(super) fn make_dir(&self, path: &Path, parents: bool) -> io::Result<()> {
        let outside = self.writable(path)?;
        let parent = path.parent().map(|p| self.stat(p).is_ok()).unwrap_or(true);
        if !parents && !parent {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !parents && self.stat(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.host.create_dir_all(&outside, 0o755)
    }

    pub(super) fn remove(&self, path: &Path, recursive: bool) -> io::Result<()> {
        self.lstat(path)?;
        let outside = self.writable(path)?;
        if recursive { self.host.remove_tree(&outside) } else { self.host.remove_file(&outside) }
    }

    pub(super) fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.host.symlink(target, &self.writable(link)?)
    }

    pub(super) fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.host.chmod(&self.writable(path)?, mode)
    }
}
