//! Descriptors that tokio watches.
#![expect(unsafe_code, reason = "tokio asks for a promise that the descriptor stays open, which its type keeps")]

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor, made non-blocking, with the current runtime.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    set_nonblocking(&fd)?;
    // SAFETY: an OwnedFd is open until dropped and has one number for life; the AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}

/// Sets `O_NONBLOCK`.
pub fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
