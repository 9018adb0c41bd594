//! Where components write: a cheap handle over a sink. The file sink appends one JSON line per entry with a single
//! `write(2)` on an `O_APPEND` descriptor, so processes of a run can share one file and a killed process loses nothing
//! that it had recorded.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use podlab_clock::{Clock, Mono};

use crate::{Entry, Event, Lane, Outcome, PodKey, SCHEMA_VERSION, Stage};

/// The log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("open run log {path}")]
pub struct RecorderError {
    /// Which file.
    path: PathBuf,
    /// Why.
    #[source]
    source: std::io::Error,
}

/// Takes entries. Must not block for long and must not fail: a log that cannot be written is reported by its reader.
pub trait Sink: Send + Sync {
    /// Appends one entry.
    fn append(&self, entry: &Entry);
}

/// Handle that components record with. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    sink: Option<Arc<dyn Sink>>,
    clock: Clock,
    lane: Lane,
    node: Option<String>,
    planted: Option<(Stage, Duration)>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("lane", &self.lane).field("node", &self.node).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that keeps nothing.
    pub fn disabled(clock: Clock) -> Self {
        Self { sink: None, clock, lane: Lane::Run, node: None, planted: None }
    }

    /// A recorder over any sink.
    pub fn new(sink: Arc<dyn Sink>, clock: Clock) -> Self {
        Self { sink: Some(sink), clock, lane: Lane::Run, node: None, planted: None }
    }

    /// A recorder that appends to a file, created when absent.
    ///
    /// # Errors
    /// [`RecorderError`] when the file cannot be opened.
    pub fn to_file(path: &Path, clock: Clock) -> Result<Self, RecorderError> {
        let open = File::options().create(true).append(true).open(path);
        let file = open.map_err(|source| RecorderError { path: path.to_owned(), source })?;
        Ok(Self::new(Arc::new(file), clock))
    }

    /// The same log, written as another lane.
    #[must_use]
    pub fn lane(&self, lane: Lane) -> Self {
        Self { lane, ..self.clone() }
    }

    /// The same log, written on a node.
    #[must_use]
    pub fn on_node(&self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self.clone() }
    }

    /// The same log, whose writer is held up for `delay` just before it records `stage`: a known slowness in one phase, for
    /// seeing that it is found. The thread is kept busy, as by a computation, so that the delay is exact.
    #[must_use]
    pub fn planted(&self, stage: Stage, delay: Duration) -> Self {
        Self { planted: Some((stage, delay)), ..self.clone() }
    }

    /// Now, on the clock of the log.
    pub fn now(&self) -> Mono {
        self.clock.now()
    }

    /// Records a milestone of a Pod, stamped now.
    pub fn stage(&self, pod: &PodKey, stage: Stage) {
        self.record(Some(pod.clone()), Event::Stage(stage));
    }

    /// Records a call that began at `start` and ends now.
    pub fn call(&self, pod: Option<&PodKey>, method: &str, subject: &str, start: Mono, outcome: Outcome) {
        let event = Event::Call { method: method.to_owned(), start, outcome, subject: subject.to_owned() };
        self.record(pod.cloned(), event);
    }

    /// Records anything, stamped now.
    pub fn record(&self, pod: Option<PodKey>, event: Event) {
        if let (Some((slow, delay)), Event::Stage(stage)) = (self.planted, &event)
            && slow == *stage
        {
            let end = self.clock.now().after(delay);
            while self.clock.now() < end {
                std::hint::spin_loop();
            }
        }
        if let Some(sink) = &self.sink {
            let t = self.clock.now();
            sink.append(&Entry { v: SCHEMA_VERSION, t, lane: self.lane, pod, node: self.node.clone(), event });
        }
    }
}

impl Sink for File {
    fn append(&self, entry: &Entry) {
        if let Ok(mut line) = serde_json::to_vec(entry) {
            line.push(b'\n');
            // A failed write (disk full) loses the entry, not the run; readers report the gap as `unattributed`.
            let _ = (&mut &*self).write_all(&line);
        }
    }
}

/// Keeps entries in memory, for tests and the virtual world.
#[derive(Debug, Default)]
pub struct MemorySink(Mutex<Vec<Entry>>);

impl MemorySink {
    /// Everything recorded so far, in order.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl Sink for MemorySink {
    fn append(&self, entry: &Entry) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(entry.clone());
    }
}
