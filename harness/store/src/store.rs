//! The store itself: checks a write, logs it, applies it, in that order; serves reads and watches.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use podlab_api::Object;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Event, EventKind, StoreError, Stored, Watcher,
    log::{Log, Record, push_record},
    state::{Registered, State, resource_of},
};

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durable {
    /// Nothing: there is no log.
    Off,
    /// The end of any process: the log has reached the kernel.
    #[default]
    Batch,
    /// The loss of power: the log has reached the disk. Concurrent writes share one flush.
    Always,
}

/// How to open a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Directory of the log; created when absent. Without it nothing is kept.
    pub dir: Option<PathBuf>,
    /// What an acknowledged write survives.
    pub durable: Durable,
    /// How many events of history are kept for watches and reads at an older revision.
    pub history: usize,
    /// How many events a watcher may lag behind before it is closed.
    pub watch_buffer: usize,
    /// Size in bytes from which the log is considered for a rewrite.
    pub rotate_bytes: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        // 16384 events are more than a minute of the busiest stress run; a watcher that is a quarter of that behind
        // will not catch up.
        Self { dir: None, durable: Durable::default(), history: 16_384, watch_buffer: 4096, rotate_bytes: 64 << 20 }
    }
}

/// The objects under a prefix at one revision.
#[derive(Debug)]
pub struct Listing {
    /// Keys and objects in key order.
    pub items: Vec<(Arc<str>, Arc<Stored>)>,
    /// The revision they are from.
    pub revision: u64,
}

#[derive(Debug)]
enum Op {
    Create(Object),
    Update(Object, u64),
    Delete(Option<u64>),
}

type Answer = Result<Arc<Stored>, StoreError>;

#[derive(Debug)]
struct Request {
    key: Arc<str>,
    op: Op,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub state: RwLock<State>,
    /// Held by whoever writes; `None` inside when there is no log. Taken before `state`, never after.
    log: Mutex<Option<Log>>,
    watch_buffer: usize,
}

/// A handle to the store. All methods are safe to call from any thread.
#[derive(Debug)]
pub struct Store {
    inner: Arc<Inner>,
    /// Set with [`Durable::Always`]: the thread that batches writes over one flush.
    committer: Mutex<Option<(mpsc::Sender<Request>, JoinHandle<()>)>>,
}

impl Store {
    /// Opens a store and replays its log.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the log cannot be opened, is in use by another process, or is from a later version.
    pub fn open(config: StoreConfig) -> Result<Arc<Self>, StoreError> {
        let mut state = State { history_limit: config.history.max(1), ..State::default() };
        let log = match (&config.dir, config.durable) {
            (None, _) | (_, Durable::Off) => None,
            (Some(dir), durable) => {
                let replayed = Log::open(dir, durable == Durable::Always, config.rotate_bytes, |record, base| {
                    replay(&mut state, &record, base)
                });
                let (log, base) = replayed.map_err(|e| StoreError::Open { path: dir.clone(), source: Arc::new(e) })?;
                state.revision = state.revision.max(base);
                state.compacted = state.compacted.max(base);
                Some(log)
            }
        };
        let threaded = log.is_some() && config.durable == Durable::Always;
        let inner = Arc::new(Inner {
            state: RwLock::new(state),
            log: Mutex::new(log),
            watch_buffer: config.watch_buffer.max(1),
        });
        let committer = if threaded {
            // Twice as many as ever wait in practice; a full queue makes writers wait, it loses nothing.
            let (sender, receiver) = mpsc::channel(1024);
            let shared = inner.clone();
            let spawned =
                std::thread::Builder::new().name("store-log".into()).spawn(move || shared.commit_loop(receiver));
            let path = config.dir.unwrap_or_default();
            Some((sender, spawned.map_err(|e| StoreError::Open { path, source: Arc::new(e) })?))
        } else {
            None
        };
        Ok(Arc::new(Self { inner, committer: Mutex::new(committer) }))
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.inner.state.read().revision
    }

    /// The newest version under a key.
    pub fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.inner.state.read().objects.get(key).cloned()
    }

    /// How many objects are under a prefix.
    pub fn count(&self, prefix: &str) -> usize {
        self.inner.state.read().range(prefix).count()
    }

    /// The objects under `prefix`, now or as they were at a revision: one consistent snapshot.
    ///
    /// # Errors
    /// [`StoreError::Expired`] and [`StoreError::Future`] for a revision outside the history.
    pub fn list(&self, prefix: &str, at: Option<u64>) -> Result<Listing, StoreError> {
        let state = self.inner.state.read();
        match at.filter(|r| *r != state.revision) {
            None => {
                let items = state.range(prefix).map(|(k, v)| (k.clone(), v.clone())).collect();
                Ok(Listing { items, revision: state.revision })
            }
            Some(revision) => Ok(Listing { items: state.range_at(prefix, revision)?, revision }),
        }
    }

    /// Writes a new object and returns it with its revision. Dropping the future may still create it.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Log`].
    pub async fn create(&self, key: &str, object: Object) -> Result<Arc<Stored>, StoreError> {
        self.write(key, Op::Create(object)).await
    }

    /// Replaces the version `expected`. Dropping the future may still write.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], [`StoreError::Log`].
    pub async fn update(&self, key: &str, expected: u64, object: Object) -> Result<Arc<Stored>, StoreError> {
        self.write(key, Op::Update(object, expected)).await
    }

    /// Removes the object, if it is at the expected revision when one is given; returns its last state with the
    /// deletion's revision. Dropping the future may still delete.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], [`StoreError::Log`].
    pub async fn delete(&self, key: &str, expected: Option<u64>) -> Result<Arc<Stored>, StoreError> {
        self.write(key, Op::Delete(expected)).await
    }

    /// Watches a prefix, from after a revision, or from now.
    ///
    /// # Errors
    /// [`StoreError::Expired`] and [`StoreError::Future`] for a revision outside the history.
    pub fn watch(&self, prefix: &str, after: Option<u64>) -> Result<Watcher, StoreError> {
        let mut state = self.inner.state.write();
        let backlog = after.map_or_else(|| Ok(VecDeque::new()), |revision| state.since(prefix, revision))?;
        self.register(&mut state, prefix, backlog)
    }

    /// The objects under a prefix and a watch that continues exactly after them.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn list_watch(&self, prefix: &str) -> Result<(Listing, Watcher), StoreError> {
        let mut state = self.inner.state.write();
        let items = state.range(prefix).map(|(k, v)| (k.clone(), v.clone())).collect();
        let revision = state.revision;
        Ok((Listing { items, revision }, self.register(&mut state, prefix, VecDeque::new())?))
    }

    /// Ends every watch and refuses further writes. Writes already begun are finished.
    pub fn close(&self) {
        if let Some((sender, thread)) = self.committer.lock().take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the log thread panicked");
            }
        }
        let _last_write_is_done = self.inner.log.lock();
        let mut state = self.inner.state.write();
        state.closed = true;
        state.watchers.clear();
    }

    fn register(&self, state: &mut State, prefix: &str, backlog: VecDeque<Arc<Event>>) -> Result<Watcher, StoreError> {
        if state.closed {
            return Err(StoreError::Closed);
        }
        let (sender, receiver) = mpsc::channel(self.inner.watch_buffer);
        let (slow, resource, id) = (Arc::new(AtomicBool::new(false)), resource_of(prefix), state.next_watcher);
        state.next_watcher += 1;
        let entry = Registered { id, prefix: prefix.into(), sender, slow: slow.clone() };
        state.watchers.entry(resource.into()).or_default().push(entry);
        let store = Arc::downgrade(&self.inner);
        Ok(Watcher { id, resource: resource.into(), backlog, receiver, slow, store })
    }

    async fn write(&self, key: &str, op: Op) -> Answer {
        let key: Arc<str> = key.into();
        let sender = self.committer.lock().as_ref().map(|(sender, _)| sender.clone());
        let Some(sender) = sender else {
            return self.inner.commit(vec![(key, op)]).pop().unwrap_or(Err(StoreError::Closed));
        };
        let (answer, answered) = oneshot::channel();
        sender.send(Request { key, op, answer }).await.map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn commit_loop(&self, mut requests: mpsc::Receiver<Request>) {
        while let Some(first) = requests.blocking_recv() {
            let (mut batch, mut answers) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(request) = next {
                batch.push((request.key, request.op));
                answers.push(request.answer);
                // 256 objects are about 1 MB: one flush is not slower for them than for one.
                next = if batch.len() < 256 { requests.try_recv().ok() } else { None };
            }
            for (answer, result) in answers.into_iter().zip(self.commit(batch)) {
                // The writer may have gone away; its write stands all the same.
                let _ = answer.send(result);
            }
        }
    }

    /// Checks, logs and applies a batch of writes; the answers are in the order of the writes.
    fn commit(&self, batch: Vec<(Arc<str>, Op)>) -> Vec<Answer> {
        let mut log = self.log.lock();
        let mut frames = Vec::new();
        let mut staged: Vec<Result<Event, StoreError>> = Vec::with_capacity(batch.len());
        {
            // Only the holder of `log` writes to `state`, so what is read here stays true until it is applied.
            let state = self.state.read();
            let mut overlay: BTreeMap<Arc<str>, Option<Arc<Stored>>> = BTreeMap::new();
            let mut revision = state.revision;
            for (key, op) in batch {
                if state.closed {
                    staged.push(Err(StoreError::Closed));
                    continue;
                }
                let current = overlay.get(&key).cloned().unwrap_or_else(|| state.objects.get(&key).cloned());
                let made = stage(&key, op, current, revision + 1, log.is_some().then_some(&mut frames));
                if let Ok(event) = &made {
                    revision += 1;
                    let alive = if event.kind == EventKind::Deleted { None } else { event.stored.clone() };
                    overlay.insert(key, alive);
                }
                staged.push(made);
            }
        }
        if let (Some(log), false) = (log.as_mut(), frames.is_empty())
            && let Err(e) = log.append(&frames)
        {
            tracing::error!(error = %e, "a write was refused because the log cannot be written");
            let error = StoreError::Log(Arc::new(e));
            return staged.into_iter().map(|s| Err(s.err().unwrap_or_else(|| error.clone()))).collect();
        }
        let mut state = self.state.write();
        let answers = staged
            .into_iter()
            .map(|made| {
                let event = made?;
                let stored = event.stored.clone().ok_or(StoreError::Closed)?;
                state.apply(event);
                Ok(stored)
            })
            .collect();
        let state = parking_lot::RwLockWriteGuard::downgrade(state);
        if let Some(log) = log.as_mut().filter(|log| log.wants_rotation()) {
            let live = state.objects.iter().map(|(k, s)| (s.revision, &**k, &s.json()[..]));
            if let Err(e) = log.rotate(state.revision, live) {
                tracing::warn!(error = %e, "the log could not be rewritten and keeps growing");
            }
        }
        answers
    }
}

/// Checks one write against the current version and gives it its revision.
fn stage(
    key: &Arc<str>,
    op: Op,
    current: Option<Arc<Stored>>,
    revision: u64,
    frames: Option<&mut Vec<u8>>,
) -> Result<Event, StoreError> {
    let not_found = || StoreError::NotFound { key: key.to_string() };
    let conflict = |current: &Stored| StoreError::Conflict { key: key.to_string(), current: current.revision };
    let (kind, mut object) = match (op, &current) {
        (Op::Create(_), Some(_)) => return Err(StoreError::Exists { key: key.to_string() }),
        (Op::Create(object), None) => (EventKind::Added, object),
        (Op::Update(..) | Op::Delete(_), None) => return Err(not_found()),
        (Op::Update(_, expected), Some(c)) if expected != c.revision => return Err(conflict(c)),
        (Op::Update(object, _), Some(_)) => (EventKind::Modified, object),
        (Op::Delete(Some(expected)), Some(c)) if expected != c.revision => return Err(conflict(c)),
        (Op::Delete(_), Some(c)) => (EventKind::Deleted, (*c.object).clone()),
    };
    object.meta_mut().insert("resourceVersion".into(), Value::String(revision.to_string()));
    let stored = match frames {
        None => Stored::new(object, revision),
        Some(frames) => {
            let encode = |why: String| StoreError::Encode { key: key.to_string(), why };
            let json = Bytes::from(serde_json::to_vec(&object).map_err(|e| encode(e.to_string()))?);
            let logged = (kind != EventKind::Deleted).then_some(&json[..]);
            push_record(frames, revision, key, logged).map_err(|e| encode(e.to_string()))?;
            Stored::encoded(object, revision, json)
        }
    };
    Ok(Event::new(kind, revision, key.clone(), Arc::new(stored), current))
}

/// Brings one logged write back into the state.
fn replay(state: &mut State, record: &Record<'_>, base: u64) -> std::io::Result<()> {
    let object: Option<Object> = serde_json::from_str(record.o.get())?;
    let key: Arc<str> = Arc::from(&*record.k);
    if record.r <= base {
        if let Some(object) = object {
            state.objects.insert(key, Arc::new(Stored::new(object, record.r)));
        }
        return Ok(());
    }
    state.compacted = state.compacted.max(base);
    let prev = state.objects.get(&key).cloned();
    let (kind, mut object) = match (object, &prev) {
        (Some(object), None) => (EventKind::Added, object),
        (Some(object), Some(_)) => (EventKind::Modified, object),
        (None, Some(prev)) => (EventKind::Deleted, (*prev.object).clone()),
        (None, None) => return Ok(()),
    };
    object.meta_mut().insert("resourceVersion".into(), Value::String(record.r.to_string()));
    state.apply(Event::new(kind, record.r, key, Arc::new(Stored::new(object, record.r)), prev));
    Ok(())
}
