//! Exec and attach: a process's streams on one side, a [`Peer`] on the other.
#![expect(unsafe_code, reason = "the ioctl that sets a terminal's size")]

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use podlab_clock::Clock;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
};

use super::peer::{ERROR, Out, Peer, STDERR, STDOUT, Verdict};
use crate::{
    error::Error,
    init::pipe,
    launch::Stdio,
    log::Stream,
    runtime::Runtime,
    sys::{aio, raw},
};

/// How long after the end of a process output may still come from those who inherited its pipes.
const DRAIN: Duration = Duration::from_secs(2);

/// Which streams a session has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

impl Wanted {
    /// Channels the session writes to; a terminal has one output.
    pub(crate) fn channels(self) -> Vec<u8> {
        let all = [(STDOUT, self.stdout), (STDERR, self.stderr && !self.tty), (ERROR, true)];
        all.into_iter().filter(|(_, on)| *on).map(|(channel, _)| channel).collect()
    }
}

/// Runs a command in a container for a peer, to its end.
pub(crate) async fn exec(runtime: Arc<Runtime>, container: &str, command: Vec<String>, wanted: Wanted, mut peer: Peer) {
    let verdict = match run(&runtime, container, command, wanted, &mut peer).await {
        Ok(code) => Verdict::Exit(code),
        Err(e) => Verdict::Error(format!("error executing command in container: {e}")),
    };
    finish(&peer, &verdict).await;
}

async fn finish(peer: &Peer, verdict: &Verdict) {
    if let Some(text) = verdict.encode(peer.format) {
        let _ = peer.out.send(Out::Data(ERROR, text)).await;
    }
    let _ = peer.out.send(Out::End).await;
}

async fn run(
    runtime: &Arc<Runtime>,
    container: &str,
    command: Vec<String>,
    wanted: Wanted,
    peer: &mut Peer,
) -> Result<i32, Error> {
    let container = runtime.running(container)?;
    let fail = || Error::io("make the command's streams");
    let null =
        || -> io::Result<OwnedFd> { Ok(std::fs::File::options().read(true).write(true).open("/dev/null")?.into()) };
    let (mut stdin, mut outputs) = (None, Vec::new());
    let stdio = if wanted.tty {
        Stdio::Tty
    } else {
        let input = if wanted.stdin {
            let (r, w) = pipe().map_err(fail())?;
            stdin = Some(w);
            r
        } else {
            null().map_err(fail())?
        };
        let mut output = |want: bool, channel: u8| -> Result<OwnedFd, Error> {
            if !want {
                return null().map_err(fail());
            }
            let (r, w) = pipe().map_err(fail())?;
            outputs.push((channel, r));
            Ok(w)
        };
        Stdio::Fds([input, output(wanted.stdout, STDOUT)?, output(wanted.stderr, STDERR)?])
    };
    let mut exec = runtime.blocking(move |this| this.start_exec(&container, command, wanted.tty, stdio)).await?;
    let terminal = match exec.tty.take() {
        Some(master) => {
            outputs.push((STDOUT, master.try_clone().map_err(fail())?));
            if wanted.stdin {
                stdin = Some(master.try_clone().map_err(fail())?);
            }
            Some(master)
        }
        None => None,
    };

    let (exited, watch_exit) = watch::channel(false);
    let mut writing = Box::pin(feed(stdin, &mut peer.stdin, wanted.tty));
    let mut resizing = Box::pin(resize(terminal.as_ref(), &mut peer.resize));
    let out = peer.out.clone();
    let clock = runtime.clock;
    let reading = futures::future::join_all(
        outputs.into_iter().map(|(channel, fd)| pump(fd, channel, out.clone(), watch_exit.clone(), clock)),
    );
    let mut reading = Box::pin(reading);
    let (mut wrote, mut resized, mut read, mut code) = (false, false, false, None);
    // The session lasts until the process has ended and its output is out; what the peer sends is taken meanwhile.
    while code.is_none() || !read {
        tokio::select! {
            exit = &mut exec.exit, if code.is_none() => {
                code = Some(exit.map(|e| e.code));
                exited.send_replace(true);
            }
            _ = &mut reading, if !read => read = true,
            () = &mut writing, if !wrote => wrote = true,
            () = &mut resizing, if !resized => resized = true,
            // The peer has gone: the process notices by its closed streams.
            () = out.closed() => return Err(Error::State("the client has gone".into())),
        }
    }
    code.and_then(Result::ok).ok_or_else(|| Error::State("the end of the command was not observed".into()))
}

/// Connects a peer to a container's own streams, until the container ends or the peer goes.
pub(crate) async fn attach(runtime: Arc<Runtime>, id: &str, wanted: Wanted, mut peer: Peer) {
    let verdict = match attached(&runtime, id, wanted, &mut peer).await {
        Ok(()) => Verdict::Exit(0),
        Err(e) => Verdict::Error(format!("error attaching to container: {e}")),
    };
    finish(&peer, &verdict).await;
}

async fn attached(runtime: &Arc<Runtime>, id: &str, wanted: Wanted, peer: &mut Peer) -> Result<(), Error> {
    let container = runtime.running(id)?;
    let (tty, stdin_once) = {
        let record = container.record.lock();
        (record.config.tty, record.config.stdin_once)
    };
    let handle = container.log.lock().clone().ok_or_else(|| Error::State("the container's output has ended".into()))?;
    let key = |kind: &str| format!("{kind}/{}", container.id);
    let terminal = if tty { runtime.init.take(&key("c"))?.into_iter().next() } else { None };
    let stdin = match (wanted.stdin, &terminal) {
        (false, _) => None,
        (true, Some(master)) => Some(master.try_clone().map_err(Error::io("open the container's stdin"))?),
        // A container without stdin takes none.
        (true, None) => runtime.init.take(&key("i")).ok().and_then(|fds| fds.into_iter().next()),
    };
    let mut output = handle.attach().await;
    let out = peer.out.clone();
    let fed = async {
        let had_stdin = stdin.is_some();
        feed(stdin, &mut peer.stdin, tty).await;
        if had_stdin && stdin_once && !tty {
            // Its one session has ended: the container sees the end of its input.
            let _ = runtime.init.drop_key(&key("i"));
        }
    };
    let mut fed = Box::pin(fed);
    let mut resizing = Box::pin(resize(terminal.as_ref(), &mut peer.resize));
    let (mut wrote, mut resized) = (false, false);
    loop {
        tokio::select! {
            chunk = output.recv() => match chunk {
                Some((stream, data)) => {
                    let channel = if stream == Stream::Stdout { STDOUT } else { STDERR };
                    let shown = if channel == STDOUT { wanted.stdout } else { wanted.stderr };
                    if shown && out.send(Out::Data(channel, data)).await.is_err() {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            },
            () = &mut fed, if !wrote => wrote = true,
            () = &mut resizing, if !resized => resized = true,
            () = out.closed() => return Ok(()),
        }
    }
}

/// Writes what a peer sends, then closes. A terminal is told of the end by its own character.
async fn feed(to: Option<OwnedFd>, from: &mut mpsc::Receiver<Bytes>, tty: bool) {
    let to = to.and_then(|fd| aio::watch(fd, Interest::WRITABLE).ok());
    while let Some(data) = from.recv().await {
        if let Some(to) = &to
            && write_all(to, &data).await.is_err()
        {
            break;
        }
    }
    if tty && let Some(to) = &to {
        let _ = write_all(to, &[4]).await;
    }
}

async fn write_all(to: &AsyncFd<OwnedFd>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let mut ready = to.writable().await?;
        if let Ok(n) = ready.try_io(|fd| nix::unistd::write(fd.get_ref(), data).map_err(io::Error::from)) {
            data = &data[n?..];
        }
    }
    Ok(())
}

async fn resize(terminal: Option<&OwnedFd>, sizes: &mut mpsc::Receiver<super::peer::Size>) {
    while let Some((columns, rows)) = sizes.recv().await {
        if let Some(master) = terminal {
            let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // SAFETY: TIOCSWINSZ reads the struct it is given.
            let _ = unsafe {
                raw::checked(
                    libc::SYS_ioctl,
                    [raw::int(master.as_raw_fd()), libc::TIOCSWINSZ as usize, raw::addr(&raw const size), 0, 0, 0],
                )
            };
        }
    }
}

/// Carries one output to the peer until its end, or until the process has ended and nothing has come for a while.
async fn pump(fd: OwnedFd, channel: u8, out: mpsc::Sender<Out>, mut exited: watch::Receiver<bool>, clock: Clock) {
    let Ok(fd) = aio::watch(fd, Interest::READABLE) else { return };
    let mut chunk = vec![0; 32 << 10];
    loop {
        let mut ready = tokio::select! {
            r = fd.readable() => match r {
                Ok(r) => r,
                Err(_) => return,
            },
            () = async {
                let _ = exited.wait_for(|e| *e).await;
                clock.sleep(DRAIN).await;
            } => return,
        };
        match ready.try_io(|fd| nix::unistd::read(fd.get_ref(), &mut chunk).map_err(io::Error::from)) {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(n)) => {
                if out.send(Out::Data(channel, Bytes::copy_from_slice(&chunk[..n]))).await.is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
    }
}
