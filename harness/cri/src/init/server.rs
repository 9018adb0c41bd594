//! The loop. Requests are one packet, answers are one packet; `events` turns a connection into a stream of exits.
//!
//! | request | answer |
//! |---|---|
//! | `register PID START KEY` + descriptors | `ok`; the descriptors are held under KEY |
//! | `hold KEY` + descriptors, `take KEY`, `drop KEY`, `keys` | `ok` / `ok` + descriptors / `ok` / `ok K1 K2 …` |
//! | `exit PID START` | `ok` when that end is recorded |
//! | `ack PID START` | `ok` |
//! | `events` | a stream of `exit …` lines, those not acknowledged first |
//! | `agent start`, `agent stop`, `agent kill` | `ok`, once it is done |
//! | `status` | `ok agent=PID held=N exits=N` |
//! | `shutdown` | none: everything ends |
#![expect(unsafe_code, reason = "fork, and signals of a single-threaded process")]

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::PathBuf,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
        socket::{SockFlag, accept4},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use podlab_clock::Clock;

use super::{
    exits::{Exit, Exits},
    wire::{MAX_PACKET, listen_at, recv_packet, send_packet},
};
use crate::sys::proc::start_time;

const MAX_CLIENTS: usize = 64;
const MAX_HELD: usize = 4096;
const MAX_WATCHED: usize = 65536;

/// What init needs to know.
#[derive(Debug)]
pub struct InitConfig {
    /// Where its socket goes; a stale file is replaced.
    pub socket: PathBuf,
    /// Where the exits are recorded.
    pub run_dir: PathBuf,
    /// Start the agent at once, without waiting for `agent start`.
    pub start_agent: bool,
    /// When this end of a pipe hangs up, everything ends (the run that this node belongs to has gone).
    pub lifeline: Option<OwnedFd>,
}

/// The init of one node. Make and run it in a process that has no other thread.
#[derive(Debug)]
pub struct Init {
    listener: OwnedFd,
    signals: SignalFd,
    lifeline: Option<OwnedFd>,
    clients: Vec<Client>,
    held: BTreeMap<String, Vec<OwnedFd>>,
    watched: BTreeMap<(i32, u64), String>,
    exits: Exits,
    agent: Option<Pid>,
    start_agent: bool,
    keep_agent: bool,
    /// What the end of the agent asks for, with [`Init::keep_agent`].
    after_agent: AfterAgent,
    clock: Clock,
    is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterAgent {
    Nothing,
    ForkAgain,
    End,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Last exit sent, for a connection that asked for events.
    events: Option<u64>,
    /// Waits for the agent's end.
    awaits_agent: bool,
}

impl Init {
    /// Opens the socket and the record of exits, blocks the signals the loop reads, becomes subreaper when it is not
    /// the first process of its pid namespace.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(config: InitConfig, clock: Clock) -> io::Result<Self> {
        std::fs::create_dir_all(&config.run_dir)?;
        let listener = listen_at(&config.socket)?;
        let is_first = std::process::id() == 1;
        if !is_first {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        let mask = mask();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            listener,
            signals,
            lifeline: config.lifeline,
            clients: Vec::new(),
            held: BTreeMap::new(),
            watched: BTreeMap::new(),
            exits: Exits::open(&config.run_dir)?,
            agent: None,
            start_agent: config.start_agent,
            keep_agent: false,
            after_agent: AfterAgent::Nothing,
            clock,
            is_first,
        })
    }

    /// Forks the agent again when a signal ends it unasked, and ends everything when it ends by itself. Without this an
    /// agent that has ended stays so until `agent start`.
    #[must_use]
    pub fn keep_agent(self) -> Self {
        Self { keep_agent: true, ..self }
    }

    /// Runs until `shutdown`, SIGTERM or the end of the lifeline; then everything below this process is dead. `agent`
    /// is called in a fresh child each time the agent starts, with none of init's descriptors open; what it returns is
    /// the child's exit code.
    pub fn run(mut self, mut agent: impl FnMut() -> i32) {
        if self.start_agent {
            self.fork_agent(&mut agent);
        }
        loop {
            let (ready, lifeline_gone) = self.wait();
            if lifeline_gone {
                return self.end();
            }
            while let Ok(Some(info)) = self.signals.read_signal() {
                if info.ssi_signo == Signal::SIGTERM as u32 || info.ssi_signo == Signal::SIGINT as u32 {
                    return self.end();
                }
            }
            self.reap();
            match std::mem::replace(&mut self.after_agent, AfterAgent::Nothing) {
                AfterAgent::Nothing => {}
                AfterAgent::ForkAgain => drop(self.fork_agent(&mut agent)),
                AfterAgent::End => return self.end(),
            }
            // From the last to the first, so that removal does not shift what is still to come.
            for index in ready.into_iter().rev() {
                if !self.serve(index, &mut agent) {
                    return self.end();
                }
            }
            self.accept();
            self.push_events();
        }
    }

    /// Blocks until something happens; says which clients have sent something and whether the lifeline has ended.
    fn wait(&self) -> (Vec<usize>, bool) {
        let mut fds = vec![
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(line) = &self.lifeline {
            fds.push(PollFd::new(line.as_fd(), PollFlags::POLLIN));
        }
        let first_client = fds.len();
        for client in &self.clients {
            let lagging = client.events.is_some_and(|seq| self.exits.after(seq).is_some());
            let out = if lagging { PollFlags::POLLOUT } else { PollFlags::empty() };
            fds.push(PollFd::new(client.socket.as_fd(), PollFlags::POLLIN | out));
        }
        let _ = poll(&mut fds, PollTimeout::NONE);
        let any = |fd: &PollFd<'_>| {
            fd.revents().is_some_and(|r| r.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR))
        };
        let lifeline_gone = first_client == 3 && any(&fds[2]);
        (fds[first_client..].iter().enumerate().filter(|(_, fd)| any(fd)).map(|(i, _)| i).collect(), lifeline_gone)
    }

    fn accept(&mut self) {
        while self.clients.len() < MAX_CLIENTS {
            let Ok(fd) = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) else {
                return;
            };
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
            self.clients.push(Client { socket, events: None, awaits_agent: false });
        }
    }

    /// Handles what one client sent; `false` when everything shall end.
    fn serve(&mut self, index: usize, agent: &mut impl FnMut() -> i32) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match recv_packet(&self.clients[index].socket, &mut buffer) {
                Ok(Some((packet, fds))) => {
                    let request = String::from_utf8_lossy(packet).into_owned();
                    match self.answer(index, &request, fds, agent) {
                        Answer::Text(text) => self.reply(index, &text, &[]),
                        Answer::Fds(fds) => self.reply(index, "ok", &fds),
                        Answer::Later => {}
                        Answer::End => return false,
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(None) | Err(_) => {
                    self.clients.remove(index);
                    return true;
                }
            }
        }
    }

    fn answer(&mut self, index: usize, request: &str, fds: Vec<OwnedFd>, agent: &mut impl FnMut() -> i32) -> Answer {
        let mut words = request.splitn(4, ' ');
        let verb = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let ok = || Answer::Text("ok".into());
        match (verb, rest.as_slice()) {
            ("register", [pid, start, key]) => {
                let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { return Answer::error("bad number") };
                if self.watched.len() >= MAX_WATCHED || self.held.len() >= MAX_HELD {
                    return Answer::error("too many registered processes");
                }
                if !fds.is_empty() {
                    self.held.insert((*key).to_owned(), fds);
                }
                if !self.exits.name(pid, start, key) {
                    self.watched.insert((pid, start), (*key).to_owned());
                }
                ok()
            }
            ("hold", [key]) if self.held.len() < MAX_HELD => {
                self.held.insert((*key).to_owned(), fds);
                ok()
            }
            ("take", [key]) => self.held.get(*key).map_or_else(
                || Answer::error("nothing is held under this key"),
                |fds| Answer::Fds(fds.iter().map(AsRawFd::as_raw_fd).collect()),
            ),
            ("drop", [key]) => {
                self.held.remove(*key);
                ok()
            }
            ("keys", []) => {
                let keys: Vec<&str> = self.held.keys().map(String::as_str).collect();
                let mut text = format!("ok {}", keys.join(" "));
                text.truncate(MAX_PACKET - 1);
                Answer::Text(text)
            }
            ("exit", [pid, start]) => {
                let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { return Answer::error("bad number") };
                if self.exits.has(pid, start) { ok() } else { Answer::error("no such exit") }
            }
            ("ack", [pid, start]) => {
                let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { return Answer::error("bad number") };
                self.exits.acknowledge(pid, start);
                ok()
            }
            ("events", []) => {
                self.clients[index].events = Some(0);
                Answer::Later
            }
            ("agent", ["start"]) => {
                if self.agent.is_some() || self.fork_agent(agent) {
                    ok()
                } else {
                    Answer::error("cannot fork")
                }
            }
            ("agent", [how @ ("stop" | "kill")]) => {
                let Some(pid) = self.agent else { return ok() };
                let _ = kill(pid, if *how == "kill" { Signal::SIGKILL } else { Signal::SIGTERM });
                self.clients[index].awaits_agent = true;
                Answer::Later
            }
            ("status", []) => {
                let agent = self.agent.map_or(0, Pid::as_raw);
                Answer::Text(format!("ok agent={agent} held={} exits={}", self.held.len(), self.exits.registered()))
            }
            ("shutdown", []) => Answer::End,
            _ => Answer::error("unknown request"),
        }
    }

    fn reply(&mut self, index: usize, text: &str, fds: &[RawFd]) {
        // A client that does not read its answers is its own problem; the connection is dropped at its next packet.
        let _ = send_packet(&self.clients[index].socket, text.as_bytes(), fds);
    }

    fn push_events(&mut self) {
        for client in &mut self.clients {
            while let Some(seq) = client.events
                && let Some(exit) = self.exits.after(seq)
                && send_packet(&client.socket, exit.line().as_bytes(), &[]).is_ok()
            {
                client.events = Some(exit.seq);
            }
        }
    }

    /// Takes note of every child that has ended. The start time is read while the child is still a zombie.
    fn reap(&mut self) {
        while let Ok(status) = waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
            let Some(pid) = status.pid() else { return };
            let start = start_time(pid.as_raw()).unwrap_or(0);
            let (code, signal) = match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => (code, 0),
                Ok(WaitStatus::Signaled(_, signal, _)) => (128 + signal as i32, signal as i32),
                _ => continue,
            };
            if self.agent == Some(pid) {
                self.agent = None;
                if self.keep_agent && !self.clients.iter().any(|c| c.awaits_agent) {
                    self.after_agent = if signal == 0 { AfterAgent::End } else { AfterAgent::ForkAgain };
                }
                for client in self.clients.iter_mut().filter(|c| c.awaits_agent) {
                    client.awaits_agent = false;
                    let _ = send_packet(&client.socket, b"ok", &[]);
                }
                continue;
            }
            let key = self.watched.remove(&(pid.as_raw(), start)).unwrap_or_default();
            let wall_ns = i64::try_from(self.clock.wall().as_nanosecond()).unwrap_or(0);
            self.exits.push(Exit { seq: 0, pid: pid.as_raw(), start, key, code, signal, wall_ns });
        }
    }

    fn fork_agent(&mut self, agent: &mut impl FnMut() -> i32) -> bool {
        // SAFETY: this process has one thread, so the child may do anything.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => {
                self.agent = Some(child);
                true
            }
            Ok(ForkResult::Child) => {
                self.clients.clear();
                self.held.clear();
                for fd in [self.listener.as_raw_fd(), self.signals.as_raw_fd()]
                    .into_iter()
                    .chain(self.lifeline.as_ref().map(AsRawFd::as_raw_fd))
                {
                    // SAFETY: the child never uses these again: it leaves by _exit below without dropping `self`.
                    unsafe { libc::close(fd) };
                }
                let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask()), None);
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(agent)).unwrap_or(101);
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            Err(_) => false,
        }
    }

    /// Kills everything below this process and waits until it is gone.
    fn end(mut self) {
        self.held.clear();
        let victims: Vec<i32> = self.watched.keys().map(|k| k.0).chain(self.agent.map(Pid::as_raw)).collect();
        for pid in victims {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        loop {
            if self.is_first {
                let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
            } else {
                // Children of ours that nobody registered, among them orphans of dead containers.
                let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
                for pid in children.split_ascii_whitespace().filter_map(|p| p.parse().ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            match waitpid(None, None) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

enum Answer {
    Text(String),
    Fds(Vec<RawFd>),
    Later,
    End,
}

impl Answer {
    fn error(text: &str) -> Self {
        Self::Text(format!("error {text}"))
    }
}

fn mask() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE] {
        set.add(signal);
    }
    set
}
