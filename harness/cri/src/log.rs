//! A container's output: from its pipes (or terminal) into its CRI log file and to whoever is attached.
//!
//! Exactly once, also when the bridge is killed at any instruction. Bytes are first moved by the kernel from the pipe
//! into a spool file (`splice`), then written to the log as lines, then the cursor is advanced; a successor that finds
//! the log longer than the cursor says cuts it back and writes the batch again. The pipe's read end is also held by
//! init, so the container notices nothing.
//!
//! ```text
//! pipe ──splice──► spool ──lines──► log          cursor = (bytes of each spool consumed, length and inode of the log)
//! ```
#![expect(unsafe_code, reason = "splice needs raw offsets")]

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use podlab_clock::Clock;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
};

use crate::sys::aio;

/// Longest text of one log line; longer ones are cut into parts. Source: containerd's `max_container_log_line_size`.
pub const MAX_LINE: usize = 16 << 10;
const CHUNK: usize = 64 << 10;
/// A spool this long that is consumed begins again.
const SPOOL_RESET: u64 = 1 << 20;
/// An attached client that takes nothing for this long is cut off, so that it cannot stop the container for good.
const ATTACH_PATIENCE: Duration = Duration::from_secs(30);

/// Which stream bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        if self == Self::Stdout { "stdout" } else { "stderr" }
    }
}

/// What an attached client receives.
pub type Output = (Stream, Bytes);

enum Command {
    Reopen(oneshot::Sender<io::Result<()>>),
    Attach(mpsc::Sender<Output>),
    Finish,
}

/// Handle to a running log task.
#[derive(Debug, Clone)]
pub struct LogHandle(mpsc::Sender<Command>);

impl LogHandle {
    /// Closes the log and opens its path anew, after a rotation.
    ///
    /// # Errors
    /// When the path cannot be opened; the old file is kept then, and no new one appears.
    pub async fn reopen(&self) -> io::Result<()> {
        let (tx, rx) = oneshot::channel();
        let gone = || io::Error::other("the container's output has ended");
        self.0.send(Command::Reopen(tx)).await.map_err(|_| gone())?;
        rx.await.map_err(|_| gone())?
    }

    /// Output from now on. The channel ends with the output.
    pub async fn attach(&self) -> mpsc::Receiver<Output> {
        let (tx, rx) = mpsc::channel(64);
        let _ = self.0.send(Command::Attach(tx)).await;
        rx
    }

    /// Take what is there and end, even if somebody still holds the pipes open.
    pub async fn finish(&self) {
        let _ = self.0.send(Command::Finish).await;
    }
}

/// Where output comes from and goes to.
#[derive(Debug)]
pub struct LogSpec {
    /// The log file; `None`: nothing is written.
    pub path: Option<PathBuf>,
    /// Directory for spools and cursor, made when output first comes. On a tmpfs.
    pub spool: PathBuf,
    /// Read ends: stdout and stderr, or a terminal's master alone.
    pub sources: Vec<OwnedFd>,
    /// The one source is a terminal.
    pub tty: bool,
}

/// Opens a log for appending.
pub fn open_log(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent()
        && !parent.is_dir()
    {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).append(true).mode(0o640).open(path)
}

/// Prepares the task that moves the output; the future ends when all of it is in the log.
///
/// # Errors
/// When the log cannot be opened or the pipes cannot be watched.
pub fn pump(spec: LogSpec, clock: Clock) -> io::Result<(LogHandle, impl Future<Output = ()> + Send)> {
    let log = spec.path.as_deref().map(open_log).transpose()?;
    let mut sources = Vec::new();
    for (fd, stream) in spec.sources.into_iter().zip([Stream::Stdout, Stream::Stderr]) {
        sources.push(Source {
            fd: aio::watch(fd, Interest::READABLE)?,
            stream,
            spool: None,
            len: 0,
            consumed: 0,
            open: true,
        });
    }
    let (tx, rx) = mpsc::channel(8);
    let pump = Pump {
        path: spec.path,
        log,
        dir: spec.spool,
        sources,
        tty: spec.tty,
        cursor: None,
        attached: Vec::new(),
        clock,
    };
    Ok((LogHandle(tx), pump.run(rx)))
}

struct Source {
    fd: AsyncFd<OwnedFd>,
    stream: Stream,
    spool: Option<File>,
    len: u64,
    consumed: u64,
    open: bool,
}

struct Pump {
    path: Option<PathBuf>,
    log: Option<File>,
    dir: PathBuf,
    sources: Vec<Source>,
    tty: bool,
    cursor: Option<File>,
    attached: Vec<mpsc::Sender<Output>>,
    clock: Clock,
}

impl Pump {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        if let Err(error) = self.recover() {
            tracing::warn!(%error, dir = %self.dir.display(), "what the predecessor left of this log is unusable");
        }
        while self.sources.iter().any(|s| s.open) {
            let ready = {
                let mut waits = Vec::new();
                for (at, source) in self.sources.iter().enumerate().filter(|(_, s)| s.open) {
                    waits.push(Box::pin(async move {
                        source.fd.readable().await.map(|mut g| g.clear_ready()).map(|()| at)
                    }));
                }
                tokio::select! {
                    biased;
                    command = commands.recv() => Err(command),
                    (ready, ..) = futures::future::select_all(waits) => Ok(ready),
                }
            };
            match ready {
                Ok(Ok(at)) => self.drain(at).await,
                Err(Some(Command::Reopen(reply))) => {
                    let _ = reply.send(self.reopen());
                }
                Err(Some(Command::Attach(client))) => self.attached.push(client),
                // Everybody who could command has gone, or the container has and its heirs shall not hold us up.
                Err(Some(Command::Finish) | None) => {
                    for at in 0..self.sources.len() {
                        self.drain(at).await;
                        self.sources[at].open = false;
                    }
                }
                Ok(Err(_)) => break,
            }
        }
        for at in 0..self.sources.len() {
            self.flush(at, true);
        }
        if self.cursor.is_some() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Moves all that a source has now.
    async fn drain(&mut self, at: usize) {
        while self.sources[at].open {
            match self.fill(at) {
                Ok(0) => self.sources[at].open = false,
                Ok(n) => {
                    self.publish(at, n).await;
                    self.flush(at, false);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // EIO is how a terminal says that nobody has it open any more.
                Err(_) => self.sources[at].open = false,
            }
        }
    }

    /// Takes one chunk from the source into its spool.
    fn fill(&mut self, at: usize) -> io::Result<usize> {
        if self.cursor.is_none() {
            fs::create_dir_all(&self.dir)?;
            self.cursor = Some(open_rw(&self.dir.join("cursor"))?);
            self.save_cursor();
        }
        let source = &mut self.sources[at];
        if source.spool.is_none() {
            source.spool = Some(open_rw(&self.dir.join(source.stream.name()))?);
        }
        let Some(spool) = &source.spool else { return Ok(0) };
        let fd = source.fd.get_ref();
        let n = if self.tty {
            let mut buffer = [0; 8192];
            let n = nix::unistd::read(fd, &mut buffer)?;
            spool.write_all_at(&buffer[..n], source.len)?;
            n
        } else {
            let mut offset = i64::try_from(source.len).map_err(io::Error::other)?;
            // SAFETY: two descriptors we own and an offset that lives through the call.
            let n = unsafe {
                libc::splice(
                    fd.as_raw_fd(),
                    std::ptr::null_mut(),
                    spool.as_raw_fd(),
                    &raw mut offset,
                    CHUNK,
                    libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
                )
            };
            usize::try_from(n).map_err(|_| io::Error::last_os_error())?
        };
        source.len += n as u64;
        Ok(n)
    }

    /// Shows the last `n` bytes of a spool to attached clients.
    async fn publish(&mut self, at: usize, n: usize) {
        if self.attached.is_empty() {
            return;
        }
        let source = &self.sources[at];
        let mut data = vec![0; n];
        if source.spool.as_ref().is_none_or(|s| s.read_exact_at(&mut data, source.len - n as u64).is_err()) {
            return;
        }
        let (data, stream) = (Bytes::from(data), source.stream);
        let mut kept = Vec::new();
        for client in std::mem::take(&mut self.attached) {
            let sent = self.clock.timeout(ATTACH_PATIENCE, client.send((stream, data.clone()))).await;
            if matches!(sent, Some(Ok(()))) {
                kept.push(client);
            }
        }
        self.attached = kept;
    }

    /// Writes what a spool holds as log lines: whole lines, and at the `end` the rest too.
    fn flush(&mut self, at: usize, end: bool) {
        let source = &mut self.sources[at];
        let Some(spool) = &source.spool else { return };
        while source.consumed < source.len {
            let want = usize::try_from(source.len - source.consumed).unwrap_or(CHUNK).min(CHUNK);
            let mut data = vec![0; want];
            if spool.read_exact_at(&mut data, source.consumed).is_err() {
                return;
            }
            let mut lines = Vec::with_capacity(want + want / 4 + 64);
            let last = source.consumed + want as u64 == source.len;
            let used = encode(&mut lines, &stamp(self.clock), source.stream, &data, end && last);
            if used == 0 {
                break;
            }
            if let Some(log) = &mut self.log
                && let Err(error) = log.write_all(&lines)
            {
                tracing::warn!(%error, "container output is lost: its log cannot be written");
            }
            source.consumed += used as u64;
            if source.consumed == source.len && source.len >= SPOOL_RESET && spool.set_len(0).is_ok() {
                (source.consumed, source.len) = (0, 0);
            }
            save(self.cursor.as_ref(), self.log.as_ref(), &[source.stream], &[source.consumed]);
        }
    }

    fn save_cursor(&self) {
        let streams: Vec<Stream> = self.sources.iter().map(|s| s.stream).collect();
        let consumed: Vec<u64> = self.sources.iter().map(|s| s.consumed).collect();
        save(self.cursor.as_ref(), self.log.as_ref(), &streams, &consumed);
    }

    /// Continues where a killed predecessor stood.
    fn recover(&mut self) -> io::Result<()> {
        let path = self.dir.join("cursor");
        if !path.exists() {
            return Ok(());
        }
        let cursor = open_rw(&path)?;
        let mut words = [0u8; 32];
        cursor.read_exact_at(&mut words, 0)?;
        let word = |n: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| words[n * 8 + i]));
        if let Some(log) = &self.log {
            let meta = log.metadata()?;
            // Written after the cursor was last saved: written again below.
            if meta.ino() == word(3) && meta.len() > word(2) {
                log.set_len(word(2))?;
            }
        }
        for source in &mut self.sources {
            let spool = open_rw(&self.dir.join(source.stream.name()))?;
            source.len = spool.metadata()?.len();
            let consumed = word(usize::from(source.stream == Stream::Stderr));
            // A spool shorter than what was consumed of it has just begun again.
            source.consumed = if consumed > source.len { 0 } else { consumed };
            source.spool = Some(spool);
        }
        self.cursor = Some(cursor);
        for at in 0..self.sources.len() {
            self.flush(at, false);
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.log = Some(open_log(path)?);
            if self.cursor.is_some() {
                self.save_cursor();
            }
        }
        Ok(())
    }
}

/// The cursor file: consumed of stdout, consumed of stderr, length of the log, inode of the log. One small write, which
/// a kill cannot halve.
fn save(cursor: Option<&File>, log: Option<&File>, streams: &[Stream], consumed: &[u64]) {
    let Some(cursor) = cursor else { return };
    let mut words = [0u8; 32];
    let _ = cursor.read_at(&mut words, 0);
    for (stream, consumed) in streams.iter().zip(consumed) {
        let at = if *stream == Stream::Stdout { 0 } else { 8 };
        words[at..at + 8].copy_from_slice(&consumed.to_le_bytes());
    }
    let (len, ino) = log.and_then(|l| l.metadata().ok()).map_or((0, 0), |m| (m.len(), m.ino()));
    words[16..24].copy_from_slice(&len.to_le_bytes());
    words[24..].copy_from_slice(&ino.to_le_bytes());
    let _ = cursor.write_all_at(&words, 0);
}

fn open_rw(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Now, with nine digits.
fn stamp(clock: Clock) -> String {
    let now = clock.wall();
    let whole = jiff::Timestamp::from_second(now.as_nanosecond().div_euclid(1_000_000_000) as i64).unwrap_or_default();
    let text = whole.to_string();
    format!("{}.{:09}Z", text.trim_end_matches('Z'), now.as_nanosecond().rem_euclid(1_000_000_000))
}

/// Appends the log lines of `data`; returns how much of it they hold. A line without its end stays, unless it is too
/// long or this is the `end`.
fn encode(out: &mut Vec<u8>, stamp: &str, stream: Stream, data: &[u8], end: bool) -> usize {
    let mut used = 0;
    while used < data.len() {
        let rest = &data[used..];
        let newline = rest.iter().take(MAX_LINE + 1).position(|b| *b == b'\n');
        let (text, tag, taken) = match newline {
            Some(n) => (&rest[..n], 'F', n + 1),
            None if rest.len() > MAX_LINE => (&rest[..MAX_LINE], 'P', MAX_LINE),
            None if end => (rest, 'P', rest.len()),
            None => break,
        };
        let _ = write!(out, "{stamp} {} {tag} ", stream.name());
        out.extend_from_slice(text);
        out.push(b'\n');
        used += taken;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::pipe;

    fn lines(data: &[u8], end: bool) -> (String, usize) {
        let mut out = Vec::new();
        let used = encode(&mut out, "T", Stream::Stderr, data, end);
        (String::from_utf8(out).unwrap(), used)
    }

    #[test]
    fn whole_lines_are_full_and_only_long_or_last_ones_are_partial() {
        assert_eq!(lines(b"a\n\nbc", false), ("T stderr F a\nT stderr F \n".into(), 3));
        assert_eq!(lines(b"bc", true), ("T stderr P bc\n".into(), 2));
        let long = vec![b'x'; MAX_LINE + 5];
        let (text, used) = lines(&long, false);
        assert_eq!((text.len(), used), ("T stderr P \n".len() + MAX_LINE, MAX_LINE));
        let exact = [vec![b'x'; MAX_LINE], vec![b'\n']].concat();
        assert!(lines(&exact, false).0.starts_with("T stderr F "), "a line of exactly the limit is whole");
    }

    #[test]
    fn stamps_have_nine_digits() {
        let s = stamp(Clock::real());
        assert_eq!((s.len(), s.as_bytes()[10], s.as_bytes()[19]), (30, b'T', b'.'));
    }

    fn texts(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|l| l.splitn(4, ' ').nth(3).unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn a_killed_pump_loses_and_repeats_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let (r, w) = pipe().unwrap();
        let mut w = File::from(w);
        let spec = |r: &OwnedFd| LogSpec {
            path: Some(log.clone()),
            spool: dir.path().join("s"),
            sources: vec![r.try_clone().unwrap()],
            tty: false,
        };
        w.write_all(b"one\ntwo\npart").unwrap();
        {
            let (_handle, task) = pump(spec(&r), Clock::real()).unwrap();
            let mut task = Box::pin(task);
            // Polled once it drains the pipe; then it is dropped as a kill would drop it.
            let _ = futures::poll!(&mut task);
            let _ = tokio::task::yield_now().await;
            while texts(&log).len() < 2 {
                let _ = futures::poll!(&mut task);
                tokio::task::yield_now().await;
            }
        }
        // As if it had written a batch without advancing the cursor.
        File::options().append(true).open(&log).unwrap().write_all(b"T stdout F ghost\n").unwrap();
        w.write_all(b"ial\nend").unwrap();
        drop(w);
        let (_handle, task) = pump(spec(&r), Clock::real()).unwrap();
        drop(r);
        task.await;
        assert_eq!(texts(&log), ["one", "two", "partial", "end"]);
        assert!(!dir.path().join("s").exists());
    }
}
