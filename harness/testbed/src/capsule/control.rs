//! The words spoken over `capsule.sock`, and the client that speaks them.
//!
//! | request | answer |
//! |---|---|
//! | `status` | `ok plane=PID node-1=PID …` (0 for what is down) |
//! | `plane kill`, `plane stop`, `plane start` | `ok` once it is done |
//! | `crash NODE`, `boot NODE` | `ok` once it is done |
//! | `down` | none: everything ends |

use std::{collections::BTreeMap, io, os::fd::OwnedFd, path::Path};

use podlab_cri::init::{connect_to, recv_packet, send_packet};

/// A client of capsule init. Blocking.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Connects to a capsule.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(path: &Path) -> io::Result<Self> {
        connect_to(path).map(Self)
    }

    /// Sends a request and waits for its answer, without the leading `ok`.
    ///
    /// # Errors
    /// What the capsule answered, or the socket's failure.
    pub fn ask(&self, request: &str) -> io::Result<String> {
        send_packet(&self.0, request.as_bytes(), &[])?;
        let mut buffer = vec![0; 64 << 10];
        let Some((bytes, _)) = recv_packet(&self.0, &mut buffer)? else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the capsule has ended"));
        };
        let text = String::from_utf8_lossy(bytes).into_owned();
        match text.strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(io::Error::other(text)),
        }
    }

    /// Asks the capsule to end; does not wait for it.
    ///
    /// # Errors
    /// The socket's failure.
    pub fn down(&self) -> io::Result<()> {
        send_packet(&self.0, b"down", &[])
    }

    /// Pids of plane and nodes as the capsule sees them; 0 for what is down.
    ///
    /// # Errors
    /// See [`Control::ask`].
    pub fn status(&self) -> io::Result<BTreeMap<String, i32>> {
        let text = self.ask("status")?;
        let pair = |word: &str| {
            let (name, pid) = word.split_once('=')?;
            Some((name.to_owned(), pid.parse().ok()?))
        };
        Ok(text.split_whitespace().filter_map(pair).collect())
    }
}
