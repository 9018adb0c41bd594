//! A container's root: overlay of image layers, the file systems every container has, the mounts that were asked for.
//! Runs in the builder thread, in a mount namespace of its own, as ordinary code.
//!
//! Sources are opened in the node's view before the pivot; targets are paths after it. So a symbolic link in an image
//! leads nowhere but into that image.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Component, Path, PathBuf},
};

use nix::sys::stat::{Mode, SFlag, mknod};

use super::{LaunchError, child::ChildMount, userns::UserNamespace};
use crate::sys::mount as m;

/// How mounts made later on one side appear on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// Not at all.
    #[default]
    Private,
    /// From the node into the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// What a mount shows.
#[derive(Debug, Clone)]
pub enum MountSource {
    /// A path of the node; a directory is made when it does not exist.
    Host(PathBuf),
    /// The content of an image, read-only, or one path inside it.
    Image {
        /// Layer directories, topmost first.
        layers: Vec<PathBuf>,
        /// Path inside; empty: all of it.
        sub_path: String,
    },
}

/// One mount that was asked for.
#[derive(Debug, Clone)]
pub struct BindMount {
    /// What.
    pub source: MountSource,
    /// Where, an absolute path in the container.
    pub target: PathBuf,
    /// Not writable.
    pub readonly: bool,
    /// Nor anything below it.
    pub recursive_readonly: bool,
    /// Later mounts.
    pub propagation: Propagation,
    /// `MOUNT_ATTR_*` besides.
    pub attrs: u64,
    /// Owners are shifted by [`RootfsSpec::users`].
    pub shifted: bool,
}

/// A device node besides the usual ones.
#[derive(Debug, Clone)]
pub struct Device {
    /// On the node.
    pub host_path: PathBuf,
    /// In the container.
    pub container_path: PathBuf,
}

/// What a container sees of cgroups.
#[derive(Debug, Clone, Default)]
pub enum CgroupView {
    /// Nothing.
    #[default]
    None,
    /// v1: its own group in each hierarchy, (name, directory).
    V1(Vec<(String, PathBuf)>),
    /// v2: the unified hierarchy below its own group.
    V2,
}

/// A root to build.
#[derive(Debug, Clone, Default)]
pub struct RootfsSpec {
    /// Layer directories, topmost first.
    pub layers: Vec<PathBuf>,
    /// Directory that gets `u` (upper) and `w` (work).
    pub upper: PathBuf,
    /// An empty directory to mount on; may be shared, each builder has its own mount namespace.
    pub mount_point: PathBuf,
    /// A second one, for image mounts.
    pub scratch: PathBuf,
    /// The root is not writable.
    pub readonly: bool,
    /// All devices, writable `/sys` and cgroups, nothing hidden.
    pub privileged: bool,
    /// What was asked for.
    pub mounts: Vec<BindMount>,
    /// Besides the usual ones.
    pub devices: Vec<Device>,
    /// In a user namespace: devices are mounted from the node, for no node can be made, and overlays keep their notes in
    /// attributes that need no privilege.
    pub unprivileged: bool,
    /// The user namespace of the processes: the image's owners are shifted into it.
    pub users: Option<UserNamespace>,
    /// What `/dev/shm` shows.
    pub shm: Option<PathBuf>,
    /// Cgroups.
    pub cgroups: CgroupView,
    /// Hidden paths.
    pub masked: Vec<String>,
    /// Paths made read-only.
    pub readonly_paths: Vec<String>,
}

type Result<T, E = LaunchError> = std::result::Result<T, E>;

const DEVICES: [(&str, u64, u64); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const NSND: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;

struct Tree {
    fd: OwnedFd,
    target: PathBuf,
    is_dir: bool,
}

impl RootfsSpec {
    /// Builds the root and makes it the calling thread's. The thread must have its own mount namespace and file system
    /// attributes, and be in the network and IPC namespaces of the sandbox. Returns the mounts that are left to the
    /// child, because they show its pid or cgroup namespace,
    /// and the old root, when it must stay in sight until those mounts are made (see [`RootfsSpec::unprivileged`]).
    ///
    /// # Errors
    /// [`LaunchError`] naming what could not be mounted.
    pub fn build(&self) -> Result<(Vec<ChildMount>, Option<OwnedFd>)> {
        nix::sys::stat::umask(Mode::empty());
        let trees = self.open_sources()?;
        let devices = self.collect_devices()?;
        // In a user namespace the kernel may refuse a sysfs of our own, because parts of the node's are covered.
        let node_sys = self.unprivileged.then(|| m::clone_tree(Path::new("/sys"), true)).and_then(Result::ok);
        m::make_private().map_err(LaunchError::setup("make mounts private"))?;
        self.mount_overlay()?;
        // In a user namespace the kernel allows a new /proc or /sys only where one is in sight already.
        let old = m::pivot(&self.mount_point, self.unprivileged)
            .map_err(LaunchError::setup("pivot into the container's root"))?;
        self.mount_system(&devices, node_sys.as_ref())?;
        for tree in trees {
            let what = format!("mount {}", tree.target.display());
            make_target(&tree.target, tree.is_dir)
                .and_then(|()| m::attach(tree.fd.as_fd(), &tree.target))
                .map_err(LaunchError::setup(what))?;
        }
        if self.readonly {
            let flags = nix::mount::MsFlags::MS_BIND | nix::mount::MsFlags::MS_REMOUNT | nix::mount::MsFlags::MS_RDONLY;
            let ro = nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>);
            ro.map_err(|e| LaunchError::setup("make the root read-only")(e.into()))?;
        }
        Ok((self.child_mounts()?, old))
    }

    fn overridden(&self, target: &str) -> bool {
        self.mounts.iter().any(|m| m.target == Path::new(target))
    }

    /// Every source as a detached tree, with its attributes, in the order in which they must be attached.
    fn open_sources(&self) -> Result<Vec<Tree>> {
        let mut trees = Vec::new();
        if let Some(shm) = self.shm.as_ref().filter(|_| !self.overridden("/dev/shm")) {
            let fd = m::clone_tree(shm, false).map_err(LaunchError::setup("open the sandbox's /dev/shm"))?;
            let _ = m::propagate(fd.as_fd(), libc::MS_PRIVATE);
            trees.push(Tree { fd, target: "/dev/shm".into(), is_dir: true });
        }
        if self.unprivileged && !self.overridden("/dev") {
            let extra = self.devices.iter().map(|d| (d.host_path.clone(), d.container_path.clone()));
            let usual = DEVICES.iter().map(|(name, ..)| (Path::new("/dev").join(name), Path::new("/dev").join(name)));
            for (from, target) in usual.chain(extra) {
                let fd = m::clone_tree(&from, false)
                    .map_err(LaunchError::setup(format!("open device {}", from.display())))?;
                let _ = m::propagate(fd.as_fd(), libc::MS_PRIVATE);
                trees.push(Tree { fd, target, is_dir: false });
            }
        }
        if let CgroupView::V1(dirs) = &self.cgroups {
            for (name, dir) in dirs {
                let open = || -> io::Result<OwnedFd> {
                    let fd = m::clone_tree(dir, false)?;
                    m::propagate(fd.as_fd(), libc::MS_PRIVATE)?;
                    m::restrict(
                        fd.as_fd(),
                        m::NOSUID | m::NODEV | m::NOEXEC | if self.privileged { 0 } else { m::RDONLY },
                        false,
                    )?;
                    Ok(fd)
                };
                let fd = open().map_err(LaunchError::setup(format!("open cgroup {}", dir.display())))?;
                trees.push(Tree { fd, target: Path::new("/sys/fs/cgroup").join(name), is_dir: true });
            }
        }
        let mut asked: Vec<&BindMount> = self.mounts.iter().collect();
        asked.sort_by_key(|m| m.target.components().count());
        for mount in asked {
            trees.push(self.open_mount(mount)?);
        }
        Ok(trees)
    }

    fn open_mount(&self, mount: &BindMount) -> Result<Tree> {
        let (fd, is_dir) = match &mount.source {
            MountSource::Host(path) => {
                let what = || LaunchError::setup(format!("open mount source {}", path.display()));
                let is_dir = match fs::metadata(path) {
                    Ok(meta) => meta.is_dir(),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        fs::create_dir_all(path).map_err(what())?;
                        true
                    }
                    Err(e) => return Err(what()(e)),
                };
                (m::clone_tree(path, true).map_err(what())?, is_dir)
            }
            MountSource::Image { layers, sub_path } => self.open_image(layers, sub_path)?,
        };
        let set = || -> io::Result<()> {
            if let (true, Some(users)) = (mount.shifted, &self.users) {
                m::idmap(fd.as_fd(), users.fd.as_fd(), true)?;
            }
            let attrs = mount.attrs | if mount.readonly { m::RDONLY } else { 0 };
            if attrs != 0 {
                m::restrict(fd.as_fd(), attrs, mount.recursive_readonly)?;
            }
            match mount.propagation {
                Propagation::Private => m::propagate(fd.as_fd(), libc::MS_PRIVATE),
                Propagation::HostToContainer => m::propagate(fd.as_fd(), libc::MS_SLAVE),
                Propagation::Bidirectional => m::propagate(fd.as_fd(), libc::MS_SHARED),
            }
        };
        set().map_err(LaunchError::setup(format!("set attributes of mount {}", mount.target.display())))?;
        Ok(Tree { fd, target: mount.target.clone(), is_dir })
    }

    /// An image as a read-only tree.
    fn open_image(&self, layers: &[PathBuf], sub_path: &str) -> Result<(OwnedFd, bool)> {
        let open = || -> io::Result<(OwnedFd, bool)> {
            let mut root = match layers {
                [one] => one.clone(),
                many => {
                    let lower: Vec<String> = many.iter().map(|l| l.display().to_string()).collect();
                    m::mount_fs(
                        "overlay",
                        "overlay",
                        &self.scratch,
                        libc::MS_RDONLY,
                        &format!("lowerdir={}", lower.join(":")),
                    )?;
                    self.scratch.clone()
                }
            };
            let base = root.clone();
            if !sub_path.is_empty() {
                root = within(&base, Path::new(sub_path))?;
            }
            let is_dir = fs::metadata(&root)?.is_dir();
            let fd = m::clone_tree(&root, false)?;
            if layers.len() > 1 {
                nix::mount::umount2(&self.scratch, nix::mount::MntFlags::MNT_DETACH)?;
            }
            m::restrict(fd.as_fd(), m::RDONLY, false)?;
            Ok((fd, is_dir))
        };
        open().map_err(LaunchError::setup(format!("mount image content {sub_path:?}")))
    }

    fn collect_devices(&self) -> Result<Vec<(PathBuf, u32, u64)>> {
        let mut found = Vec::new();
        if self.unprivileged {
            return Ok(found);
        }
        for device in &self.devices {
            let what = LaunchError::setup(format!("find device {}", device.host_path.display()));
            let meta = fs::metadata(&device.host_path).map_err(what)?;
            found.push((device.container_path.clone(), meta.mode(), meta.rdev()));
        }
        if self.privileged {
            host_devices(Path::new("/dev"), 0, &mut found);
        }
        Ok(found)
    }

    fn mount_overlay(&self) -> Result<()> {
        let (upper, work) = (self.upper.join("u"), self.upper.join("w"));
        fs::create_dir_all(&upper)
            .and_then(|()| fs::create_dir_all(&work))
            .map_err(LaunchError::setup("make the writable layer"))?;
        let layers = self.shifted_layers(&upper)?;
        let lower: Vec<String> = layers.iter().map(|l| l.display().to_string()).collect();
        let notes = if self.unprivileged { ",userxattr" } else { "" };
        let mut data =
            format!("lowerdir={},upperdir={},workdir={}{notes}", lower.join(":"), upper.display(), work.display());
        // The kernel takes one page of options. Layers are siblings, so their names alone do from inside their parent.
        if data.len() > 4000 {
            let parent = layers.first().and_then(|l| l.parent()).unwrap_or(Path::new("/"));
            nix::unistd::chdir(parent).map_err(|e| LaunchError::setup("enter the layer store")(e.into()))?;
            let short: Vec<String> =
                layers.iter().map(|l| l.strip_prefix(parent).unwrap_or(l).display().to_string()).collect();
            data =
                format!("lowerdir={},upperdir={},workdir={}{notes}", short.join(":"), upper.display(), work.display());
        }
        m::mount_fs("overlay", "overlay", &self.mount_point, 0, &data).map_err(LaunchError::setup("mount the overlay"))
    }

    /// The layers as the processes see them: as they are, or with their owners shifted, mounted beside the upper directory,
    /// which then belongs to the namespace's root.
    fn shifted_layers(&self, upper: &Path) -> Result<Vec<PathBuf>> {
        let Some(users) = &self.users else { return Ok(self.layers.clone()) };
        let fail = |what: &'static str| LaunchError::setup(what);
        std::os::unix::fs::chown(upper, users.maps.uid(0), users.maps.gid(0))
            .map_err(fail("give the writable layer to the namespace's root"))?;
        let mut shifted = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let target = self.upper.join("l").join(i.to_string());
            let mount = || -> io::Result<()> {
                fs::create_dir_all(&target)?;
                let tree = m::clone_tree(layer, false)?;
                m::idmap(tree.as_fd(), users.fd.as_fd(), false)?;
                m::attach(tree.as_fd(), &target)
            };
            mount().map_err(fail("shift the owners of an image layer"))?;
            shifted.push(target);
        }
        Ok(shifted)
    }

    /// `/dev`, `/sys` and what belongs to them; `/proc` only as a directory.
    fn mount_system(&self, devices: &[(PathBuf, u32, u64)], node_sys: Option<&OwnedFd>) -> Result<()> {
        let fail = |what: &'static str| LaunchError::setup(what);
        make_target(Path::new("/proc"), true).map_err(fail("make /proc"))?;
        if !self.overridden("/sys") {
            make_target(Path::new("/sys"), true).map_err(fail("make /sys"))?;
            let ro = if self.privileged { 0 } else { libc::MS_RDONLY };
            let own = m::mount_fs("sysfs", "sysfs", Path::new("/sys"), NSND | libc::MS_NOEXEC | ro, "");
            let mounted = match (own, node_sys) {
                (Err(_), Some(tree)) => m::propagate(tree.as_fd(), libc::MS_PRIVATE)
                    .and_then(|()| m::restrict(tree.as_fd(), if self.privileged { 0 } else { m::RDONLY }, true))
                    .and_then(|()| m::attach(tree.as_fd(), Path::new("/sys"))),
                (own, _) => own,
            };
            mounted.map_err(fail("mount /sys"))?;
        }
        if !self.overridden("/dev") {
            make_target(Path::new("/dev"), true).map_err(fail("make /dev"))?;
            m::mount_fs(
                "tmpfs",
                "tmpfs",
                Path::new("/dev"),
                libc::MS_NOSUID | libc::MS_STRICTATIME,
                &format!("mode=755,size=65536k{}", self.owner()),
            )
            .map_err(fail("mount /dev"))?;
            fill_dev(devices, !self.unprivileged).map_err(fail("make device nodes"))?;
            if !self.overridden("/dev/pts") {
                m::mount_fs(
                    "devpts",
                    "devpts",
                    Path::new("/dev/pts"),
                    libc::MS_NOSUID | libc::MS_NOEXEC,
                    "newinstance,ptmxmode=0666,mode=0620,gid=5",
                )
                // A user namespace may have no group 5.
                .or_else(|_| {
                    m::mount_fs(
                        "devpts",
                        "devpts",
                        Path::new("/dev/pts"),
                        libc::MS_NOSUID | libc::MS_NOEXEC,
                        "newinstance,ptmxmode=0666,mode=0620",
                    )
                })
                .map_err(fail("mount /dev/pts"))?;
            }
            if !self.overridden("/dev/mqueue") {
                m::mount_fs("mqueue", "mqueue", Path::new("/dev/mqueue"), NSND | libc::MS_NOEXEC, "")
                    .map_err(fail("mount /dev/mqueue"))?;
            }
        }
        if matches!(self.cgroups, CgroupView::V1(_)) && !self.overridden("/sys/fs/cgroup") {
            m::mount_fs("tmpfs", "tmpfs", Path::new("/sys/fs/cgroup"), NSND | libc::MS_NOEXEC, "mode=755,size=64k")
                .map_err(fail("mount /sys/fs/cgroup"))?;
        }
        Ok(())
    }

    /// Mount options that give a file system to the namespace's root.
    fn owner(&self) -> String {
        let ids = self.users.as_ref().and_then(|u| u.maps.uid(0).zip(u.maps.gid(0)));
        ids.map_or_else(String::new, |(uid, gid)| format!(",uid={uid},gid={gid}"))
    }

    fn child_mounts(&self) -> Result<Vec<ChildMount>> {
        let c = |s: &str| {
            std::ffi::CString::new(s).map_err(|_| LaunchError::Invalid(format!("path {s:?} holds a zero byte")))
        };
        let mut list = Vec::new();
        if !self.overridden("/proc") {
            list.push(ChildMount::Fs {
                kind: c("proc")?,
                target: c("/proc")?,
                flags: NSND | libc::MS_NOEXEC,
                data: c("")?,
            });
        }
        if matches!(self.cgroups, CgroupView::V2) && !self.overridden("/sys/fs/cgroup") {
            let ro = if self.privileged { 0 } else { libc::MS_RDONLY };
            list.push(ChildMount::Fs {
                kind: c("cgroup2")?,
                target: c("/sys/fs/cgroup")?,
                flags: NSND | libc::MS_NOEXEC | ro,
                data: c("")?,
            });
        }
        for path in &self.readonly_paths {
            let kernel = path.starts_with("/proc") || path.starts_with("/sys");
            list.push(ChildMount::ReadOnly(c(path)?, if kernel { NSND | libc::MS_NOEXEC } else { 0 }));
        }
        for path in &self.masked {
            list.push(ChildMount::Mask(c(path)?));
        }
        Ok(list)
    }
}

/// Nodes, links and directories of a fresh `/dev`.
fn fill_dev(devices: &[(PathBuf, u32, u64)], make_usual: bool) -> io::Result<()> {
    let rw = Mode::from_bits_truncate(0o666);
    for (name, major, minor) in DEVICES.iter().copied().filter(|_| make_usual) {
        mknod(&Path::new("/dev").join(name), SFlag::S_IFCHR, rw, nix::sys::stat::makedev(major, minor))?;
    }
    for dir in ["/dev/pts", "/dev/shm", "/dev/mqueue"] {
        fs::create_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
        ("/proc/kcore", "/dev/core"),
        ("pts/ptmx", "/dev/ptmx"),
    ] {
        symlink(target, link)?;
    }
    for (path, mode, rdev) in devices {
        if let Some(parent) = path.parent() {
            make_dirs(parent)?;
        }
        let kind = SFlag::from_bits_truncate(mode & libc::S_IFMT);
        match mknod(path, kind, Mode::from_bits_truncate(mode & 0o7777), *rdev) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Every device node below `/dev` of the node, but for those a container has its own of.
fn host_devices(dir: &Path, depth: usize, found: &mut Vec<(PathBuf, u32, u64)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        let own =
            ["pts", "shm", "mqueue", "console", "ptmx", "fd"].iter().any(|n| depth == 0 && entry.file_name() == *n);
        if own || found.len() > 4096 {
            continue;
        }
        if kind.is_dir() && depth < 4 {
            host_devices(&path, depth + 1, found);
        } else if (kind.is_char_device() || kind.is_block_device())
            && let Ok(meta) = entry.metadata()
        {
            found.push((path, meta.mode(), meta.rdev()));
        }
    }
}

fn make_dirs(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes what a mount needs to sit on.
fn make_target(path: &Path, is_dir: bool) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Err(_) => {}
    }
    if is_dir {
        return make_dirs(path);
    }
    let create = |p: &Path| -> io::Result<()> {
        if let Some(parent) = p.parent() {
            make_dirs(parent)?;
        }
        use std::os::unix::fs::OpenOptionsExt;
        fs::File::options().create(true).append(true).mode(0o644).open(p).map(drop)
    };
    create(path).or_else(|e| {
        // A link to a file that is not there (yet), such as /etc/resolv.conf of some distributions.
        let to = fs::read_link(path).map_err(|_| e)?;
        create(&path.parent().unwrap_or(Path::new("/")).join(to))?;
        create(path)
    })
}

/// `path` inside `root`, as the kernel resolves it with `root` as `/`.
fn within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path leaves the image"));
    }
    let dir = fs::File::open(root)?;
    let how = nix::fcntl::OpenHow::new()
        .flags(nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_CLOEXEC)
        .resolve(nix::fcntl::ResolveFlag::RESOLVE_IN_ROOT);
    let fd = nix::fcntl::openat2(&dir, path, how)?;
    fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
}
