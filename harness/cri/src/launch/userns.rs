//! User namespaces of Pods: made with the namespaces they own by a process that does nothing, joined by every process of
//! the Pod right before it becomes its user.
//!
//! Roots are built with the node's rights; what a Pod mounts is shifted by its namespace's mapping, so that its ids on disk
//! are those the Pod sees. Source: containerd docs/user-namespaces, k/k KEP-127.
#![expect(unsafe_code, reason = "clone3 and what its child does before it ends")]

use std::{
    ffi::c_void,
    fmt::Write as _,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use nix::sched::CloneFlags;

use crate::sys::raw::{self, CloneArgs, addr, exit, int, syscall};

/// One range of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// First id inside.
    pub container: u32,
    /// First id on the node.
    pub host: u32,
    /// How many.
    pub length: u32,
}

/// How a Pod's users and groups are called on the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdMaps {
    /// Users.
    pub uids: Vec<IdRange>,
    /// Groups.
    pub gids: Vec<IdRange>,
}

fn on_node(ranges: &[IdRange], id: u32) -> Option<u32> {
    let range = ranges.iter().find(|r| id >= r.container && id - r.container < r.length)?;
    range.host.checked_add(id - range.container)
}

fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().fold(String::new(), |mut text, r| {
        let _ = writeln!(text, "{} {} {}", r.container, r.host, r.length);
        text
    })
}

impl IdMaps {
    /// A user's id on the node.
    pub fn uid(&self, id: u32) -> Option<u32> {
        on_node(&self.uids, id)
    }

    /// A group's id on the node.
    pub fn gid(&self, id: u32) -> Option<u32> {
        on_node(&self.gids, id)
    }
}

/// A Pod's user namespace.
#[derive(Debug, Clone)]
pub struct UserNamespace {
    /// The namespace.
    pub fd: Arc<OwnedFd>,
    /// Its mapping.
    pub maps: IdMaps,
}

/// Namespaces that belong to a new user namespace.
#[derive(Debug)]
pub struct Owned {
    /// The user namespace.
    pub user: OwnedFd,
    /// Those that were asked for.
    pub others: Vec<(CloneFlags, OwnedFd)>,
}

/// What the holder gets: the pipe's two ends.
struct Ends {
    read: i32,
    write: i32,
}

/// The holder: closes everything but its pipe and waits for that to end.
extern "C" fn hold(arg: *mut c_void) -> ! {
    // SAFETY: our copy of what the parent passed.
    let ends = unsafe { &*arg.cast::<Ends>() };
    let (read, write) = (ends.read, ends.write);
    // SAFETY: system calls over numbers and a byte of our own stack.
    unsafe {
        syscall(libc::SYS_close, [int(write), 0, 0, 0, 0, 0]);
        if read > 0 {
            syscall(libc::SYS_close_range, [0, int(read - 1), 0, 0, 0, 0]);
        }
        syscall(libc::SYS_close_range, [int(read + 1), u32::MAX as usize, 0, 0, 0, 0]);
        let mut byte = 0u8;
        syscall(libc::SYS_read, [int(read), addr(&raw mut byte), 1, 0, 0, 0]);
    }
    exit(0)
}

/// Makes a user namespace with a mapping, and further namespaces that it owns. Blocks for a few milliseconds.
///
/// # Errors
/// The kernel's: there may be no more namespaces, or no right to this mapping.
pub fn make(maps: &IdMaps, others: CloneFlags) -> io::Result<Owned> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let ends = Ends { read: read.as_raw_fd(), write: write.as_raw_fd() };
    let mut stack = vec![0u128; 1024];
    let flags = others | CloneFlags::CLONE_NEWUSER;
    let args = CloneArgs {
        flags: u64::from(flags.bits().unsigned_abs()) | raw::CLONE_CLEAR_SIGHAND,
        stack: stack.as_mut_ptr() as u64,
        stack_size: size_of_val(stack.as_slice()) as u64,
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM the child works on a copy of our memory and only makes system calls.
    let pid = unsafe { raw::clone3(&args, hold, std::ptr::from_ref(&ends).cast_mut().cast::<c_void>()) };
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(-pid));
    }
    let made = collect(pid, maps, others);
    // Our end closed ends the holder.
    drop(write);
    let mut status = 0i32;
    // SAFETY: waits for our own child and writes one int.
    let _ = unsafe { raw::checked(libc::SYS_wait4, [int(pid), addr(&raw mut status), int(libc::__WALL), 0, 0, 0]) };
    made
}

fn collect(pid: i32, maps: &IdMaps, others: CloneFlags) -> io::Result<Owned> {
    fs::write(format!("/proc/{pid}/uid_map"), lines(&maps.uids))?;
    fs::write(format!("/proc/{pid}/gid_map"), lines(&maps.gids))?;
    let open = |name: &str| fs::File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from);
    let mut found = Vec::new();
    for (flag, name) in
        [(CloneFlags::CLONE_NEWNET, "net"), (CloneFlags::CLONE_NEWIPC, "ipc"), (CloneFlags::CLONE_NEWUTS, "uts")]
    {
        if others.contains(flag) {
            found.push((flag, open(name)?));
        }
    }
    Ok(Owned { user: open("user")?, others: found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shifted_inside_their_range_and_unknown_outside() {
        let range = IdRange { container: 0, host: 65536, length: 65536 };
        let maps = IdMaps { uids: vec![range], gids: vec![IdRange { container: 10, host: 100, length: 2 }] };
        assert_eq!((maps.uid(0), maps.uid(65535), maps.uid(65536)), (Some(65536), Some(131_071), None));
        assert_eq!((maps.gid(9), maps.gid(11), maps.gid(12)), (None, Some(101), None));
        assert_eq!(lines(&maps.gids), "10 100 2\n");
    }
}
