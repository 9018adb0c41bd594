//! The child between its clone and its exec. It shares the bridge's memory: system calls over prepared data, nothing
//! else — no allocation, no locks, no errno, no panics, no destructors.
#![expect(unsafe_code, reason = "nothing but system calls")]

use std::{
    ffi::{CStr, CString, c_void},
    os::fd::RawFd,
    ptr,
};

use libc::c_long;

use crate::sys::raw::{addr, exit, int, syscall};

/// Descriptor number the child keeps its control socket at.
const CTL: RawFd = 3;
/// The file in which it notes that it was released.
const MARK: RawFd = 4;
/// And the old root, while there is one.
const OLD_ROOT: RawFd = 5;
/// And the user namespace to join.
const USER_NS: RawFd = 6;

/// Where the child stood when something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Writing itself into its cgroups.
    Cgroup = 1,
    /// Setting up stdin, stdout and stderr.
    Stdio,
    /// A new session and its terminal.
    Terminal,
    /// A new cgroup namespace.
    CgroupNamespace,
    /// Mounting `/proc` and what hides parts of it.
    Mounts,
    /// Joining the Pod's user namespace.
    UserNamespace,
    /// Resource limits.
    Rlimits,
    /// The working directory.
    Chdir,
    /// Seccomp.
    Seccomp,
    /// User, groups, capabilities.
    Identity,
    /// The exec itself.
    Exec,
}

impl Step {
    pub(crate) fn of(n: u8) -> Option<Self> {
        use Step::{
            Cgroup, CgroupNamespace, Chdir, Exec, Identity, Mounts, Rlimits, Seccomp, Stdio, Terminal, UserNamespace,
        };
        [Cgroup, Stdio, Terminal, CgroupNamespace, Mounts, UserNamespace, Rlimits, Chdir, Seccomp, Identity, Exec]
            .into_iter()
            .find(|s| *s as u8 == n)
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Cgroup => "enter the cgroup",
            Self::Stdio => "set up stdin, stdout and stderr",
            Self::Terminal => "set up the terminal",
            Self::CgroupNamespace => "make a cgroup namespace",
            Self::Mounts => "mount /proc",
            Self::UserNamespace => "join the user namespace",
            Self::Rlimits => "set resource limits",
            Self::Chdir => "change to the working directory",
            Self::Seccomp => "load the seccomp filter",
            Self::Identity => "change user, groups and capabilities",
            Self::Exec => "exec",
        }
    }
}

/// A mount the child makes in its own root.
#[derive(Debug)]
pub enum ChildMount {
    /// A new file system.
    Fs { kind: CString, target: CString, flags: u64, data: CString },
    /// Hides a path: `/dev/null` over a file, an empty read-only tmpfs over a directory. Absent is fine.
    Mask(CString),
    /// Makes a path read-only, with further `MS_*` flags. Absent is fine.
    ReadOnly(CString, u64),
}

/// A `prlimit64` argument.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Rlimit {
    pub soft: u64,
    pub hard: u64,
}

/// Everything the child needs, laid out beforehand.
#[derive(Debug)]
pub struct Plan {
    /// Control socket; its other end is the coordinator's.
    pub ctl: RawFd,
    /// Gets one byte when the word to go on has come: what ends without it has run nothing.
    pub mark: Option<RawFd>,
    /// v1 `tasks` files to write `0` into.
    pub tasks: Vec<RawFd>,
    /// stdin, stdout, stderr.
    pub stdio: [RawFd; 3],
    /// stdin is a terminal that becomes the controlling one.
    pub tty: bool,
    pub new_cgroup_ns: bool,
    pub mounts: Vec<ChildMount>,
    /// The node's root, still mounted over ours: to be let go once the mounts are made.
    pub old_root: Option<RawFd>,
    /// Joined right before the process becomes its user, whose ids are those of this namespace.
    pub user_ns: Option<RawFd>,
    pub rlimits: Vec<(i32, Rlimit)>,
    pub cwd: CString,
    pub bounding: u64,
    pub caps: u64,
    pub no_new_privs: bool,
    pub seccomp: Vec<libc::sock_filter>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Leave user, groups and capabilities as they are (the pause process).
    pub keep_identity: bool,
    /// Signals to set back to their defaults, bit n-1 = signal n.
    pub default_signals: u64,
    /// Reap children without waiting for them (a pause process that is the first of its pid namespace).
    pub ignore_children: bool,
    /// Candidates for the executable, in the order of `$PATH`.
    pub programs: Vec<CString>,
    pub argv: Vec<*const libc::c_char>,
    pub envp: Vec<*const libc::c_char>,
    /// Owns what `argv` and `envp` point to.
    pub _strings: Vec<CString>,
}

// SAFETY: the pointers lead into `_strings`, which moves with them and is never changed.
unsafe impl Send for Plan {}

/// The first function of the child; `arg` is a `*const Plan`.
pub extern "C" fn main(arg: *mut c_void) -> ! {
    // SAFETY: the builder passes a Plan that it keeps alive while it waits for our exec or end (CLONE_VFORK).
    let plan = unsafe { &*arg.cast::<Plan>() };
    // SAFETY: only system calls over the plan's data, as the module promises.
    unsafe {
        let mut ctl = plan.ctl;
        let (step, errno) = run(plan, &mut ctl);
        let report = [1u8, step as u8, errno.to_le_bytes()[0], errno.to_le_bytes()[1]];
        syscall(libc::SYS_sendto, [int(ctl), addr(report.as_ptr()), report.len(), int(libc::MSG_NOSIGNAL), 0, 0]);
    }
    exit(127)
}

/// A call whose failure ends the child.
macro_rules! must {
    ($step:expr, $nr:expr, $($arg:expr),* $(,)?) => {{
        let r = sys($nr, &[$($arg),*]);
        if r < 0 {
            return ($step, i32::try_from(-r).unwrap_or(libc::EIO));
        }
        r
    }};
}

#[inline(always)]
unsafe fn sys(nr: c_long, args: &[usize]) -> isize {
    let mut a = [0; 6];
    let mut i = 0;
    while i < args.len() && i < 6 {
        a[i] = args[i];
        i += 1;
    }
    // SAFETY: the callers pass what the call wants.
    unsafe { syscall(nr, a) }
}

/// Comes back only when something failed.
unsafe fn run(plan: &Plan, ctl: &mut RawFd) -> (Step, i32) {
    // SAFETY: see the module's promise; every pointer leads into the plan or is a literal.
    unsafe {
        for fd in &plan.tasks {
            must!(Step::Cgroup, libc::SYS_write, int(*fd), addr(c"0".as_ptr()), 1);
        }
        for (at, fd) in plan.stdio.iter().enumerate() {
            must!(Step::Stdio, libc::SYS_dup3, int(*fd), at, 0);
        }
        must!(Step::Stdio, libc::SYS_dup3, int(*ctl), int(CTL), int(libc::O_CLOEXEC));
        *ctl = CTL;
        // From here no descriptor of the bridge is open in us, above all no other child's control socket.
        for (fd, to) in [(plan.mark, MARK), (plan.old_root, OLD_ROOT), (plan.user_ns, USER_NS)] {
            if let Some(fd) = fd {
                must!(Step::Stdio, libc::SYS_dup3, int(fd), int(to), int(libc::O_CLOEXEC));
            } else {
                sys(libc::SYS_close, &[int(to)]);
            }
        }
        must!(Step::Stdio, libc::SYS_close_range, 7, u32::MAX as usize, 0);

        // Ready: from here on the coordinator writes us down, while we build what nobody sees yet.
        must!(Step::Stdio, libc::SYS_sendto, int(CTL), addr(c"r".as_ptr()), 1, int(libc::MSG_NOSIGNAL), 0, 0);

        must!(Step::Terminal, libc::SYS_setsid,);
        if plan.tty {
            must!(Step::Terminal, libc::SYS_ioctl, 0, libc::TIOCSCTTY as usize, 0);
        }
        sys(libc::SYS_umask, &[0o022]);
        if plan.new_cgroup_ns {
            must!(Step::CgroupNamespace, libc::SYS_unshare, int(libc::CLONE_NEWCGROUP));
        }
        for mount in &plan.mounts {
            if let Err(errno) = perform(mount) {
                return (Step::Mounts, errno);
            }
        }
        if plan.old_root.is_some() {
            must!(Step::Mounts, libc::SYS_fchdir, int(OLD_ROOT));
            must!(Step::Mounts, libc::SYS_umount2, addr(c".".as_ptr()), int(libc::MNT_DETACH));
            must!(Step::Mounts, libc::SYS_chdir, addr(c"/".as_ptr()));
            must!(Step::Mounts, libc::SYS_close, int(OLD_ROOT));
        }
        for (resource, limit) in &plan.rlimits {
            must!(Step::Rlimits, libc::SYS_prlimit64, 0, int(*resource), addr(limit), 0);
        }
        let chdir = sys(libc::SYS_chdir, &[addr(plan.cwd.as_ptr())]);
        // Wait for the word. The end of the file means that the bridge is gone.
        let mut word = 0u8;
        if sys(libc::SYS_read, &[int(CTL), addr(&raw mut word), 1]) != 1 {
            exit(127);
        }
        if plan.mark.is_some() {
            sys(libc::SYS_write, &[int(MARK), addr(c"1".as_ptr()), 1]);
        }
        if plan.user_ns.is_some() {
            must!(Step::UserNamespace, libc::SYS_setns, int(USER_NS), int(libc::CLONE_NEWUSER));
        }
        if !plan.keep_identity {
            // Without no_new_privs the filter needs CAP_SYS_ADMIN, so it goes in before the capabilities go.
            if !plan.no_new_privs
                && let Err(errno) = load(&plan.seccomp)
            {
                return (Step::Seccomp, errno);
            }
            if let Err(errno) = become_user(plan) {
                return (Step::Identity, errno);
            }
        }
        // As root it may have failed where the user may enter (a network file system), so try again.
        if chdir < 0 {
            must!(Step::Chdir, libc::SYS_chdir, addr(plan.cwd.as_ptr()));
        }
        if plan.no_new_privs {
            must!(Step::Identity, libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0);
            if let Err(errno) = load(&plan.seccomp) {
                return (Step::Seccomp, errno);
            }
        }
        default_signals(plan.default_signals, plan.ignore_children);
        let mut errno = libc::ENOENT;
        for program in &plan.programs {
            let r =
                sys(libc::SYS_execve, &[addr(program.as_ptr()), addr(plan.argv.as_ptr()), addr(plan.envp.as_ptr())]);
            let failed = i32::try_from(-r).unwrap_or(libc::EIO);
            // A candidate that is not there gives way to the next; one that is there but cannot run is the answer.
            if failed != libc::ENOENT && failed != libc::ENOTDIR && errno != libc::EACCES {
                errno = failed;
                if failed != libc::EACCES {
                    break;
                }
            }
        }
        (Step::Exec, errno)
    }
}

unsafe fn mount(source: &CStr, target: &CStr, kind: Option<&CStr>, flags: u64, data: Option<&CStr>) -> isize {
    let or_null = |s: Option<&CStr>| s.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: C strings of the plan.
    unsafe {
        sys(
            libc::SYS_mount,
            &[addr(source.as_ptr()), addr(target.as_ptr()), addr(or_null(kind)), flags as usize, addr(or_null(data))],
        )
    }
}

unsafe fn perform(what: &ChildMount) -> Result<(), i32> {
    let check = |r: isize| if r < 0 { Err(i32::try_from(-r).unwrap_or(libc::EIO)) } else { Ok(()) };
    let absent_is_fine = |r: Result<(), i32>| if matches!(r, Err(libc::ENOENT | libc::ENOTDIR)) { Ok(()) } else { r };
    // SAFETY: C strings of the plan, or literals.
    unsafe {
        match what {
            ChildMount::Fs { kind, target, flags, data } => check(mount(kind, target, Some(kind), *flags, Some(data))),
            ChildMount::Mask(path) => match check(mount(c"/dev/null", path, None, libc::MS_BIND, None)) {
                Err(libc::ENOTDIR) => {
                    absent_is_fine(check(mount(c"tmpfs", path, Some(c"tmpfs"), libc::MS_RDONLY, Some(c"size=0k"))))
                }
                other => absent_is_fine(other),
            },
            ChildMount::ReadOnly(path, flags) => {
                let bound = check(mount(path, path, None, libc::MS_BIND | libc::MS_REC, None));
                if bound.is_err() {
                    return absent_is_fine(bound);
                }
                check(mount(c"", path, None, libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY | flags, None))
            }
        }
    }
}

unsafe fn become_user(plan: &Plan) -> Result<(), i32> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let check = |r: isize| if r < 0 { Err(i32::try_from(-r).unwrap_or(libc::EIO)) } else { Ok(()) };
    // SAFETY: numbers, and structs of the kernel's layout on our stack.
    unsafe {
        for cap in 0..64u64 {
            if plan.bounding & (1 << cap) == 0 {
                let r = sys(libc::SYS_prctl, &[libc::PR_CAPBSET_DROP as usize, cap as usize, 0, 0, 0]);
                if r == -(libc::EINVAL as isize) {
                    break; // Past the last capability this kernel knows.
                }
                check(r)?;
            }
        }
        check(sys(libc::SYS_prctl, &[libc::PR_SET_KEEPCAPS as usize, 1, 0, 0, 0]))?;
        check(sys(libc::SYS_setgroups, &[plan.groups.len(), addr(plan.groups.as_ptr())]))?;
        let (gid, uid) = (plan.gid as usize, plan.uid as usize);
        check(sys(libc::SYS_setresgid, &[gid, gid, gid]))?;
        check(sys(libc::SYS_setresuid, &[uid, uid, uid]))?;
        check(sys(libc::SYS_prctl, &[libc::PR_SET_KEEPCAPS as usize, 0, 0, 0, 0]))?;
        let header = Header { version: 0x2008_0522, pid: 0 };
        let half = |n: u64| n as u32;
        let set = |n: u32| Data { effective: n, permitted: n, inheritable: 0 };
        let data = [set(half(plan.caps)), set(half(plan.caps >> 32))];
        check(sys(libc::SYS_capset, &[addr(&raw const header), addr(data.as_ptr())]))
    }
}

unsafe fn load(filter: &[libc::sock_filter]) -> Result<(), i32> {
    if filter.is_empty() {
        return Ok(());
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program lives through the call; the kernel copies it.
    let r = unsafe { sys(libc::SYS_seccomp, &[libc::SECCOMP_SET_MODE_FILTER as usize, 0, addr(&raw const program)]) };
    if r < 0 { Err(i32::try_from(-r).unwrap_or(libc::EIO)) } else { Ok(()) }
}

/// Handlers are at their defaults already (`CLONE_CLEAR_SIGHAND`); what is left is what was ignored, and the mask.
unsafe fn default_signals(ignored: u64, ignore_children: bool) {
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    let default = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let ignore = Action { handler: 1, flags: 0, restorer: 0, mask: 0 };
    let none = 0u64;
    // SAFETY: structs of the kernel's layout on our stack.
    unsafe {
        for signal in 1..=64 {
            if ignored & (1 << (signal - 1)) != 0 {
                sys(libc::SYS_rt_sigaction, &[signal, addr(&raw const default), 0, 8]);
            }
        }
        if ignore_children {
            sys(libc::SYS_rt_sigaction, &[libc::SIGCHLD as usize, addr(&raw const ignore), 0, 8]);
        }
        sys(libc::SYS_rt_sigprocmask, &[libc::SIG_SETMASK as usize, addr(&raw const none), 0, 8]);
    }
}
