//! The real machine.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use podlab_clock::Clock;
use podlab_lifecycle::resources::PodCgroupLimits;

use super::{
    CgroupStats, Changes, DiskStats, FileKind, Health, Host, HttpAnswer, HttpProbe, Machine, Stat, Tmpfs, http_probe,
    linux_cgroup::Cgroups, linux_mount, linux_watch::Watch,
};

/// The node this process runs on.
#[derive(Debug)]
pub struct LinuxHost {
    clock: Clock,
    cgroups: Cgroups,
}

impl LinuxHost {
    /// A host whose cgroups live below `cgroup_root` (a path inside the hierarchy, `/` for its top) of the hierarchies
    /// mounted at `/sys/fs/cgroup`.
    pub fn new(clock: Clock, cgroup_root: &str) -> Self {
        Self { clock, cgroups: Cgroups::detect(Path::new("/sys/fs/cgroup"), cgroup_root) }
    }
}

fn to_stat(m: &fs::Metadata) -> Stat {
    let t = m.file_type();
    let kind = if t.is_file() {
        FileKind::File
    } else if t.is_dir() {
        FileKind::Dir
    } else if t.is_symlink() {
        FileKind::Symlink
    } else if t.is_socket() {
        FileKind::Socket
    } else if t.is_char_device() {
        FileKind::CharDevice
    } else if t.is_block_device() {
        FileKind::BlockDevice
    } else {
        FileKind::Other
    };
    Stat { kind, mode: m.mode() & 0o7777, uid: m.uid(), gid: m.gid(), size: m.size() }
}

fn absent_is_fine(r: io::Result<()>) -> io::Result<()> {
    match r {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().trim().to_owned()
}

#[async_trait]
impl Host for LinuxHost {
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(path) {
            // The umask does not apply to what the Pod was promised.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        use std::io::Write;
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    fn read_at(&self, path: &Path, offset: u64, max: usize) -> io::Result<Vec<u8>> {
        let file = fs::File::open(path)?;
        let left = file.metadata()?.len().saturating_sub(offset);
        let mut out = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(max)];
        let mut filled = 0;
        while filled < out.len() {
            match file.read_at(&mut out[filled..], offset + filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        out.truncate(filled);
        Ok(out)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names: Vec<String> =
            fs::read_dir(path)?.filter_map(Result::ok).map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        fs::metadata(path).map(|m| to_stat(&m))
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        fs::symlink_metadata(path).map(|m| to_stat(&m))
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_file(path))
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        if !self.mounts_under(path)?.is_empty() {
            return Err(io::Error::other(format!("{} still has mounts below it", path.display())));
        }
        absent_is_fine(fs::remove_dir_all(path))
    }

    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        std::os::unix::fs::lchown(path, uid, gid)
    }

    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }

    fn mount_tmpfs(&self, target: &Path, options: Tmpfs) -> io::Result<()> {
        linux_mount::tmpfs(target, options)
    }

    fn bind_mount(&self, source: &Path, target: &Path) -> io::Result<()> {
        linux_mount::bind(source, target)
    }

    fn bind_subpath(&self, base: &Path, relative: &Path, target: &Path, mode: u32) -> io::Result<()> {
        linux_mount::bind_subpath(base, relative, target, mode)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        linux_mount::unmount(target)
    }

    fn mounts_under(&self, prefix: &Path) -> io::Result<Vec<PathBuf>> {
        linux_mount::under(prefix)
    }

    fn cgroup_apply(&self, path: &str, limits: &PodCgroupLimits) -> io::Result<()> {
        self.cgroups.apply(path, limits)
    }

    fn cgroup_remove(&self, path: &str) -> io::Result<()> {
        self.cgroups.remove(path)
    }

    fn cgroup_children(&self, path: &str) -> io::Result<Vec<String>> {
        self.cgroups.children(path)
    }

    fn cgroup_stats(&self, path: &str) -> io::Result<CgroupStats> {
        self.cgroups.stats(path)
    }

    fn pids(&self) -> io::Result<(u64, u64)> {
        let number = |p: &str| fs::read_to_string(p).ok().and_then(|s| s.trim().parse::<u64>().ok());
        let most = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
        let most = most.into_iter().flatten().min().ok_or_else(|| io::Error::other("no bound of process ids"))?;
        // `0.00 0.01 0.05 running/all last`
        let load = fs::read_to_string("/proc/loadavg")?;
        let used = load.split(' ').nth(3).and_then(|f| f.split_once('/')?.1.parse().ok());
        Ok((most, used.ok_or_else(|| io::Error::other("/proc/loadavg does not say how many processes there are"))?))
    }

    fn machine(&self) -> Machine {
        let cpus = std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib =
            memory.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse::<i64>().ok());
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty =
            release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).map(|v| v.trim_matches('"').to_owned());
        Machine {
            cpu_milli: cpus * 1000,
            memory: kib.unwrap_or(0) * 1024,
            machine_id: first_line("/etc/machine-id"),
            system_uuid: first_line("/sys/class/dmi/id/product_uuid"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            os_image: pretty.unwrap_or_else(|| "Linux".to_owned()),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            }
            .to_owned(),
            hugepages: Vec::new(),
        }
    }

    fn disk(&self, path: &Path) -> io::Result<DiskStats> {
        let s = nix::sys::statvfs::statvfs(path)?;
        let block = s.fragment_size();
        Ok(DiskStats {
            id: fs::metadata(path)?.dev(),
            capacity: s.blocks() * block,
            available: s.blocks_available() * block,
            used: s.blocks().saturating_sub(s.blocks_free()) * block,
            inodes: s.files(),
            inodes_free: s.files_free(),
        })
    }

    fn usage(&self, path: &Path) -> io::Result<(u64, u64)> {
        let mut total = (0, 0);
        let mut stack = vec![path.to_owned()];
        while let Some(next) = stack.pop() {
            let Ok(meta) = fs::symlink_metadata(&next) else { continue };
            total.0 += meta.blocks() * 512;
            total.1 += 1;
            if meta.is_dir() {
                stack.extend(fs::read_dir(&next)?.filter_map(Result::ok).map(|e| e.path()));
            }
        }
        Ok(total)
    }

    fn watch(&self, dir: &Path) -> Box<dyn Changes> {
        Box::new(Watch::new(self.clock, dir))
    }

    async fn http_get(&self, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String> {
        http_probe::get(&self.clock, probe, timeout).await
    }

    async fn tcp_dial(&self, host: &str, port: u16, timeout: Duration) -> Result<(), String> {
        http_probe::dial(&self.clock, host, port, timeout).await.map(drop)
    }

    async fn grpc_health(&self, host: &str, port: u16, service: &str, timeout: Duration) -> Result<Health, String> {
        http_probe::health(&self.clock, host, port, service, timeout).await
    }
}
