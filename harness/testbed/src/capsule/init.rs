//! Capsule init: sets the capsule up, starts plane and nodes, reaps, answers on the control socket. One thread.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
};

use nix::{
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
        socket::{SockFlag, accept4},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, pipe2, setsid},
};
use podlab_cri::init::{listen_at, recv_packet, send_packet};

use super::{Capsule, network};
use crate::{cgroup, node, plane, process};

const MAX_CLIENTS: usize = 32;

/// What runs below init, by name; pid 0 when it is down.
#[derive(Debug, Default)]
struct Children {
    plane: i32,
    /// Asked to be down, so it is not started again.
    plane_parked: bool,
    nodes: Vec<i32>,
}

/// The body of capsule init. Its return ends the capsule.
pub(super) fn main(capsule: Capsule) -> i32 {
    match run(&capsule) {
        Ok(()) => 0,
        Err(e) => {
            // Standard error is the capsule's log by now, or still the terminal of `up`.
            crate::telemetry::say(format_args!("capsule init: {e}"));
            1
        }
    }
}

fn run(capsule: &Capsule) -> io::Result<()> {
    let _ = setsid();
    // The zygote ignores the end of its children; inherited, that would swallow every exit code in here.
    #[expect(unsafe_code, reason = "resetting a signal installs no handler")]
    // SAFETY: SIG_DFL runs no code.
    unsafe {
        nix::sys::signal::signal(Signal::SIGCHLD, nix::sys::signal::SigHandler::SigDfl)?;
    }
    process::redirect_stdio(&capsule.state.join("logs/capsule.log"))?;
    cgroup::enter(dirs_of(capsule, "plane")).map_err(doing("enter its cgroup"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )?;
    nix::unistd::sethostname(&capsule.spec.name)?;
    network::set_up().map_err(doing("set up its network"))?;
    for name in capsule.spec.node_names() {
        node::disk::mount_disk(&capsule.state, &capsule.spec, &name).map_err(doing("mount a node's disk"))?;
    }
    let listener = listen_at(&capsule.state.control_socket())?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut children = Children { nodes: vec![0; usize::from(capsule.spec.nodes)], ..Children::default() };
    children.plane = start_plane(capsule)?;
    for index in 1..=capsule.spec.nodes {
        children.nodes[usize::from(index) - 1] = start_node(capsule, index)?;
    }
    serve(capsule, &mut children, &listener, &signals)
}

/// Puts what was tried in front of the kernel's words.
fn doing(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{what}: {e}"))
}

fn dirs_of<'a>(capsule: &'a Capsule, part: &str) -> &'a [PathBuf] {
    capsule.cgroups.iter().find(|(name, _)| name == part).map_or(&[], |(_, dirs)| dirs)
}

/// A child must take signals again that init reads from a descriptor.
fn unmask() {
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

fn start_plane(capsule: &Capsule) -> io::Result<i32> {
    process::spawn(0, || {
        unmask();
        plane::main(capsule)
    })
}

fn start_node(capsule: &Capsule, index: u8) -> io::Result<i32> {
    let namespaces =
        libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let (go_read, go) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let name = format!("node-{index}");
    let pid = process::spawn(namespaces, || {
        unmask();
        node::main(capsule, index, dirs_of(capsule, &name), &go_read)
    })?;
    if let Err(e) = network::plug(index, pid) {
        // A node that could not start has no namespace to plug into, some moments before it has ended. Its own log
        // says why, and the loop reaps it.
        if process::pidfd_open(pid).is_ok_and(|fd| process::wait_gone(&fd, 200)) {
            return Ok(pid);
        }
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        return Err(doing("plug a node into the network")(e));
    }
    // Fails only when the node has ended, which the loop finds.
    let _ = nix::unistd::write(&go, b"g");
    Ok(pid)
}

/// The loop. Returns when everything shall end.
fn serve(capsule: &Capsule, children: &mut Children, listener: &OwnedFd, signals: &SignalFd) -> io::Result<()> {
    let mut clients: Vec<OwnedFd> = Vec::new();
    loop {
        let ready = {
            let mut fds =
                vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            fds.extend(clients.iter().map(|c| PollFd::new(c.as_fd(), PollFlags::POLLIN)));
            if let Some(line) = &capsule.sockets.lifeline {
                fds.push(PollFd::new(line.as_fd(), PollFlags::POLLIN));
            }
            let _ = poll(&mut fds, PollTimeout::NONE);
            fds.iter().map(|f| f.revents().is_some_and(|r| !r.is_empty())).collect::<Vec<_>>()
        };
        // Nobody writes to the lifeline: anything that happens on it is the runner's end.
        if capsule.sockets.lifeline.is_some() && ready.last() == Some(&true) {
            return Ok(());
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        reap(children);
        if children.plane == 0 && !children.plane_parked {
            children.plane = start_plane(capsule)?;
        }
        for index in (0..clients.len()).rev().filter(|i| ready[i + 2]).collect::<Vec<_>>() {
            match request(capsule, children, &clients[index]) {
                Request::Go => {}
                Request::Close => drop(clients.remove(index)),
                Request::Down => return Ok(()),
            }
        }
        while clients.len() < MAX_CLIENTS
            && let Ok(fd) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
        {
            clients.push(own(fd));
        }
    }
}

#[expect(unsafe_code, reason = "accept4 returns a number")]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

fn reap(children: &mut Children) {
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
        let Some(pid) = status.pid().map(Pid::as_raw) else { continue };
        if children.plane == pid {
            crate::telemetry::say(format_args!("capsule init: plane ended: {status:?}"));
            children.plane = 0;
        }
        for node in children.nodes.iter_mut().filter(|n| **n == pid) {
            crate::telemetry::say(format_args!("capsule init: a node ended: {status:?}"));
            *node = 0;
        }
    }
}

/// What to do with a client after its request.
enum Request {
    Go,
    Close,
    Down,
}

fn request(capsule: &Capsule, children: &mut Children, client: &OwnedFd) -> Request {
    let mut buffer = [0; 1024];
    let text = match recv_packet(client, &mut buffer) {
        Ok(Some((bytes, _))) => String::from_utf8_lossy(bytes).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Request::Go,
        Ok(None) | Err(_) => return Request::Close,
    };
    if text == "down" {
        return Request::Down;
    }
    let answer = match act(capsule, children, &text) {
        Ok(said) => format!("ok {said}"),
        Err(e) => e.to_string(),
    };
    match send_packet(client, answer.as_bytes(), &[]) {
        Ok(()) => Request::Go,
        Err(_) => Request::Close,
    }
}

fn act(capsule: &Capsule, children: &mut Children, text: &str) -> io::Result<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let index = |node: &str| {
        let known = capsule.spec.node_names().iter().position(|n| n == node);
        known.ok_or_else(|| io::Error::other(format!("there is no node {node:?}")))
    };
    match words[..] {
        ["status"] => {
            let mut said = format!("plane={}", children.plane);
            for (name, pid) in capsule.spec.node_names().iter().zip(&children.nodes) {
                said.push_str(&format!(" {name}={pid}"));
            }
            Ok(said)
        }
        ["plane", how @ ("kill" | "stop")] => {
            children.plane_parked = true;
            let signal = if how == "kill" { Signal::SIGKILL } else { Signal::SIGTERM };
            end(&mut children.plane, signal).map(|()| String::new())
        }
        ["plane", "start"] => {
            children.plane_parked = false;
            if children.plane == 0 {
                children.plane = start_plane(capsule)?;
            }
            Ok(String::new())
        }
        ["crash", node] => {
            let i = index(node)?;
            end(&mut children.nodes[i], Signal::SIGKILL).map(|()| String::new())
        }
        ["boot", node] => {
            let i = index(node)?;
            if children.nodes[i] == 0 {
                children.nodes[i] = start_node(capsule, u8::try_from(i + 1).unwrap_or(u8::MAX))?;
            }
            Ok(String::new())
        }
        _ => Err(io::Error::other(format!("unknown request {text:?}"))),
    }
}

/// Ends a child and waits for it, so that "done" is true when it is said.
fn end(pid: &mut i32, signal: Signal) -> io::Result<()> {
    if *pid == 0 {
        return Ok(());
    }
    let target = Pid::from_raw(*pid);
    kill(target, signal)?;
    if signal != Signal::SIGKILL {
        // A component that does not obey in two seconds is killed.
        let pidfd = process::pidfd_open(*pid)?;
        if !process::wait_gone(&pidfd, 2000) {
            kill(target, Signal::SIGKILL)?;
        }
    }
    waitpid(target, None)?;
    *pid = 0;
    Ok(())
}
