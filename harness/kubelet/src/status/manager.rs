//! The ordered writer of Pod statuses.
//!
//! ```text
//! set ──changed──► queue of the Pod ──one at a time──► merge with what the API shows ──► PATCH
//!                                                                     queue empty, Pod finished ──► DELETE (grace 0)
//! ```
//! Upstream keeps only the newest status; its runtime is slow enough that a watcher still sees each of them. Here a
//! container may start and end within a millisecond, so every status has its own turn.
//! Source: k/k pkg/kubelet/status/status_manager.go.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use podlab_api::{
    ApiError,
    core::{Pod, PodStatus},
};
use podlab_client::{Client, DeleteOptions, PatchKind};
use podlab_clock::Clock;
use podlab_lifecycle::{
    conditions::condition_of,
    spec,
    status::{MayRun, merge, stamp, with_readiness, with_started},
    words::{Phase, condition},
};
use podlab_mutant::{self as mutant, Mutant};
use podlab_timeline::{PodKey, Recorder, Stage};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::patch;

/// First pause after a failed write; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Statuses of one Pod on their way; more than this are generated only while the API is away, and then the oldest go.
const MAX_QUEUE: usize = 64;

struct Write {
    status: PodStatus,
    may_run: MayRun,
}

/// Under which UID the API has a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    /// Its own.
    Itself,
    /// That of the mirror of a static Pod, if there is one.
    Mirror(Option<String>),
}

struct Entry {
    key: PodKey,
    shown_as: Shown,
    /// What was generated last, before merging.
    current: PodStatus,
    /// What the API showed last, and at which revision.
    shown: PodStatus,
    revision: u64,
    deleting: bool,
    queue: VecDeque<Write>,
    writing: bool,
    /// A terminal phase was held back by the last write.
    held: bool,
    /// Nothing is left of the Pod on the node.
    finished: bool,
    ready_stamped: bool,
}

/// Keeps and writes statuses.
pub(crate) struct StatusManager {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    entries: Mutex<BTreeMap<String, Entry>>,
    wake: mpsc::UnboundedSender<String>,
}

impl StatusManager {
    /// Makes the manager and the queue its [`StatusManager::run`] reads. The queue holds one UID per idle-to-busy turn
    /// of a Pod, so its length is bounded by the number of Pods.
    pub(crate) fn new(
        client: Client,
        clock: Clock,
        recorder: Recorder,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (wake, rx) = mpsc::unbounded_channel();
        (Arc::new(Self { client, clock, recorder, entries: Mutex::default(), wake }), rx)
    }

    /// Writes until `shutdown`, then what is on its way.
    pub(crate) async fn run(self: Arc<Self>, mut rx: mpsc::UnboundedReceiver<String>, shutdown: CancellationToken) {
        let writers = TaskTracker::new();
        while let Some(Some(uid)) = shutdown.run_until_cancelled(rx.recv()).await {
            let (manager, token) = (self.clone(), shutdown.clone());
            writers.spawn(async move { manager.drain(&uid, &token).await });
        }
        writers.close();
        writers.wait().await;
    }

    /// Takes notice of the API's view of a Pod: at first sight, and whenever it changes.
    pub(crate) fn observe(&self, pod: &Pod) {
        let m = &pod.metadata;
        let uid = m.uid.clone().unwrap_or_default();
        let revision = m.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
        let status = pod.status.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        let entry = entries.entry(uid.clone()).or_insert_with(|| Entry {
            key: key_of(pod),
            shown_as: if spec::is_static(pod) { Shown::Mirror(None) } else { Shown::Itself },
            current: status.clone(),
            shown: status.clone(),
            revision,
            deleting: false,
            queue: VecDeque::new(),
            writing: false,
            held: false,
            finished: false,
            ready_stamped: ready(&status),
        });
        if revision >= entry.revision {
            entry.shown = status;
            entry.revision = revision;
        }
        let was = std::mem::replace(&mut entry.deleting, m.deletion_timestamp.is_some());
        // A finished Pod that is deleted only now needs no worker to go.
        if entry.deleting && !was && entry.finished {
            self.start(&uid, entry);
        }
    }

    /// Takes notice of the mirror of a static Pod: at first sight, and whenever it changes.
    pub(crate) fn observe_mirror(&self, uid: &str, mirror: &Pod) {
        let m = &mirror.metadata;
        let revision = m.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(uid) else { return };
        let shown_as = Shown::Mirror(m.uid.clone());
        let news = entry.shown_as != shown_as;
        if news || revision >= entry.revision {
            entry.shown_as = shown_as;
            entry.shown = mirror.status.clone().unwrap_or_default();
            entry.revision = revision;
        }
        if news {
            self.catch_up(uid, entry);
        }
    }

    /// Whether this is the mirror that shows a static Pod.
    pub(crate) fn shows(&self, uid: &str, mirror: &Pod) -> bool {
        let shown = Shown::Mirror(mirror.metadata.uid.clone());
        self.entries.lock().get(uid).is_some_and(|e| e.shown_as == shown)
    }

    /// Whether the API shows something else than was last written, e.g. after a controller marked a Pod of a node
    /// that had been silent.
    pub(crate) fn reconcile(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&uid) else { return };
        self.catch_up(&uid, entry);
    }

    fn catch_up(&self, uid: &str, entry: &mut Entry) {
        if entry.queue.is_empty() && !entry.writing && entry.current.start_time.is_some() {
            let may_run = if entry.finished { MayRun::No } else { MayRun::Yes };
            let wanted = merge(&entry.shown, &entry.current, may_run);
            if patch::between(uid, &entry.shown, &wanted).is_some() {
                let status = entry.current.clone();
                entry.queue.push_back(Write { status, may_run });
                self.start(uid, entry);
            }
        }
    }

    /// The last generated status.
    pub(crate) fn get(&self, uid: &str) -> Option<PodStatus> {
        self.entries.lock().get(uid).map(|e| e.current.clone())
    }

    /// Sets the status of a Pod.
    pub(crate) fn set(&self, pod: &Pod, status: PodStatus, may_run: MayRun) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&uid) else { return };
        self.enqueue(&uid, entry, status, may_run);
    }

    fn enqueue(&self, uid: &str, entry: &mut Entry, status: PodStatus, may_run: MayRun) {
        let next = stamp(status, &entry.current, self.clock.wall());
        let release = entry.held && may_run == MayRun::No;
        if next == entry.current && !release {
            return;
        }
        if ready(&next) && !std::mem::replace(&mut entry.ready_stamped, true) {
            self.recorder.stage(&entry.key, Stage::Ready);
        }
        entry.held = may_run == MayRun::Yes && Phase::parse(next.phase.as_deref()).is_terminal();
        entry.current = next.clone();
        if entry.queue.len() == MAX_QUEUE {
            entry.queue.pop_front();
        }
        entry.queue.push_back(Write { status: next, may_run });
        self.start(uid, entry);
    }

    /// Marks the sandbox as ready, leaving everything else as it was.
    pub(crate) fn sandbox_ready(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&uid) else { return };
        let mut status = entry.current.clone();
        let mut mark = condition_of(condition::READY_TO_START, true, None, None);
        mark.observed_generation = pod.metadata.generation;
        let list = status.conditions.get_or_insert_default();
        match list.iter_mut().find(|c| c.type_ == mark.type_) {
            Some(c) => *c = mark,
            None => list.push(mark),
        }
        self.enqueue(&uid, entry, status, MayRun::Yes);
    }

    /// Applies a probe's word on readiness at once, whatever the worker is busy with.
    pub(crate) fn set_readiness(&self, pod: &Pod, container_id: &str, ready: bool) {
        self.adjust(pod, |status| with_readiness(pod, status, container_id, ready));
    }

    /// Applies the startup probe's word.
    pub(crate) fn set_started(&self, pod: &Pod, container_id: &str, started: bool) {
        self.adjust(pod, |status| with_started(pod, status, container_id, started));
    }

    fn adjust(&self, pod: &Pod, change: impl FnOnce(&PodStatus) -> Option<PodStatus>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&uid) else { return };
        if let Some(next) = change(&entry.current) {
            let may_run = if entry.finished { MayRun::No } else { MayRun::Yes };
            self.enqueue(&uid, entry, next, may_run);
        }
    }

    /// Nothing is left of the Pod on the node: once everything is written, a deleted Pod's object goes.
    pub(crate) fn finish(&self, uid: &str) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(uid) {
            entry.finished = true;
            self.start(uid, entry);
        }
    }

    /// Forgets a Pod whose object is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.entries.lock().remove(uid);
    }

    fn start(&self, uid: &str, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.writing, true) {
            // The receiver lives as long as the agent; after that nothing is written any more.
            let _ = self.wake.send(uid.to_owned());
        }
    }

    async fn drain(&self, uid: &str, shutdown: &CancellationToken) {
        loop {
            let next = {
                let mut entries = self.entries.lock();
                let Some(entry) = entries.get_mut(uid) else { return };
                match entry.queue.pop_front() {
                    Some(w) => Some((entry.key.clone(), w)),
                    None if entry.finished && entry.deleting => None,
                    None => {
                        entry.writing = false;
                        return;
                    }
                }
            };
            match next {
                Some((key, write)) => self.write(uid, &key, write, shutdown).await,
                None => {
                    self.delete(uid, shutdown).await;
                    if let Some(entry) = self.entries.lock().get_mut(uid) {
                        entry.writing = false;
                    }
                    return;
                }
            }
        }
    }

    async fn write(&self, uid: &str, key: &PodKey, write: Write, shutdown: &CancellationToken) {
        let pods = self.client.namespaced::<Pod>(&key.namespace);
        let mut pause = RETRY_FIRST;
        loop {
            let body = {
                let entries = self.entries.lock();
                let Some(entry) = entries.get(uid) else { return };
                let api_uid = match &entry.shown_as {
                    Shown::Itself => uid,
                    Shown::Mirror(Some(mirror)) => mirror.as_str(),
                    // Nobody shows it; a mirror that comes is brought up to date.
                    Shown::Mirror(None) => return,
                };
                let wanted = merge(&entry.shown, &write.status, write.may_run);
                patch::between(api_uid, &entry.shown, &wanted)
            };
            let Some(body) = body else { return };
            match pods.patch_status(&key.name, &PatchKind::Strategic, &body).await {
                Ok(pod) => {
                    if ready(&write.status) {
                        self.recorder.stage(key, Stage::StatusWritten);
                    }
                    return if spec::is_mirror(&pod) { self.observe_mirror(uid, &pod) } else { self.observe(&pod) };
                }
                Err(e) if lost(&e) || mutant::is(Mutant::StatusWrittenOnce) => return,
                Err(error) => {
                    tracing::warn!(pod = key.name, %error, "status not written");
                    if shutdown.run_until_cancelled(self.clock.sleep(pause)).await.is_none() {
                        return;
                    }
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    async fn delete(&self, uid: &str, shutdown: &CancellationToken) {
        let Some(key) = self.entries.lock().get(uid).map(|e| e.key.clone()) else { return };
        let pods = self.client.namespaced::<Pod>(&key.namespace);
        let options =
            DeleteOptions { grace_period: Some(Duration::ZERO), uid: Some(uid.to_owned()), ..DeleteOptions::default() };
        let mut pause = RETRY_FIRST;
        loop {
            match pods.delete(&key.name, &options).await {
                Ok(()) => return,
                Err(e) if lost(&e) => return,
                Err(error) => {
                    tracing::warn!(pod = key.name, %error, "pod not deleted");
                    if shutdown.run_until_cancelled(self.clock.sleep(pause)).await.is_none() {
                        return;
                    }
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }
}

/// Whether the object is gone or is another one by now.
fn lost(e: &ApiError) -> bool {
    e.is_not_found() || e.is_conflict()
}

fn ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == condition::READY && c.status == "True")
}

/// The timeline's key of a Pod.
pub(crate) fn key_of(pod: &Pod) -> PodKey {
    let m = &pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    PodKey { namespace: text(&m.namespace), name: text(&m.name), uid: text(&m.uid) }
}
