//! The test image's programs as futures: the same grammar, the same tools, on the world's clock, files and network.
//!
//! What [`run`] returns is the life of one process. Dropping it is SIGKILL.

mod files;
mod http;
mod shell;
mod tools;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use podlab_clock::Clock;
use podlab_kubelet::fake::MemoryHost;
use podlab_testimage::TOOLS;
use tokio::sync::Notify;

pub(super) use files::{Files, Mount};

use super::network::Attachment;

/// Most bytes a command's captured output may have.
const MAX_OUTPUT: usize = 1 << 20;

/// The number of TERM.
pub(super) const TERM: i32 = 15;

/// Signals of one process. As PID 1 it dies of none it has not asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    sets: Mutex<(BTreeSet<i32>, BTreeSet<i32>)>,
    came: Notify,
}

impl Signals {
    /// Delivers a signal; one that is not caught is lost, as for PID 1.
    pub(super) fn send(&self, number: i32) {
        let mut sets = self.0.sets.lock();
        if sets.0.contains(&number) {
            sets.1.insert(number);
            drop(sets);
            self.0.came.notify_one();
        }
    }

    fn catch(&self, number: i32) {
        self.0.sets.lock().0.insert(number);
    }

    fn reset(&self, number: i32) {
        self.0.sets.lock().0.remove(&number);
    }

    /// Takes the lowest pending signal.
    fn take(&self) -> Option<i32> {
        self.0.sets.lock().1.pop_first()
    }

    fn pending(&self) -> bool {
        !self.0.sets.lock().1.is_empty()
    }

    /// Waits until a caught signal is pending. Safe to drop.
    async fn wait(&self) {
        while !self.pending() {
            self.0.came.notified().await;
        }
    }
}

/// Memory of one container.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(Arc<Mutex<MemoryState>>);

#[derive(Debug, Default)]
struct MemoryState {
    limit: Option<u64>,
    used: u64,
    killed: bool,
}

impl Memory {
    pub(super) fn limited(limit: Option<u64>) -> Self {
        Self(Arc::new(Mutex::new(MemoryState { limit, ..MemoryState::default() })))
    }

    /// Whether the kernel would have killed for it.
    pub(super) fn killed(&self) -> bool {
        self.0.lock().killed
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.0.lock().used
    }

    pub(super) fn set_limit(&self, limit: Option<u64>) {
        self.0.lock().limit = limit;
    }

    /// Takes memory; false when that was too much.
    fn take(&self, bytes: u64) -> bool {
        let mut m = self.0.lock();
        m.used += bytes;
        m.killed |= m.limit.is_some_and(|l| m.used > l);
        !m.killed
    }
}

/// Where output goes.
#[derive(Clone)]
pub(super) enum Sink {
    Buffer(Arc<Mutex<Vec<u8>>>),
    /// A path in the container's files; appended to.
    File(PathBuf),
    Log(Arc<Log>, &'static str),
}

/// A container's log file, in the CRI format.
pub(super) struct Log {
    pub(super) host: Arc<MemoryHost>,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) rest: Mutex<BTreeMap<&'static str, Vec<u8>>>,
}

impl Log {
    fn write(&self, stream: &'static str, bytes: &[u8]) {
        let mut rest = self.rest.lock();
        let pending = rest.entry(stream).or_default();
        pending.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            self.line(&mut out, stream, 'F', &line[..line.len() - 1]);
        }
        if !out.is_empty() {
            self.host.append(&self.path, &out);
        }
    }

    fn line(&self, out: &mut Vec<u8>, stream: &str, tag: char, text: &[u8]) {
        // Nine digits always, as containerd writes them.
        let stamp = format!("{:.9}", self.clock.wall());
        out.extend_from_slice(format!("{stamp} {stream} {tag} ").as_bytes());
        out.extend_from_slice(text);
        out.push(b'\n');
    }

    /// Writes what has no newline yet; called when the container has ended.
    pub(super) fn finish(&self) {
        let mut out = Vec::new();
        for (stream, text) in std::mem::take(&mut *self.rest.lock()) {
            if !text.is_empty() {
                self.line(&mut out, stream, 'P', &text);
            }
        }
        if !out.is_empty() {
            self.host.append(&self.path, &out);
        }
    }
}

/// Who a process runs as.
#[derive(Debug, Clone, Default)]
pub(super) struct User {
    pub(super) uid: i64,
    pub(super) gid: i64,
    pub(super) groups: Vec<i64>,
}

/// Everything a process sees.
#[derive(Clone)]
pub(super) struct Proc {
    pub(super) clock: Clock,
    pub(super) files: Files,
    pub(super) net: Attachment,
    pub(super) out: Sink,
    pub(super) err: Sink,
    pub(super) input: Arc<Mutex<VecDeque<u8>>>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: PathBuf,
    pub(super) signals: Signals,
    /// Signals of the container's first process, for `kill 1`.
    pub(super) init_signals: Signals,
    pub(super) user: User,
    pub(super) hostname: String,
    pub(super) memory: Memory,
}

impl Proc {
    fn write(&self, sink: &Sink, bytes: &[u8]) {
        match sink {
            Sink::Buffer(b) => {
                let mut b = b.lock();
                let room = MAX_OUTPUT.saturating_sub(b.len());
                b.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            // A full or missing file is the writer's loss, as with a closed descriptor.
            Sink::File(path) => drop(self.files.append(path, bytes)),
            Sink::Log(log, stream) => log.write(stream, bytes),
        }
    }

    fn print(&self, text: &str) {
        self.write(&self.out, text.as_bytes());
    }

    fn complain(&self, text: &str) {
        self.write(&self.err, format!("{text}\n").as_bytes());
    }

    /// A path as the process means it.
    fn at(&self, path: &str) -> PathBuf {
        self.cwd.join(Path::new(path))
    }

    /// Sleeps; a caught signal ends it early.
    async fn sleep(&self, d: Duration) {
        tokio::select! {
            biased;
            () = self.signals.wait() => {}
            () = self.clock.sleep(d) => {}
        }
    }

    /// The same process with its own signals, as a child has them.
    fn child(&self) -> Self {
        Self { signals: Signals::default(), ..self.clone() }
    }
}

/// Runs a command to its end; its exit code. A name nobody knows is 127, as a shell says it.
pub(super) fn run(p: Proc, argv: Vec<String>) -> BoxFuture<'static, i32> {
    Box::pin(async move {
        let mut argv = argv;
        let Some(first) = argv.first() else { return 127 };
        let name = Path::new(first).file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if matches!(name.as_str(), "testimage" | "busybox") && argv.len() > 1 {
            argv.remove(0);
        } else {
            argv[0] = name;
        }
        match argv[0].as_str() {
            "sh" => shell::main(p, &argv).await,
            "serve" => http::serve(&p, &argv[1..]).await,
            "fetch" | "wget" => http::fetch(&p, &argv[1..]).await,
            "nc" => http::nc(&p, &argv[1..]).await,
            "dns" | "nslookup" => http::dns(&p, &argv[1..]).await,
            _ => tools::run(&p, &argv).await,
        }
    })
}

/// Whether the image has a program of that name; `path` may be a bare name or a path.
pub(super) fn exists(path: &str) -> bool {
    let name = Path::new(path).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let dir = Path::new(path).parent().map(|d| d.display().to_string()).unwrap_or_default();
    (TOOLS.contains(&name) || matches!(name, "testimage" | "busybox")) && matches!(dir.as_str(), "" | "/bin" | "/")
}
