//! What `/proc` says about one process, and handles that cannot hit the wrong one after its pid was reused.
#![expect(unsafe_code, reason = "pidfd_open and pidfd_send_signal have no safe wrapper")]

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use super::raw;

/// A process by pid and start time (clock ticks since boot), which together are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    /// In the pid namespace of the bridge and its init.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl ProcessId {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, start: start_time(pid)? })
    }

    /// Whether that very process still runs (a zombie does not).
    pub fn alive(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        let state = fields(&stat).and_then(|mut f| f.next());
        !matches!(state, None | Some("Z" | "X" | "x")) && parse_start(&stat) == Some(self.start)
    }

    /// Whether that very process is there, be it a zombie.
    pub fn exists(&self) -> bool {
        start_time(self.pid).ok() == Some(self.start)
    }

    /// A pidfd of that very process; `NotFound` when it is gone.
    pub fn open(&self) -> io::Result<PidFd> {
        // SAFETY: pidfd_open takes two numbers.
        let fd = unsafe { raw::checked(libc::SYS_pidfd_open, [raw::int(self.pid), 0, 0, 0, 0, 0]) };
        let fd =
            fd.map_err(|e| if e.raw_os_error() == Some(libc::ESRCH) { io::ErrorKind::NotFound.into() } else { e })?;
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?) };
        if start_time(self.pid).ok() == Some(self.start) { Ok(PidFd(fd)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Sends a signal; a process that is gone is success.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match self.open().and_then(|fd| fd.signal(signal)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// A namespace of the process, by the name it has in `/proc/PID/ns`.
    pub fn namespace(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(fs::File::open(format!("/proc/{}/ns/{name}", self.pid))?.into())
    }
}

/// An open handle to one process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Sends a signal to exactly this process.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is ours; the other arguments are numbers and a null pointer.
        unsafe {
            raw::checked(libc::SYS_pidfd_send_signal, [raw::int(self.0.as_raw_fd()), raw::int(signal), 0, 0, 0, 0])
        }
        .map(drop)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Field 22 of `/proc/PID/stat`.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start(&stat).ok_or_else(|| io::Error::other("unreadable stat"))
}

/// The fields after the command, which may itself hold spaces and parentheses; the first is the state (field 3).
fn fields(stat: &str) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    stat.rfind(')').map(|at| stat[at + 1..].split_ascii_whitespace())
}

fn parse_start(stat: &str) -> Option<u64> {
    fields(stat)?.nth(19)?.parse().ok()
}

/// Whether this process lives in a user namespace of less than all ids: some privileges are then missing for good.
pub fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.is_empty() && map.split_ascii_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// Who opened the other end of a unix socket.
pub fn peer_pid(socket: &impl AsFd) -> io::Result<i32> {
    Ok(nix::sys::socket::getsockopt(&socket.as_fd(), nix::sys::socket::sockopt::PeerCredentials)?.pid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 2";
        assert_eq!(parse_start(stat), Some(4242));
        assert_eq!(fields(stat).and_then(|mut f| f.next()), Some("S"));
    }

    #[test]
    fn a_reused_pid_is_not_the_same_process() {
        let me = ProcessId::of(std::process::id().cast_signed()).unwrap();
        assert!(me.alive());
        let other = ProcessId { start: me.start + 1, ..me };
        assert!(!other.alive());
        assert_eq!(other.open().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
