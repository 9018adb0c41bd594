//! Changes in a directory, by inotify.
#![expect(unsafe_code, reason = "inotify has no wrapper among the features in use")]

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::Duration,
};

use async_trait::async_trait;
use podlab_clock::Clock;
use tokio::io::{Interest, unix::AsyncFd};

use super::Changes;

/// What counts as a change: contents, names, and the directory itself.
const MASK: u32 = libc::IN_MODIFY
    | libc::IN_CLOSE_WRITE
    | libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF;

/// How long is waited when nothing can be watched, because the directory is not there or watches ran out.
const BLIND: Duration = Duration::from_millis(250);

/// A watched directory, or a clock in its place.
pub(super) struct Watch {
    clock: Clock,
    fd: Option<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// Begins to watch.
    pub(super) fn new(clock: Clock, dir: &Path) -> Self {
        let fd = open(dir).and_then(|fd| {
            // SAFETY: an OwnedFd is open until dropped and has one number for life; the AsyncFd owns it.
            unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
        });
        Self { clock, fd: fd.ok() }
    }
}

fn open(dir: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: takes flags, gives a descriptor or -1.
    let raw = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: `path` is a C string that lives through the call.
    if unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), MASK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

#[async_trait]
impl Changes for Watch {
    async fn next(&mut self, wait: Duration) {
        let Some(fd) = &self.fd else {
            self.clock.sleep(wait.min(BLIND)).await;
            return;
        };
        let Some(Ok(mut ready)) = self.clock.timeout(wait, fd.readable()).await else { return };
        // What happened does not matter, only that it did: everything queued is one change.
        let mut buffer = [0; 4096];
        loop {
            match ready.try_io(|fd| nix::unistd::read(fd.get_ref(), &mut buffer).map_err(io::Error::from)) {
                Ok(Ok(n)) if n > 0 => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_write_that_came_after_the_watch_began_wakes_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(Clock::real(), dir.path());
        std::fs::write(dir.path().join("a"), "x").unwrap();
        // Would wait for ever if the write were missed; the harness ends a test that hangs.
        watch.next(Duration::from_secs(3600)).await;
        let mut none = Watch::new(Clock::real(), &dir.path().join("absent"));
        none.next(Duration::from_millis(1)).await;
    }
}
