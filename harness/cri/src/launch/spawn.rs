//! Coordinator and builder.
#![expect(unsafe_code, reason = "clone3 over a prepared plan, ioctls of interfaces and terminals")]

use std::{
    ffi::{CString, c_void},
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::{
        signal::SigSet,
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
};

use super::{
    LaunchError, ProcessSpec, ResolvedProcess, RootfsSpec,
    child::{self, Plan, Step},
    userns::{self, IdMaps, UserNamespace},
};
use crate::{
    cgroup::Entry,
    init::dup_high,
    sys::{
        mount::{cpath, mount_fs},
        proc::ProcessId,
        raw::{self, CloneArgs},
        userdb::Identity,
    },
};

/// Which pid namespace a process gets.
#[derive(Debug, Default)]
pub enum PidMode {
    /// The bridge's (the node's).
    #[default]
    Node,
    /// A fresh one, in which it is the first process.
    New,
    /// An existing one.
    Join(OwnedFd),
}

/// Namespaces to join; `None` stays in the bridge's.
#[derive(Debug, Default)]
pub struct Namespaces {
    /// Network.
    pub net: Option<OwnedFd>,
    /// IPC.
    pub ipc: Option<OwnedFd>,
    /// Host name.
    pub uts: Option<OwnedFd>,
    /// Mounts: an exec joins the container's; a container gets its own.
    pub mnt: Option<OwnedFd>,
    /// Cgroup.
    pub cgroup: Option<OwnedFd>,
    /// Pids.
    pub pid: PidMode,
    /// Users: ids of the process are those of this namespace.
    pub user: Option<UserNamespace>,
}

/// What the root of the process is.
#[derive(Debug)]
pub enum Setup {
    /// Build one in a new mount namespace.
    Container(Box<RootfsSpec>),
    /// Join the mount namespace in [`Namespaces::mnt`].
    Exec,
}

/// Where the process reads and writes.
#[derive(Debug)]
pub enum Stdio {
    /// stdin, stdout, stderr.
    Fds([OwnedFd; 3]),
    /// A new terminal of the container; its master comes with [`Spawned`].
    Tty,
}

/// Limits the cgroup and opens it. Runs beside the building of the root.
pub type MakeEntry = Box<dyn FnOnce() -> Result<Entry, LaunchError> + Send>;

/// One process to start.
pub struct Job {
    /// Namespaces.
    pub namespaces: Namespaces,
    /// Root.
    pub setup: Setup,
    /// Command, user, rights.
    pub process: ProcessSpec,
    /// Cgroup.
    pub entry: MakeEntry,
    /// Streams.
    pub stdio: Stdio,
    /// Gets one byte when the process is released to run.
    pub mark: Option<OwnedFd>,
    /// Give it a cgroup namespace of its own.
    pub new_cgroup_ns: bool,
}

/// A started process.
#[derive(Debug)]
pub struct Spawned {
    /// Which.
    pub process: ProcessId,
    /// The terminal's master, when one was asked for.
    pub tty: Option<OwnedFd>,
    /// Who it runs as.
    pub identity: Identity,
}

struct Built {
    tty: Option<OwnedFd>,
    identity: Identity,
}

/// Starts a process. `ready` is called once the child exists and before it runs anything of the container: here its
/// pid is written down and registered; an error ends the child. Blocks; call it where blocking is fine.
///
/// # Errors
/// [`LaunchError`], for a command that cannot be executed too.
pub fn launch(mut job: Job, ready: impl FnOnce(&Spawned) -> Result<(), LaunchError>) -> Result<Spawned, LaunchError> {
    let (command, cwd) = (job.process.argv.first().cloned().unwrap_or_default(), job.process.cwd.clone());
    let oom_score_adj = job.process.oom_score_adj;
    let (built_tx, built_rx) = mpsc::channel();
    let (entry_tx, entry_rx) = mpsc::channel();
    let make_entry = std::mem::replace(&mut job.entry, Box::new(|| Err(LaunchError::Vanished)));
    let spawned = coordinate(
        "builder",
        move |ctl, pid| build_and_clone(job, ctl, pid, &built_tx, &entry_rx),
        // A builder that has failed takes no entry.
        || drop(entry_tx.send(make_entry())),
        |process| {
            let Built { tty, identity } = built_rx.try_recv().map_err(|_| LaunchError::Vanished)?;
            if let Some(adj) = oom_score_adj {
                set_oom_score_adj(process.pid, adj);
            }
            let spawned = Spawned { process, tty, identity };
            ready(&spawned)?;
            Ok(spawned)
        },
        &command,
        &cwd,
    );
    // A child that changed its user made our shared memory undumpable, and with it our own /proc files unreadable.
    let _ = nix::sys::prctl::set_dumpable(true);
    spawned
}

/// The conversation with one child, whatever it becomes.
fn coordinate<T>(
    name: &str,
    builder: impl FnOnce(OwnedFd, &AtomicI32) -> Result<(), LaunchError> + Send + 'static,
    meanwhile: impl FnOnce(),
    ready: impl FnOnce(ProcessId) -> Result<T, LaunchError>,
    command: &str,
    cwd: &str,
) -> Result<T, LaunchError> {
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|e| LaunchError::setup("make a socket pair")(e.into()))?;
    let pid = Arc::new(AtomicI32::new(0));
    let pid_of_child = Arc::clone(&pid);
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10);
    let thread = thread.spawn(move || builder(theirs, &pid_of_child)).map_err(LaunchError::setup("start a thread"))?;
    meanwhile();
    let conversation = || -> Result<T, LaunchError> {
        match receive(&ours) {
            Some(Report::Ready) => {}
            Some(Report::Failed(step, errno)) => return Err(LaunchError::of_child(step, errno, command, cwd)),
            None => return Err(LaunchError::Vanished),
        }
        let process = match ProcessId::of(pid.load(Ordering::Acquire)) {
            Ok(process) => process,
            // It has failed and is reaped already; it has said why.
            Err(gone) => {
                return Err(match receive(&ours) {
                    Some(Report::Failed(step, errno)) => LaunchError::of_child(step, errno, command, cwd),
                    _ => LaunchError::setup("find the new process")(gone),
                });
            }
        };
        let value = ready(process)?;
        // A child that has failed meanwhile does not hear this; its report waits below.
        let _ = nix::sys::socket::send(ours.as_raw_fd(), b"g", nix::sys::socket::MsgFlags::MSG_NOSIGNAL);
        match receive(&ours) {
            Some(Report::Failed(step, errno)) => Err(LaunchError::of_child(step, errno, command, cwd)),
            Some(Report::Ready) | None => Ok(value),
        }
    };
    let result = conversation();
    // Closing our end releases a child that still waits: it exits.
    drop(ours);
    let built = thread.join().unwrap_or(Err(LaunchError::Vanished));
    match (built, result) {
        (Err(e), _) | (Ok(()), Err(e)) => Err(e),
        (Ok(()), Ok(value)) => Ok(value),
    }
}

enum Report {
    Ready,
    Failed(Step, i32),
}

/// The next word of the child; `None` when its end is closed.
fn receive(socket: &OwnedFd) -> Option<Report> {
    let mut packet = [0u8; 8];
    loop {
        match nix::sys::socket::recv(socket.as_raw_fd(), &mut packet, nix::sys::socket::MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => {}
            Ok(1) => return Some(Report::Ready),
            Ok(4) => {
                return Step::of(packet[1])
                    .map(|s| Report::Failed(s, i32::from(u16::from_le_bytes([packet[2], packet[3]]))));
            }
            _ => return None,
        }
    }
}

fn sched(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> LaunchError {
    move |e| LaunchError::setup(what)(e.into())
}

/// The builder: everything up to the clone, and the wait for the child's exec.
fn build_and_clone(
    job: Job,
    ctl: OwnedFd,
    pid: &AtomicI32,
    built: &mpsc::Sender<Built>,
    entry: &mpsc::Receiver<Result<Entry, LaunchError>>,
) -> Result<(), LaunchError> {
    let Job { namespaces: ns, setup, process, stdio, mark, new_cgroup_ns, .. } = job;
    unshare(CloneFlags::CLONE_FS).map_err(sched("unshare file system attributes"))?;
    for (fd, flag, what) in [
        (&ns.ipc, CloneFlags::CLONE_NEWIPC, "join the IPC namespace"),
        (&ns.uts, CloneFlags::CLONE_NEWUTS, "join the UTS namespace"),
        (&ns.net, CloneFlags::CLONE_NEWNET, "join the network namespace"),
        (&ns.cgroup, CloneFlags::CLONE_NEWCGROUP, "join the cgroup namespace"),
        (&ns.mnt, CloneFlags::CLONE_NEWNS, "join the mount namespace"),
    ] {
        if let Some(fd) = fd {
            setns(fd.as_fd(), flag).map_err(sched(what))?;
        }
    }
    let (mounts, old_root) = match &setup {
        Setup::Container(root) => {
            unshare(CloneFlags::CLONE_NEWNS).map_err(sched("make a mount namespace"))?;
            root.build()?
        }
        Setup::Exec => (Vec::new(), None),
    };
    let old_root =
        old_root.map(|fd| dup_high(&fd)).transpose().map_err(LaunchError::setup("duplicate a descriptor"))?;
    let resolved = process.resolve(Path::new("/"))?;
    let (uid_on_node, _) = ids_on_node(&resolved.identity, ns.user.as_ref())?;
    let (stdio, tty) = match stdio {
        Stdio::Fds(fds) => (fds, None),
        Stdio::Tty => {
            let console = matches!(setup, Setup::Container(_));
            let (master, slave) = open_tty(uid_on_node, console).map_err(LaunchError::setup("open a terminal"))?;
            let copy = || slave.try_clone().map_err(LaunchError::setup("open a terminal"));
            ([copy()?, copy()?, copy()?], Some(master))
        }
    };
    if matches!(setup, Setup::Container(_)) && !process.cwd.is_empty() {
        // Made as root when absent, as containerd does; whether the user may enter it is found out by entering.
        let made = !Path::new(&process.cwd).exists() && fs::create_dir_all(&process.cwd).is_ok();
        if let (true, Some(user)) = (made, &ns.user) {
            let _ = std::os::unix::fs::chown(&process.cwd, user.maps.uid(0), user.maps.gid(0));
        }
    }
    let mut high = Vec::new();
    for fd in &stdio {
        // So that the user can open /dev/stdout again; only for pipes, not for the node's /dev/null.
        if uid_on_node != 0 && nix::sys::stat::fstat(fd).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFIFO) {
            let _ = nix::unistd::fchown(fd, Some(nix::unistd::Uid::from_raw(uid_on_node)), None);
        }
        high.push(dup_high(fd).map_err(LaunchError::setup("duplicate a descriptor"))?);
    }
    let mark = mark.map(|fd| dup_high(&fd)).transpose().map_err(LaunchError::setup("duplicate a descriptor"))?;
    let user_ns = ns.user.as_ref().map(|u| dup_high(&*u.fd)).transpose();
    let user_ns = user_ns.map_err(LaunchError::setup("duplicate a descriptor"))?;
    let ctl_high = dup_high(&ctl).map_err(LaunchError::setup("duplicate a descriptor"))?;
    let stdio_fds = [high[0].as_raw_fd(), high[1].as_raw_fd(), high[2].as_raw_fd()];
    let mut plan = process.plan(&resolved, ctl_high.as_raw_fd(), stdio_fds)?;
    plan.mark = mark.as_ref().map(AsRawFd::as_raw_fd);
    plan.mounts = mounts;
    plan.old_root = old_root.as_ref().map(AsRawFd::as_raw_fd);
    plan.user_ns = user_ns.as_ref().map(AsRawFd::as_raw_fd);
    plan.new_cgroup_ns = new_cgroup_ns;
    plan.tty = tty.is_some();
    let entry = entry.recv().map_err(|_| LaunchError::Vanished)??;
    if let Entry::Tasks(fds) = &entry {
        plan.tasks = fds.iter().map(AsRawFd::as_raw_fd).collect();
    }
    let mut flags = 0u64;
    match &ns.pid {
        PidMode::Node => {}
        PidMode::New => flags |= u64::from(libc::CLONE_NEWPID.unsigned_abs()),
        PidMode::Join(fd) => setns(fd.as_fd(), CloneFlags::CLONE_NEWPID).map_err(sched("join the pid namespace"))?,
    }
    let _ = built.send(Built { tty, identity: resolved.identity });
    let cgroup = match &entry {
        Entry::Directory(fd) => Some(fd),
        Entry::Tasks(_) => None,
    };
    clone_child(&plan, flags, cgroup, pid)
}

/// What the node calls the process's user and group.
fn ids_on_node(who: &Identity, namespace: Option<&UserNamespace>) -> Result<(u32, u32), LaunchError> {
    let Some(namespace) = namespace else { return Ok((who.uid, who.gid)) };
    let ids = namespace.maps.uid(who.uid).zip(namespace.maps.gid(who.gid));
    ids.ok_or_else(|| {
        LaunchError::Invalid(format!("user {}:{} is not mapped in the Pod's user namespace", who.uid, who.gid))
    })
}

/// Clones a child of our parent that shares our memory until its exec; returns after that exec or the child's end.
fn clone_child(plan: &Plan, flags: u64, cgroup: Option<&OwnedFd>, pid: &AtomicI32) -> Result<(), LaunchError> {
    let mut stack = vec![0u128; 4096];
    SigSet::all().thread_block().map_err(sched("block signals"))?;
    let base = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID;
    let mut args = CloneArgs {
        flags: flags | u64::from(base.unsigned_abs()) | raw::CLONE_CLEAR_SIGHAND,
        parent_tid: pid.as_ptr() as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: size_of_val(stack.as_slice()) as u64,
        ..CloneArgs::default()
    };
    if let Some(fd) = cgroup {
        args.flags |= raw::CLONE_INTO_CGROUP;
        args.cgroup = u64::from(fd.as_raw_fd().unsigned_abs());
    }
    // SAFETY: the child has its own stack, runs `child::main`, which keeps to system calls and never returns; plan and
    // stack outlive it because CLONE_VFORK keeps this thread here until it has exec'ed or ended.
    let r = unsafe { raw::clone3(&args, child::main, std::ptr::from_ref(plan).cast_mut().cast::<c_void>()) };
    if r < 0 {
        Err(LaunchError::setup("clone a process")(io::Error::from_raw_os_error(i32::try_from(-r).unwrap_or(libc::EIO))))
    } else {
        Ok(())
    }
}

impl ProcessSpec {
    fn plan(&self, resolved: &ResolvedProcess, ctl: i32, stdio: [i32; 3]) -> Result<Plan, LaunchError> {
        let c = |s: &str| CString::new(s).map_err(|_| LaunchError::Invalid(format!("{s:?} holds a zero byte")));
        let args: Vec<CString> = self.argv.iter().map(|a| c(a)).collect::<Result<_, _>>()?;
        let env: Vec<CString> = resolved.env.iter().map(|e| c(e)).collect::<Result<_, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Plan {
            ctl,
            mark: None,
            tasks: Vec::new(),
            stdio,
            tty: false,
            new_cgroup_ns: false,
            mounts: Vec::new(),
            old_root: None,
            user_ns: None,
            rlimits: self.limits(),
            cwd: c(if self.cwd.is_empty() { "/" } else { &self.cwd })?,
            bounding: self.caps.0,
            caps: self.caps.0,
            no_new_privs: self.no_new_privs,
            seccomp: self.seccomp.as_ref().map(|f| f.program().to_vec()).unwrap_or_default(),
            uid: resolved.identity.uid,
            gid: resolved.identity.gid,
            groups: resolved.identity.groups.clone(),
            keep_identity: false,
            default_signals: ignored_signals(),
            ignore_children: false,
            programs: resolved.programs.iter().map(|p| c(p)).collect::<Result<_, _>>()?,
            argv: pointers(&args),
            envp: pointers(&env),
            _strings: args.into_iter().chain(env).collect(),
        })
    }
}

/// What this process ignores, and would bequeath: SIGPIPE by Rust's start-up, others when somebody started it so.
fn ignored_signals() -> u64 {
    static IGNORED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *IGNORED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hex = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).map(str::trim);
        hex.and_then(|h| u64::from_str_radix(h, 16).ok()).unwrap_or(u64::MAX)
    })
}

/// Lowering needs `CAP_SYS_RESOURCE`; without it the closest value that is allowed is the one it has.
fn set_oom_score_adj(pid: i32, adj: i32) {
    if let Err(error) = fs::write(format!("/proc/{pid}/oom_score_adj"), adj.to_string()) {
        tracing::debug!(pid, adj, %error, "oom_score_adj stays as inherited");
    }
}

/// A terminal of the container whose root is ours: (master, slave). With `console`, also at `/dev/console`.
fn open_tty(owner: u32, console: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let master: OwnedFd = fs::File::options().read(true).write(true).open("/dev/pts/ptmx")?.into();
    let (mut unlock, mut number) = (0i32, 0i32);
    // SAFETY: both ioctls read or write one int.
    unsafe {
        raw::checked(
            libc::SYS_ioctl,
            [raw::int(master.as_raw_fd()), libc::TIOCSPTLCK as usize, raw::addr(&raw mut unlock), 0, 0, 0],
        )?;
        raw::checked(
            libc::SYS_ioctl,
            [raw::int(master.as_raw_fd()), libc::TIOCGPTN as usize, raw::addr(&raw mut number), 0, 0, 0],
        )?;
    }
    let path = format!("/dev/pts/{number}");
    let slave: OwnedFd = {
        use std::os::unix::fs::OpenOptionsExt;
        fs::File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(&path)?.into()
    };
    std::os::unix::fs::chown(&path, Some(owner), None)?;
    if console {
        fs::File::options().create(true).append(true).open("/dev/console")?;
        nix::mount::mount(
            Some(path.as_str()),
            "/dev/console",
            None::<&str>,
            nix::mount::MsFlags::MS_BIND,
            None::<&str>,
        )?;
    }
    Ok((master, slave))
}

/// A sandbox to start: namespaces that its containers share, held by a process that does nothing.
#[derive(Debug, Clone, Default)]
pub struct SandboxSpec {
    /// The pause program.
    pub pause: PathBuf,
    /// A new network namespace, kept at this path.
    pub netns: Option<PathBuf>,
    /// A new IPC namespace.
    pub new_ipc: bool,
    /// A new UTS namespace with this host name.
    pub hostname: Option<String>,
    /// A pid namespace for all containers, with the pause process as its first.
    pub shared_pid: bool,
    /// Kernel parameters of the new namespaces.
    pub sysctls: Vec<(String, String)>,
    /// A user namespace that owns the others.
    pub users: Option<IdMaps>,
}

/// Starts a sandbox's process. `ready` as in [`launch`].
///
/// # Errors
/// [`LaunchError`]; the network namespace's path is removed again.
pub fn launch_sandbox(
    spec: SandboxSpec,
    ready: impl FnOnce(ProcessId) -> Result<(), LaunchError>,
) -> Result<ProcessId, LaunchError> {
    let netns = spec.netns.clone();
    let result = coordinate(
        "sandbox",
        move |ctl, pid| build_sandbox(&spec, &ctl, pid),
        || {},
        |process| {
            set_oom_score_adj(process.pid, -998);
            ready(process).map(|()| process)
        },
        "/pause",
        "/",
    );
    if result.is_err()
        && let Some(path) = netns
    {
        remove_netns(&path);
    }
    result
}

/// Lets a kept network namespace go. Absent is fine.
pub fn remove_netns(path: &Path) {
    let _ = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

fn build_sandbox(spec: &SandboxSpec, ctl: &OwnedFd, pid: &AtomicI32) -> Result<(), LaunchError> {
    let mut new = CloneFlags::empty();
    new.set(CloneFlags::CLONE_NEWNET, spec.netns.is_some());
    new.set(CloneFlags::CLONE_NEWIPC, spec.new_ipc);
    new.set(CloneFlags::CLONE_NEWUTS, spec.hostname.is_some());
    let user_ns = match &spec.users {
        None => {
            unshare(new).map_err(sched("make the sandbox's namespaces"))?;
            None
        }
        Some(maps) => {
            let owned = userns::make(maps, new).map_err(LaunchError::setup("make the Pod's user namespace"))?;
            for (flag, fd) in &owned.others {
                setns(fd.as_fd(), *flag).map_err(sched("join the sandbox's namespaces"))?;
            }
            Some(dup_high(&owned.user).map_err(LaunchError::setup("duplicate a descriptor"))?)
        }
    };
    if let Some(path) = &spec.netns {
        let keep = || -> io::Result<()> {
            fs::File::create_new(path)?;
            mount_fs("none", "/proc/thread-self/ns/net", path, libc::MS_BIND, "")?;
            loopback_up()
        };
        keep().map_err(LaunchError::setup(format!("keep the network namespace at {}", path.display())))?;
    }
    if let Some(name) = &spec.hostname {
        nix::unistd::sethostname(name).map_err(sched("set the host name"))?;
    }
    for (key, value) in &spec.sysctls {
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        fs::write(&file, value).map_err(LaunchError::setup(format!("set sysctl {key}={value}")))?;
    }
    let null: OwnedFd = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(LaunchError::setup("open /dev/null"))?
        .into();
    let null = dup_high(&null).map_err(LaunchError::setup("duplicate a descriptor"))?;
    let ctl = dup_high(ctl).map_err(LaunchError::setup("duplicate a descriptor"))?;
    let resolved = ResolvedProcess { identity: Identity::default(), env: Vec::new(), programs: Vec::new() };
    let process = ProcessSpec { argv: vec!["/pause".into()], ..ProcessSpec::default() };
    let mut plan = process.plan(&resolved, ctl.as_raw_fd(), [null.as_raw_fd(); 3])?;
    plan.keep_identity = true;
    plan.user_ns = user_ns.as_ref().map(AsRawFd::as_raw_fd);
    plan.no_new_privs = true;
    plan.ignore_children = true;
    plan.programs = vec![cpath(&spec.pause).map_err(LaunchError::setup("name the pause program"))?];
    let flags = if spec.shared_pid { libc::CLONE_NEWPID.unsigned_abs().into() } else { 0 };
    clone_child(&plan, flags, None, pid)
}

/// Brings up `lo` in the calling thread's network namespace.
fn loopback_up() -> io::Result<()> {
    let socket = nix::sys::socket::socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut request: libc::ifreq = unsafe_zeroed();
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(i16::MAX);
    // SAFETY: SIOCSIFFLAGS reads the struct it is given.
    unsafe {
        raw::checked(
            libc::SYS_ioctl,
            [raw::int(socket.as_raw_fd()), libc::SIOCSIFFLAGS as usize, raw::addr(&raw const request), 0, 0, 0],
        )
    }
    .map(drop)
}

fn unsafe_zeroed() -> libc::ifreq {
    // SAFETY: plain old data for which zero is a value.
    unsafe { std::mem::zeroed() }
}
