//! A host in memory: files, links, mounts and cgroups as a tree of paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Component, Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use podlab_clock::Clock;
use podlab_lifecycle::resources::PodCgroupLimits;
use tokio::sync::watch;

use crate::host::{
    CgroupStats, Changes, DiskStats, FileKind, Health, Host, HttpAnswer, HttpProbe, Machine, Stat, Tmpfs,
};

#[derive(Debug, Clone)]
struct Node {
    kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    bytes: Vec<u8>,
    target: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<PathBuf, Node>,
    mounts: BTreeSet<PathBuf>,
    /// Where bound paths lead.
    binds: BTreeMap<PathBuf, PathBuf>,
    boot_id: Option<String>,
    cgroups: BTreeMap<String, PodCgroupLimits>,
    used: BTreeMap<String, CgroupStats>,
    pids: (u64, u64),
    http: BTreeMap<String, Result<HttpAnswer, String>>,
}

/// What answers probes of a machine in memory. Errors are Go's text.
#[async_trait]
pub trait Dialer: Send + Sync {
    /// One HTTP GET.
    async fn http_get(&self, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String>;
    /// One TCP connection.
    async fn tcp_dial(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String>;
    /// One gRPC health check.
    async fn grpc_health(&self, host: &str, port: u16, service: &str, timeout: Duration) -> Result<Health, String>;
}

/// A machine in memory.
pub struct MemoryHost {
    clock: Clock,
    machine: Machine,
    state: Mutex<State>,
    dialer: OnceLock<Arc<dyn Dialer>>,
    disk: Mutex<Box<dyn Fn() -> DiskStats + Send>>,
    /// Counts changes of files, for those who watch.
    revision: watch::Sender<u64>,
    /// Watchers are told of nothing.
    unwatched: AtomicBool,
}

/// Waits for the next change of any file.
struct Watched {
    clock: Clock,
    revision: watch::Receiver<u64>,
    deaf: bool,
}

#[async_trait]
impl Changes for Watched {
    async fn next(&mut self, wait: Duration) {
        if self.deaf {
            return self.clock.sleep(wait).await;
        }
        // A host that is gone changes no more.
        let _ = self.clock.timeout(wait, self.revision.changed()).await;
    }
}

impl MemoryHost {
    /// An empty machine.
    pub fn new(clock: Clock, machine: Machine) -> Arc<Self> {
        let disk = DiskStats {
            id: 1,
            capacity: 100 << 30,
            available: 90 << 30,
            used: 10 << 30,
            inodes: 1 << 20,
            inodes_free: 1 << 20,
        };
        let host = Self {
            clock,
            machine,
            dialer: OnceLock::new(),
            state: Mutex::new(State { pids: (32_768, 100), ..State::default() }),
            disk: Mutex::new(Box::new(move || disk)),
            revision: watch::Sender::new(0),
            unwatched: AtomicBool::new(false),
        };
        host.put(Path::new("/"), FileKind::Dir, 0o755, Vec::new(), PathBuf::new());
        Arc::new(host)
    }

    /// From now on whoever begins to watch a directory is told of nothing, as on a file system without notification.
    pub fn tell_no_changes(&self) {
        self.unwatched.store(true, Ordering::Release);
    }

    /// Lets somebody answer its probes; the first one told does.
    pub fn dial_by(&self, dialer: Arc<dyn Dialer>) {
        let _ = self.dialer.set(dialer);
    }

    /// Adds to the end of a file, which is made when absent; without its directory nothing happens.
    pub fn append(&self, path: &Path, bytes: &[u8]) {
        let Ok(path) = self.resolve(path, true) else { return };
        let mut state = self.state.lock();
        if let Some(n) = state.files.get_mut(&path) {
            n.bytes.extend_from_slice(bytes);
        } else if path.parent().is_some_and(|p| state.files.contains_key(p)) {
            drop(state);
            self.put(&path, FileKind::File, 0o644, bytes.to_vec(), PathBuf::new());
        }
    }

    /// What a power loss leaves: the disk. Mounts, cgroups and what lay under `/run` are gone, and the boot id is another.
    pub fn power_off(&self, boot_id: &str) {
        let mut state = self.state.lock();
        let tmpfs: Vec<PathBuf> = state.mounts.iter().filter(|m| !state.binds.contains_key(*m)).cloned().collect();
        state.files.retain(|p, _| !p.starts_with("/run/") && !tmpfs.iter().any(|m| p != m && p.starts_with(m)));
        state.mounts.clear();
        state.binds.clear();
        state.cgroups.clear();
        state.boot_id = Some(boot_id.to_owned());
    }

    /// Mount points there are.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.state.lock().mounts.iter().cloned().collect()
    }

    /// Cgroups there are, with their limits.
    pub fn cgroups(&self) -> BTreeMap<String, PodCgroupLimits> {
        self.state.lock().cgroups.clone()
    }

    /// What a cgroup uses from now on.
    pub fn set_cgroup(&self, path: &str, used: CgroupStats) {
        self.state.lock().used.insert(path.to_owned(), used);
    }

    /// How full the disk is from now on.
    pub fn set_disk(&self, disk: DiskStats) {
        self.disk_by(move || disk);
    }

    /// How full the disk is, asked each time.
    pub fn disk_by(&self, disk: impl Fn() -> DiskStats + Send + 'static) {
        *self.disk.lock() = Box::new(disk);
    }

    /// Most process ids and those in use, from now on.
    pub fn set_pids(&self, most: u64, used: u64) {
        self.state.lock().pids = (most, used);
    }

    /// What a GET of a URL gives from now on; others are refused.
    pub fn set_http(&self, url: &str, answer: Result<HttpAnswer, String>) {
        self.state.lock().http.insert(url.to_owned(), answer);
    }

    /// Makes a socket file, as a plugin that listens does.
    pub fn socket(&self, path: &Path) {
        self.put(path, FileKind::Socket, 0o600, Vec::new(), PathBuf::new());
    }

    /// The contents of a file, following links.
    pub fn text(&self, path: &Path) -> Option<String> {
        self.node(path, true).ok().map(|n| String::from_utf8_lossy(&n.bytes).into_owned())
    }

    fn put(&self, path: &Path, kind: FileKind, mode: u32, bytes: Vec<u8>, target: PathBuf) {
        self.state.lock().files.insert(path.to_owned(), Node { kind, mode, uid: 0, gid: 0, bytes, target });
        self.revision.send_modify(|r| *r += 1);
    }

    /// Follows links, those in the middle of the path included.
    fn resolve(&self, path: &Path, follow_last: bool) -> io::Result<PathBuf> {
        let state = self.state.lock();
        let mut at = PathBuf::from("/");
        let mut rest: Vec<PathBuf> = path.components().rev().map(|c| PathBuf::from(c.as_os_str())).collect();
        for _ in 0..100 {
            let Some(part) = rest.pop() else { return Ok(at) };
            match part.components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::ParentDir) => {
                    at.pop();
                    continue;
                }
                _ => continue,
            }
            let next = at.join(&part);
            match state.files.get(&next) {
                Some(n) if n.kind == FileKind::Symlink && (follow_last || !rest.is_empty()) => {
                    if n.target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    rest.extend(n.target.components().rev().map(|c| PathBuf::from(c.as_os_str())));
                }
                _ => at = next,
            }
            if let Some(source) = state.binds.get(&at) {
                at.clone_from(source);
            }
        }
        Err(io::Error::other("too many links"))
    }

    fn node(&self, path: &Path, follow: bool) -> io::Result<Node> {
        let path = self.resolve(path, follow)?;
        self.state.lock().files.get(&path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&self, path: &Path, follow: bool, change: impl FnOnce(&mut Node)) -> io::Result<()> {
        let path = self.resolve(path, follow)?;
        let mut state = self.state.lock();
        let node = state.files.get_mut(&path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        change(node);
        Ok(())
    }
}

fn to_stat(n: &Node) -> Stat {
    Stat { kind: n.kind, mode: n.mode, uid: n.uid, gid: n.gid, size: n.bytes.len() as u64 }
}

#[async_trait]
impl Host for MemoryHost {
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = self.resolve(path, true)?;
        let mut state = self.state.lock();
        for dir in path.ancestors() {
            let mode = if dir == path { mode } else { 0o755 };
            state.files.entry(dir.to_owned()).or_insert(Node {
                kind: FileKind::Dir,
                mode,
                uid: 0,
                gid: 0,
                bytes: Vec::new(),
                target: PathBuf::new(),
            });
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let path = self.resolve(path, true)?;
        if !path.parent().is_some_and(|p| self.state.lock().files.contains_key(p)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.put(&path, FileKind::File, mode, bytes.to_vec(), PathBuf::new());
        Ok(())
    }

    fn read_at(&self, path: &Path, offset: u64, max: usize) -> io::Result<Vec<u8>> {
        let n = self.node(path, true)?;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(n.bytes.len());
        Ok(n.bytes[begin..n.bytes.len().min(begin.saturating_add(max))].to_vec())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = self.resolve(path, true)?;
        let state = self.state.lock();
        if !state.files.contains_key(&path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let below = state.files.range(path.clone()..).take_while(|(p, _)| p.starts_with(&path)).map(|(p, _)| p);
        let children = below.filter(|p| p.parent() == Some(path.as_path()));
        Ok(children.filter_map(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned()).collect())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.node(path, true).map(|n| to_stat(&n))
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.node(path, false).map(|n| to_stat(&n))
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let n = self.node(path, false)?;
        if n.kind == FileKind::Symlink { Ok(n.target) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let link = self.resolve(link, false)?;
        if self.state.lock().files.contains_key(&link) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.put(&link, FileKind::Symlink, 0o777, Vec::new(), target.to_owned());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.resolve(from, false)?, self.resolve(to, false)?);
        let mut state = self.state.lock();
        let moved: Vec<PathBuf> = state.files.keys().filter(|p| p.starts_with(&from)).cloned().collect();
        if moved.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        for p in moved {
            let rest = p.strip_prefix(&from).map(Path::to_owned).unwrap_or_default();
            if let Some(n) = state.files.remove(&p) {
                let target = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
                state.files.insert(target, n);
            }
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = self.resolve(path, false)?;
        self.state.lock().files.remove(&path);
        self.revision.send_modify(|r| *r += 1);
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        let asked = path.to_owned();
        let path = self.resolve(path, false)?;
        let mut state = self.state.lock();
        if state.mounts.iter().any(|m| m.starts_with(&asked) || m.starts_with(&path)) {
            return Err(io::Error::other(format!("{} still has mounts below it", path.display())));
        }
        state.files.retain(|p, _| !p.starts_with(&path));
        Ok(())
    }

    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.change(path, false, |n| {
            n.uid = uid.unwrap_or(n.uid);
            n.gid = gid.unwrap_or(n.gid);
        })
    }

    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change(path, true, |n| n.mode = mode)
    }

    fn mount_tmpfs(&self, target: &Path, options: Tmpfs) -> io::Result<()> {
        self.change(target, true, |n| n.mode = options.mode)?;
        self.state.lock().mounts.insert(target.to_owned());
        Ok(())
    }

    fn bind_mount(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.node(source, true)?;
        let source = self.resolve(source, true)?;
        let mut state = self.state.lock();
        state.mounts.insert(target.to_owned());
        state.binds.insert(target.to_owned(), source);
        Ok(())
    }

    fn bind_subpath(&self, base: &Path, relative: &Path, target: &Path, mode: u32) -> io::Result<()> {
        let source = base.join(relative);
        if self.stat(&source).is_err() {
            self.create_dir_all(&source, mode)?;
        }
        if self.stat(&source)?.kind == FileKind::Dir {
            self.create_dir_all(target, 0o750)?;
        } else if let Some(dir) = target.parent() {
            self.create_dir_all(dir, 0o750)?;
            self.put(target, FileKind::File, 0o640, Vec::new(), PathBuf::new());
        }
        self.bind_mount(&source, target)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.mounts.remove(target) && state.binds.remove(target).is_none() {
            // What lay on the mount is gone with it.
            state.files.retain(|p, _| p == target || !p.starts_with(target));
        }
        Ok(())
    }

    fn mounts_under(&self, prefix: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.state.lock().mounts.iter().rev().filter(|m| m.starts_with(prefix)).cloned().collect())
    }

    fn cgroup_apply(&self, path: &str, limits: &PodCgroupLimits) -> io::Result<()> {
        self.state.lock().cgroups.insert(path.to_owned(), *limits);
        Ok(())
    }

    fn cgroup_remove(&self, path: &str) -> io::Result<()> {
        self.state.lock().cgroups.retain(|p, _| p != path && !p.starts_with(&format!("{path}/")));
        Ok(())
    }

    fn cgroup_children(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let state = self.state.lock();
        let below = state.cgroups.keys().filter_map(|p| p.strip_prefix(&prefix)).filter(|r| !r.contains('/'));
        Ok(below.map(str::to_owned).collect())
    }

    fn cgroup_stats(&self, path: &str) -> io::Result<CgroupStats> {
        Ok(self.state.lock().used.get(path).copied().unwrap_or_default())
    }

    fn pids(&self) -> io::Result<(u64, u64)> {
        Ok(self.state.lock().pids)
    }

    fn machine(&self) -> Machine {
        let boot_id = self.state.lock().boot_id.clone();
        Machine { boot_id: boot_id.unwrap_or_else(|| self.machine.boot_id.clone()), ..self.machine.clone() }
    }

    fn disk(&self, _path: &Path) -> io::Result<DiskStats> {
        Ok((self.disk.lock())())
    }

    fn usage(&self, path: &Path) -> io::Result<(u64, u64)> {
        let state = self.state.lock();
        let below = state.files.iter().filter(|(p, _)| p.starts_with(path));
        Ok(below.fold((0, 0), |(b, n), (_, f)| (b + f.bytes.len() as u64, n + 1)))
    }

    fn watch(&self, _dir: &Path) -> Box<dyn Changes> {
        let deaf = self.unwatched.load(Ordering::Acquire);
        Box::new(Watched { clock: self.clock, revision: self.revision.subscribe(), deaf })
    }

    async fn http_get(&self, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String> {
        let scripted = self.state.lock().http.get(&probe.url()).cloned();
        if let Some(answer) = scripted {
            return answer;
        }
        match self.dialer.get() {
            Some(d) => d.http_get(probe, timeout).await,
            None => Err(format!("dial tcp {}:{}: connect: connection refused", probe.host, probe.port)),
        }
    }

    async fn tcp_dial(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String> {
        match self.dialer.get() {
            Some(d) => d.tcp_dial(host, port, timeout).await,
            None => Err(format!("dial tcp {host}:{port}: connect: connection refused")),
        }
    }

    async fn grpc_health(&self, host: &str, port: u16, service: &str, timeout: Duration) -> Result<Health, String> {
        match self.dialer.get() {
            Some(d) => d.grpc_health(host, port, service, timeout).await,
            None => Err(format!("dial tcp {host}:{port}: connect: connection refused")),
        }
    }
}
