//! Making processes with namespaces: the one place of this crate that clones. Only called while this process has a
//! single thread, so that the child may go on like after any fork.
#![expect(unsafe_code, reason = "clone3 has no safe wrapper")]

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// Forks a child that starts in new namespaces (`CLONE_NEW…` flags) and runs `body`; its return value is the exit code.
/// Returns its pid in this process's namespace. The caller must be single-threaded.
pub(crate) fn spawn(namespaces: i32, body: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: all-zero is a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from(namespaces.cast_unsigned());
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork; the struct is valid for its size and outlives the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, std::mem::size_of::<libc::clone_args>()) };
    match pid {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the child without running the parent's exit handlers a second time.
            unsafe { libc::_exit(code) }
        }
        n if n > 0 => Ok(i32::try_from(n).unwrap_or(-1)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Points standard input at nothing and output at a log file.
pub(crate) fn redirect_stdio(log: &std::path::Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let null = std::fs::File::open("/dev/null")?;
    let out = std::fs::File::options().create(true).append(true).open(log)?;
    for (from, to) in [(null.as_raw_fd(), 0), (out.as_raw_fd(), 1), (out.as_raw_fd(), 2)] {
        // SAFETY: both are valid descriptors; dup2 replaces the target atomically.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A pidfd for a process that is no child of ours.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// Waits until the process of a pidfd has ended, at most `millis`; false when it has not.
pub(crate) fn wait_gone(pidfd: &OwnedFd, millis: u16) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(millis)).is_ok_and(|n| n > 0)
}
