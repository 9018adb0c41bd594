//! Packets with descriptors over a `SOCK_SEQPACKET` socket.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::Path,
};

use nix::{
    cmsg_space,
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind,
        connect, listen, recvmsg, sendmsg, socket,
    },
};

/// Longest packet.
pub const MAX_PACKET: usize = 64 << 10;
/// Most descriptors in one packet.
pub const MAX_FDS: usize = 8;

/// Longest path a socket address holds, without the final zero: `sun_path` of unix(7).
const MAX_SUN_PATH: usize = 107;

/// Listens at `path`, in place of whatever was there. Non-blocking, close-on-exec.
///
/// # Errors
/// What the kernel refuses.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let _ = std::fs::remove_file(path);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    with_address(path, |address| Ok(bind(listener.as_raw_fd(), address)?))?;
    listen(&listener, Backlog::new(64)?)?;
    Ok(listener)
}

/// Connects to who listens at `path`. Blocking, close-on-exec.
///
/// # Errors
/// When nobody listens.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let client = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    with_address(path, |address| Ok(connect(client.as_raw_fd(), address)?))?;
    Ok(client)
}

/// A path that is too long for an address is reached through a descriptor of its directory: state directories may lie
/// as deep as their owner likes.
fn with_address(path: &Path, act: impl FnOnce(&UnixAddr) -> io::Result<()>) -> io::Result<()> {
    if path.as_os_str().as_bytes().len() <= MAX_SUN_PATH {
        return act(&UnixAddr::new(path)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let dir = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
    act(&UnixAddr::new(&Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))?)
}

/// Sends one packet. `WouldBlock` on a non-blocking socket whose peer does not read.
pub fn send_packet(socket: &impl AsRawFd, data: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(data)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one packet into `buffer`; `None` at the end of the connection. Descriptors are close-on-exec.
#[expect(unsafe_code, reason = "received descriptors arrive as numbers")]
pub fn recv_packet<'b>(socket: &impl AsRawFd, buffer: &'b mut [u8]) -> io::Result<Option<(&'b [u8], Vec<OwnedFd>)>> {
    let mut space = cmsg_space!([RawFd; MAX_FDS]);
    let mut fds = Vec::new();
    let len = {
        let mut parts = [IoSliceMut::new(buffer)];
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(list) = control {
                // SAFETY: the kernel has just installed these descriptors for us.
                fds.extend(list.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        message.bytes
    };
    Ok((len > 0).then(|| (&buffer[..len], fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_may_lie_deeper_than_an_address_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a".repeat(100)).join("b".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        for path in [dir.path().join("short.sock"), deep.join("long.sock")] {
            let _listener = listen_at(&path).unwrap();
            assert!(connect_to(&path).is_ok(), "{path:?}");
        }
        assert!(connect_to(&deep.join("nobody.sock")).is_err());
    }
}
