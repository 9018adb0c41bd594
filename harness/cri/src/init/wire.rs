//! Packets with descriptors over a `SOCK_SEQPACKET` socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
};

/// Longest packet.
pub const MAX_PACKET: usize = 64 << 10;
/// Most descriptors in one packet.
pub const MAX_FDS: usize = 8;

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
