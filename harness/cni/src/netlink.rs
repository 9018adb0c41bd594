//! A small rtnetlink client: links, addresses, routes; one blocking socket that stays in the namespace it was opened in.
//!
//! Each request waits for the kernel's acknowledgement, so an `Ok` means done. A veth pair is made with its peer already
//! inside the target namespace: creating it here and moving it costs an RCU grace period of tens of milliseconds.

pub mod message;
mod ops;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use message::{Message, Received};
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket},
};
pub use ops::{Link, RouteSpec};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_REPLACE: u16 = 0x100;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused it.
    #[error("{what}: {errno}")]
    Refused {
        /// Which request.
        what: String,
        /// The kernel's code.
        errno: Errno,
    },
    /// The socket failed.
    #[error("netlink socket")]
    Socket(#[source] Errno),
    /// A namespace could not be opened or entered.
    #[error("namespace {path}")]
    Namespace {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no such link.
    #[error("link {0:?} not found")]
    NoLink(String),
}

impl NetlinkError {
    /// The kernel's code, if the kernel refused the request.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: AtomicU32,
}

impl Netlink {
    /// Opens an rtnetlink socket in the current namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_protocol(SockProtocol::NetlinkRoute)
    }

    /// Opens a socket of a protocol in the current namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open_protocol(protocol: SockProtocol) -> Result<Self, NetlinkError> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(NetlinkError::Socket)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(NetlinkError::Socket)?;
        Ok(Self { fd, sequence: AtomicU32::new(1) })
    }

    /// Opens an rtnetlink socket inside the namespace at `path`; the socket stays there.
    ///
    /// # Errors
    /// [`NetlinkError::Namespace`] or [`NetlinkError::Socket`].
    pub fn open_in(path: &Path) -> Result<Self, NetlinkError> {
        in_netns(path, Self::open)?
    }

    /// Sends one request and waits for its acknowledgement or the end of its dump.
    pub(crate) fn request(&self, what: &str, message: Message) -> Result<Vec<Received>, NetlinkError> {
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        self.receive(what, sequence)
    }

    pub(crate) fn next_sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        let to = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), bytes, &to, MsgFlags::empty()).map(drop).map_err(NetlinkError::Socket)
    }

    /// Collects answers until the message with `sequence` is acknowledged, refused or its dump is done.
    pub(crate) fn receive(&self, what: &str, sequence: u32) -> Result<Vec<Received>, NetlinkError> {
        let mut out = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = match recv(self.fd.as_fd().as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(NetlinkError::Socket)?,
            };
            for m in message::split(&buffer[..n]) {
                match m.kind {
                    NLMSG_ERROR => {
                        let code = m.body.get(0..4).map_or(0, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                        if code != 0 {
                            return Err(NetlinkError::Refused { what: what.to_owned(), errno: Errno::from_raw(-code) });
                        }
                        if m.sequence == sequence {
                            return Ok(out);
                        }
                    }
                    NLMSG_DONE if m.sequence == sequence => return Ok(out),
                    _ if m.sequence == sequence => out.push(m),
                    _ => {}
                }
            }
        }
    }
}

/// Runs a closure on a thread of its own inside a network namespace.
///
/// # Errors
/// [`NetlinkError::Namespace`] when it cannot be opened or entered.
///
/// # Panics
/// When the closure panics.
pub fn in_netns<T: Send>(path: &Path, f: impl FnOnce() -> T + Send) -> Result<T, NetlinkError> {
    let fail = |source| NetlinkError::Namespace { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    // A thread's namespace is its own, so the caller's threads keep theirs whatever happens inside.
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || setns(file, CloneFlags::CLONE_NEWNET).map(|()| f()));
        inside.join().expect("the closure does not panic")
    })
    .map_err(|errno| fail(errno.into()))
}
