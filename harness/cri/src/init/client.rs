//! The bridge's and the testbed's view of an init.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use nix::sys::{
    socket::{setsockopt, sockopt},
    time::TimeVal,
};
use parking_lot::Mutex;
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    exits::Exit,
    wire::{MAX_PACKET, connect_to, recv_packet, send_packet},
};
use crate::sys::{aio::watch, proc::ProcessId};

/// Why init did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The connection failed.
    #[error("talk to node init at {path}")]
    Socket {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It answered with an error.
    #[error("node init: {0}")]
    Refused(String),
}

/// What to do with the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentCommand {
    /// Fork it, unless it runs.
    Start,
    /// SIGTERM, and wait until it has ended.
    Stop,
    /// SIGKILL, and wait until it has ended.
    Kill,
}

/// What init says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// The agent's pid, when it runs.
    pub agent: Option<i32>,
    /// Keys under which descriptors are held.
    pub held: usize,
    /// Exits of registered processes that nobody has acknowledged.
    pub exits: usize,
}

/// A connection for requests. Calls block for as long as init takes (microseconds; the agent's end for `agent stop`).
#[derive(Debug)]
pub struct InitClient {
    path: PathBuf,
    socket: Mutex<OwnedFd>,
    pid: i32,
}

fn dial(path: &Path) -> Result<OwnedFd, InitError> {
    connect_to(path).map_err(|source| InitError::Socket { path: path.to_owned(), source })
}

impl InitClient {
    /// Connects.
    ///
    /// # Errors
    /// [`InitError::Socket`].
    pub fn connect(path: &Path) -> Result<Self, InitError> {
        let socket = dial(path)?;
        let io = |source| InitError::Socket { path: path.to_owned(), source };
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(60, 0)).map_err(|e| io(e.into()))?;
        let pid = crate::sys::proc::peer_pid(&socket).map_err(io)?;
        Ok(Self { path: path.to_owned(), socket: Mutex::new(socket), pid })
    }

    /// The pid of init, in our pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn ask(&self, request: &str, fds: &[RawFd]) -> Result<(String, Vec<OwnedFd>), InitError> {
        let io = |source| InitError::Socket { path: self.path.clone(), source };
        let socket = self.socket.lock();
        send_packet(&*socket, request.as_bytes(), fds).map_err(io)?;
        let mut buffer = vec![0; MAX_PACKET];
        let Some((packet, fds)) = recv_packet(&*socket, &mut buffer).map_err(io)? else {
            return Err(io(io::ErrorKind::UnexpectedEof.into()));
        };
        let text = String::from_utf8_lossy(packet);
        match text.strip_prefix("ok") {
            Some(rest) => Ok((rest.trim_start().to_owned(), fds)),
            None => Err(InitError::Refused(text.trim_start_matches("error ").to_owned())),
        }
    }

    /// Makes a process's exit known by `key`, and holds descriptors under that key in the same step.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn register(&self, process: ProcessId, key: &str, fds: &[RawFd]) -> Result<(), InitError> {
        self.ask(&format!("register {} {} {key}", process.pid, process.start), fds).map(drop)
    }

    /// Holds descriptors.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn hold(&self, key: &str, fds: &[RawFd]) -> Result<(), InitError> {
        self.ask(&format!("hold {key}"), fds).map(drop)
    }

    /// Copies of what is held; init keeps its own until [`InitClient::drop_key`].
    ///
    /// # Errors
    /// [`InitError::Refused`] when nothing is held.
    pub fn take(&self, key: &str) -> Result<Vec<OwnedFd>, InitError> {
        self.ask(&format!("take {key}"), &[]).map(|r| r.1)
    }

    /// Lets go of what is held.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn drop_key(&self, key: &str) -> Result<(), InitError> {
        self.ask(&format!("drop {key}"), &[]).map(drop)
    }

    /// Keys under which something is held.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn keys(&self) -> Result<Vec<String>, InitError> {
        self.ask("keys", &[]).map(|r| r.0.split_ascii_whitespace().map(ToOwned::to_owned).collect())
    }

    /// Whether the end of a process is recorded and not acknowledged.
    ///
    /// # Errors
    /// [`InitError::Socket`].
    pub fn has_exit(&self, process: ProcessId) -> Result<bool, InitError> {
        match self.ask(&format!("exit {} {}", process.pid, process.start), &[]) {
            Err(InitError::Refused(_)) => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Forgets an exit.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn acknowledge(&self, pid: i32, start: u64) -> Result<(), InitError> {
        self.ask(&format!("ack {pid} {start}"), &[]).map(drop)
    }

    /// Starts or ends the agent; returns when it is done.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn agent(&self, command: AgentCommand) -> Result<(), InitError> {
        let word = match command {
            AgentCommand::Start => "start",
            AgentCommand::Stop => "stop",
            AgentCommand::Kill => "kill",
        };
        self.ask(&format!("agent {word}"), &[]).map(drop)
    }

    /// How it goes.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn status(&self) -> Result<Status, InitError> {
        let text = self.ask("status", &[])?.0;
        let field = |name: &str| {
            text.split(' ').find_map(|w| w.strip_prefix(name)).and_then(|v| v.parse::<usize>().ok()).unwrap_or(0)
        };
        let agent = i32::try_from(field("agent=")).ok().filter(|p| *p > 0);
        Ok(Status { agent, held: field("held="), exits: field("exits=") })
    }

    /// Kills everything and ends init; returns when the connection breaks.
    ///
    /// # Errors
    /// [`InitError::Socket`] when the request could not be sent.
    pub fn shutdown(&self) -> Result<(), InitError> {
        match self.ask("shutdown", &[]) {
            Err(InitError::Socket { source, .. })
                if matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Opens the stream of exits.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn events(&self) -> Result<ExitStream, InitError> {
        let io = |source| InitError::Socket { path: self.path.clone(), source };
        let socket = dial(&self.path)?;
        send_packet(&socket, b"events", &[]).map_err(io)?;
        Ok(ExitStream { socket: watch(socket, Interest::READABLE).map_err(io)? })
    }
}

/// Exits as they happen, those nobody has acknowledged first.
#[derive(Debug)]
pub struct ExitStream {
    socket: AsyncFd<OwnedFd>,
}

impl ExitStream {
    /// The next exit; an error when init has gone. Cancel safe.
    ///
    /// # Errors
    /// The connection's.
    pub async fn next(&mut self) -> io::Result<Exit> {
        let mut buffer = [0; 4096];
        loop {
            let mut ready = self.socket.readable().await?;
            let got = ready.try_io(|fd| match recv_packet(fd.get_ref(), &mut buffer)? {
                Some((packet, _)) => Ok(Exit::parse(&String::from_utf8_lossy(packet))),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            });
            match got {
                Ok(Ok(Some(exit))) => return Ok(exit),
                Ok(Err(e)) => return Err(e),
                Ok(Ok(None)) | Err(_) => {}
            }
        }
    }
}

/// Makes a pipe whose ends are close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from)
}

/// Duplicates a descriptor, close-on-exec, above the numbers a child uses for its own.
#[expect(unsafe_code, reason = "F_DUPFD_CLOEXEC returns a number")]
pub(crate) fn dup_high(fd: &impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    let n = nix::fcntl::fcntl(fd.as_fd(), nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(16))?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(n) })
}
