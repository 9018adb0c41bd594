//! What a Pod's worker is told while it is busy: the newest form of its Pod, that something happened, that it must end.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use podlab_api::core::Pod;
use podlab_clock::{Clock, Mono};
use podlab_cri::v1::ContainerStatus;
use podlab_lifecycle::{runtime::RuntimeState, spec, status::Verdict};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Statuses kept from events; a Pod with more new containers than this asks the runtime.
const MAX_SNAPSHOTS: usize = 64;

/// Why and how a Pod is to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EndRequest {
    /// Grace in seconds, when the caller insists on one.
    pub(crate) grace: Option<i64>,
    /// What the status shall say about it.
    pub(crate) verdict: Option<Verdict>,
}

struct Inbox {
    pod: Arc<Pod>,
    pending: bool,
    end: EndRequest,
    /// State of each sandbox and container the worker has seen; older news is no news.
    known: BTreeMap<String, RuntimeState>,
    /// What the runtime's events said of containers that have just started.
    started: BTreeMap<String, ContainerStatus>,
    /// Something ended since the worker last read the runtime.
    ended: bool,
    finished: bool,
    removed: bool,
}

/// The mailbox of one worker. Cheap to share.
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    notify: Notify,
    /// Cancelled once the Pod must end; interrupts what a sync waits for.
    pub(crate) ending: CancellationToken,
    /// A resize of the Pod waits until another gives room.
    pub(crate) wants_room: AtomicBool,
}

/// How far a state is along; news of a lower rank is old.
fn rank(s: RuntimeState) -> u8 {
    match s {
        RuntimeState::Created => 0,
        RuntimeState::Running => 1,
        RuntimeState::Unknown => 2,
        RuntimeState::Exited => 3,
    }
}

impl Mailbox {
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        let inbox = Inbox {
            pod,
            pending: true,
            end: EndRequest::default(),
            known: BTreeMap::new(),
            started: BTreeMap::new(),
            ended: false,
            finished: false,
            removed: false,
        };
        Self {
            inbox: Mutex::new(inbox),
            notify: Notify::new(),
            ending: CancellationToken::new(),
            wants_room: AtomicBool::new(false),
        }
    }

    /// The Pod as last told.
    pub(crate) fn pod(&self) -> Arc<Pod> {
        self.inbox.lock().pod.clone()
    }

    /// A new form of the Pod. `sync` is false when only its status changed.
    pub(crate) fn update(&self, pod: Arc<Pod>, sync: bool) {
        let deleting = spec::is_deleting(&pod);
        {
            let mut inbox = self.inbox.lock();
            inbox.pod = pod;
            if sync || deleting {
                inbox.pending = true;
            }
        }
        if deleting {
            self.ending.cancel();
        }
        if sync || deleting {
            self.notify.notify_one();
        }
    }

    /// The Pod must end.
    pub(crate) fn end(&self, request: EndRequest) {
        {
            let mut inbox = self.inbox.lock();
            if request.grace.is_some() {
                inbox.end.grace = match (inbox.end.grace, request.grace) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            inbox.end.verdict = request.verdict.or_else(|| inbox.end.verdict.take());
            inbox.pending = true;
        }
        self.ending.cancel();
        self.notify.notify_one();
    }

    /// What ends the Pod, as far as anybody said.
    pub(crate) fn end_request(&self) -> EndRequest {
        self.inbox.lock().end.clone()
    }

    /// Something happened that a sync may react to.
    pub(crate) fn kick(&self) {
        self.inbox.lock().pending = true;
        self.notify.notify_one();
    }

    /// The runtime reports a state; a kick unless the worker has seen it already.
    pub(crate) fn runtime_event(&self, id: &str, state: RuntimeState) {
        {
            let mut inbox = self.inbox.lock();
            if inbox.known.get(id).is_some_and(|k| rank(*k) >= rank(state)) {
                return;
            }
            inbox.pending = true;
            inbox.ended |= state == RuntimeState::Exited;
        }
        self.notify.notify_one();
    }

    /// An event came with a container's status right after its start; it spares the worker from asking.
    pub(crate) fn started(&self, status: ContainerStatus) {
        let mut inbox = self.inbox.lock();
        if inbox.started.len() < MAX_SNAPSHOTS {
            inbox.started.insert(status.id.clone(), status);
        }
    }

    /// Takes what the events said of containers that have just started.
    pub(crate) fn take_started(&self) -> BTreeMap<String, ContainerStatus> {
        std::mem::take(&mut self.inbox.lock().started)
    }

    /// Whether something has ended since this was last asked.
    pub(crate) fn take_ended(&self) -> bool {
        std::mem::take(&mut self.inbox.lock().ended)
    }

    /// Takes note of what the worker has just read from the runtime.
    pub(crate) fn seen(&self, known: BTreeMap<String, RuntimeState>) {
        self.inbox.lock().known = known;
    }

    /// Takes the Pod, clearing the pending mark.
    pub(crate) fn take(&self) -> Arc<Pod> {
        let mut inbox = self.inbox.lock();
        inbox.pending = false;
        inbox.pod.clone()
    }

    /// Waits for news or for `due`.
    pub(crate) async fn wait(&self, clock: &Clock, due: Duration) {
        let at: Mono = clock.now().after(due);
        loop {
            if self.inbox.lock().pending {
                return;
            }
            tokio::select! {
                biased;
                () = self.notify.notified() => {}
                () = clock.sleep_until(at) => return,
            }
        }
    }

    /// Whether something has happened since the worker looked last.
    pub(crate) fn has_news(&self) -> bool {
        self.inbox.lock().pending
    }

    /// Marks the worker as done.
    pub(crate) fn finish(&self) {
        self.inbox.lock().finished = true;
    }

    /// Whether the worker is done.
    pub(crate) fn is_finished(&self) -> bool {
        self.inbox.lock().finished
    }

    /// The API object is gone.
    pub(crate) fn mark_removed(&self) {
        self.inbox.lock().removed = true;
    }

    /// Whether the API object is gone.
    pub(crate) fn is_removed(&self) -> bool {
        self.inbox.lock().removed
    }
}
