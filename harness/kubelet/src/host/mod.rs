//! The machine under the node agent: files, mounts, cgroups, statistics and probe dials, as a trait, so that the same
//! agent runs on a simulated node. Paths are absolute, on the node.

mod http_probe;
mod linux;
mod linux_cgroup;
mod linux_mount;
mod linux_watch;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
pub(crate) use http_probe::PLAIN_HTTP;
pub use linux::LinuxHost;
use podlab_lifecycle::resources::PodCgroupLimits;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link (only when not followed).
    Symlink,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Anything else.
    Other,
}

/// Attributes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
}

/// The node's fixed facts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// CPUs, in thousandths.
    pub cpu_milli: i64,
    /// Memory, bytes.
    pub memory: i64,
    /// Machine id.
    pub machine_id: String,
    /// System UUID.
    pub system_uuid: String,
    /// Boot id: changes when the node was rebooted.
    pub boot_id: String,
    /// Kernel release.
    pub kernel: String,
    /// Distribution, for people.
    pub os_image: String,
    /// Go's name of the architecture.
    pub architecture: String,
    /// Huge page sizes and how many bytes of each.
    pub hugepages: Vec<(String, i64)>,
}

/// A file system's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskStats {
    /// Which file system; equal for paths on the same one.
    pub id: u64,
    /// Bytes altogether.
    pub capacity: u64,
    /// Bytes free for ordinary users.
    pub available: u64,
    /// Bytes used.
    pub used: u64,
    /// Inodes altogether.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// What a cgroup uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CgroupStats {
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// Memory charged, bytes.
    pub memory_usage: u64,
    /// Memory less what can be dropped at once, bytes.
    pub working_set: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// A tmpfs to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tmpfs {
    /// Bytes; `None` takes the kernel's default.
    pub size: Option<u64>,
    /// Mode of its root.
    pub mode: u32,
}

/// An HTTP probe or hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProbe {
    /// `http` or `https`.
    pub scheme: String,
    /// Host or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path with query.
    pub path: String,
    /// Headers, added to the default ones.
    pub headers: Vec<(String, String)>,
}

impl HttpProbe {
    /// As Go prints the URL.
    pub fn url(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let slash = if self.path.starts_with('/') { "" } else { "/" };
        format!("{}://{host}:{}{slash}{}", self.scheme, self.port, self.path)
    }
}

/// An HTTP answer, its body cut at the probe's bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// `Location`, for redirects.
    pub location: Option<String>,
    /// Body, at most 10 KiB.
    pub body: Vec<u8>,
}

/// Result of a gRPC health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// SERVING.
    Serving,
    /// Anything else, by its number.
    Other(i32),
}

/// A directory that is watched.
#[async_trait]
pub trait Changes: Send {
    /// Waits until something changed since this was last asked, at most `wait`. Dropping it midway loses nothing.
    async fn next(&mut self, wait: Duration);
}

/// The node. File operations are quick and blocking; dials may be dropped midway.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Makes a directory and its parents; the last one gets `mode` when it is new.
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Writes a whole file, replacing it, with exactly `mode`.
    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Reads at most `max` bytes from `offset`.
    fn read_at(&self, path: &Path, offset: u64, max: usize) -> io::Result<Vec<u8>>;
    /// Names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Attributes, following symbolic links.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Attributes of the path itself.
    fn lstat(&self, path: &Path) -> io::Result<Stat>;
    /// Where a symbolic link points.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Makes a symbolic link.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()>;
    /// Renames over whatever is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file or link; absent is fine.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a tree without crossing into mounts; absent is fine.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Changes the owner without following a link.
    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;
    /// Changes the mode.
    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Mounts a tmpfs.
    fn mount_tmpfs(&self, target: &Path, options: Tmpfs) -> io::Result<()>;
    /// Binds `source` at `target`.
    fn bind_mount(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Opens `relative` under `base` without leaving it by a link, making it (a directory) when absent, and binds what
    /// was opened at `target`.
    fn bind_subpath(&self, base: &Path, relative: &Path, target: &Path, mode: u32) -> io::Result<()>;
    /// Unmounts; not mounted is fine.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// Mount points at or below a path, deepest first.
    fn mounts_under(&self, prefix: &Path) -> io::Result<Vec<PathBuf>>;

    /// Makes a cgroup (with its parents) and sets its limits. `path` is below the cgroup root, e.g.
    /// `/kubepods/burstable/pod<uid>`.
    fn cgroup_apply(&self, path: &str, limits: &PodCgroupLimits) -> io::Result<()>;
    /// Kills what is left in a cgroup tree and removes it; absent is fine.
    fn cgroup_remove(&self, path: &str) -> io::Result<()>;
    /// Names of the child cgroups.
    fn cgroup_children(&self, path: &str) -> io::Result<Vec<String>>;
    /// Usage of a cgroup.
    fn cgroup_stats(&self, path: &str) -> io::Result<CgroupStats>;

    /// Most process ids of the node, and those in use.
    fn pids(&self) -> io::Result<(u64, u64)>;
    /// The node's facts.
    fn machine(&self) -> Machine;
    /// Usage of the file system a path is on.
    fn disk(&self, path: &Path) -> io::Result<DiskStats>;
    /// Bytes and inodes used by a tree.
    fn usage(&self, path: &Path) -> io::Result<(u64, u64)>;

    /// Begins to watch a directory and the files in it; what happens from now on is seen. Nothing to watch is fine.
    fn watch(&self, dir: &Path) -> Box<dyn Changes>;
    /// Sends one HTTP GET. The error is Go's text for what went wrong, without the `Get "<url>": ` before it.
    async fn http_get(&self, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String>;
    /// Opens and closes a TCP connection. The error is Go's text.
    async fn tcp_dial(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String>;
    /// Asks grpc.health.v1. The error is a message for the probe's output.
    async fn grpc_health(&self, host: &str, port: u16, service: &str, timeout: Duration) -> Result<Health, String>;
}
