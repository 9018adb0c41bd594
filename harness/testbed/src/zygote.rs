//! Booting capsules from a program with threads: a small process forked before any thread exists clones on request.
//!
//! Forking a threaded process copies locks that other threads hold; the zygote has none, so the capsules it makes can go
//! on with the program already in memory instead of exec'ing it again.

use std::{
    io,
    net::TcpListener,
    os::fd::{AsRawFd, OwnedFd},
    sync::Mutex,
};

use nix::sys::{
    signal::{SigHandler, Signal, signal},
    socket::{AddressFamily, SockFlag, SockType, socketpair},
};
use podlab_cri::init::{recv_packet, send_packet};

use crate::{
    capsule::{self, Sockets},
    process,
    spec::ClusterSpec,
    state::StateDir,
};

const MAX_REQUEST: usize = 60 << 10;
/// Published ports plus API listener plus lifeline fit one packet.
pub(crate) const MAX_PUBLISHED: usize = 6;

/// The handle on the zygote. Its end (with this process) ends the zygote, not the capsules that are not tied to it.
#[derive(Debug)]
pub struct Zygote(Mutex<OwnedFd>);

impl Zygote {
    /// Forks the zygote. Call first thing in `main`.
    ///
    /// # Errors
    /// When the kernel refuses, or the process already has threads.
    pub fn start() -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads > 1 {
            return Err(io::Error::other("the zygote must be started before any thread"));
        }
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let ours_raw = ours.as_raw_fd();
        process::spawn(0, || {
            // The child's copy of our end must go, or it would never see our end close.
            let _ = nix::unistd::close(ours_raw);
            serve(&theirs)
        })?;
        Ok(Self(Mutex::new(ours)))
    }

    /// Boots a capsule; returns the pid of its first process.
    ///
    /// # Errors
    /// What the zygote reports, as text.
    pub(crate) fn boot(
        &self,
        spec: &ClusterSpec,
        api: &TcpListener,
        published: &[TcpListener],
        lifeline: Option<&OwnedFd>,
    ) -> Result<i32, String> {
        let text = serde_json::to_vec(spec).map_err(|e| e.to_string())?;
        let mut fds = vec![api.as_raw_fd()];
        fds.extend(published.iter().map(AsRawFd::as_raw_fd));
        fds.extend(lifeline.map(AsRawFd::as_raw_fd));
        let socket = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let talk = || -> io::Result<String> {
            send_packet(&*socket, &text, &fds)?;
            let mut buffer = vec![0; MAX_REQUEST];
            let (bytes, _) =
                recv_packet(&*socket, &mut buffer)?.ok_or_else(|| io::Error::other("the zygote has ended"))?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        let answer = talk().map_err(|e| e.to_string())?;
        answer.strip_prefix("ok ").and_then(|pid| pid.parse().ok()).ok_or(answer)
    }
}

/// The zygote's loop; ends with its parent.
fn serve(socket: &OwnedFd) -> i32 {
    // Nobody waits for capsule inits of this process; the kernel reaps them.
    #[expect(unsafe_code, reason = "ignoring a signal installs no handler")]
    // SAFETY: SIG_IGN runs no code.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    let _ = nix::unistd::setsid();
    let mut buffer = vec![0; MAX_REQUEST];
    while let Ok(Some((bytes, fds))) = recv_packet(socket, &mut buffer) {
        let answer = match boot(bytes, fds) {
            Ok(pid) => format!("ok {pid}"),
            Err(e) => e,
        };
        if send_packet(socket, answer.as_bytes(), &[]).is_err() {
            break;
        }
    }
    0
}

fn boot(request: &[u8], fds: Vec<OwnedFd>) -> Result<i32, String> {
    let spec: ClusterSpec = serde_json::from_slice(request).map_err(|e| e.to_string())?;
    let state = StateDir::of(&spec.name).map_err(|e| e.to_string())?;
    let mut fds = fds.into_iter();
    let listener = |fd: Option<OwnedFd>| fd.map(TcpListener::from).ok_or("a socket is missing");
    let api = vec![listener(fds.next())?];
    let published = (0..spec.publish.len()).map(|_| listener(fds.next())).collect::<Result<_, _>>()?;
    let sockets = Sockets { api, published, lifeline: fds.next() };
    capsule::boot(&state, &spec, sockets).map_err(|e| crate::plane::chain(&e))
}
