//! The in-memory state: objects, the window of history, and the watchers to tell.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::mpsc;

use crate::{Event, EventKind, StoreError, Stored};

/// Keys and objects in key order.
pub(crate) type Items = Vec<(Arc<str>, Arc<Stored>)>;

/// A registered watcher.
#[derive(Debug)]
pub(crate) struct Registered {
    pub id: u64,
    pub prefix: Box<str>,
    pub sender: mpsc::Sender<Arc<Event>>,
    /// Set when the watcher is closed because its channel was full.
    pub slow: Arc<AtomicBool>,
}

/// Everything that readers see. Guarded by one lock that is never held over I/O or an await.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub revision: u64,
    /// The newest revision whose event is no longer in `history`.
    pub compacted: u64,
    pub objects: BTreeMap<Arc<str>, Arc<Stored>>,
    pub history: VecDeque<Arc<Event>>,
    pub history_limit: usize,
    /// Watchers by resource, i.e. by the first two segments of their prefix.
    pub watchers: BTreeMap<Box<str>, Vec<Registered>>,
    pub next_watcher: u64,
    pub closed: bool,
}

impl State {
    /// Applies one change that is in the log, and tells the watchers.
    pub fn apply(&mut self, event: Event) {
        let event = Arc::new(event);
        self.revision = event.revision;
        match (event.kind, &event.stored) {
            (EventKind::Deleted, _) | (_, None) => {
                self.objects.remove(&event.key);
            }
            (_, Some(stored)) => {
                self.objects.insert(event.key.clone(), stored.clone());
            }
        }
        if let Some(watchers) = self.watchers.get_mut(resource_of(&event.key)) {
            watchers.retain(|w| !event.key.starts_with(&*w.prefix) || tell(w, &event));
        }
        self.history.push_back(event);
        while self.history.len() > self.history_limit {
            if let Some(old) = self.history.pop_front() {
                self.compacted = old.revision;
            }
        }
    }

    /// The objects under `prefix`, in key order.
    pub fn range<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Stored>)> {
        self.objects
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The objects under `prefix` as they were at `revision`: today's, with the later events undone.
    pub fn range_at(&self, prefix: &str, revision: u64) -> Result<Items, StoreError> {
        self.check_revision(revision)?;
        let mut then: BTreeMap<Arc<str>, Arc<Stored>> =
            self.range(prefix).map(|(k, v)| (k.clone(), v.clone())).collect();
        for event in self.history.iter().rev().take_while(|e| e.revision > revision) {
            if event.key.starts_with(prefix) {
                match &event.prev {
                    Some(prev) => then.insert(event.key.clone(), prev.clone()),
                    None => then.remove(&event.key),
                };
            }
        }
        Ok(then.into_iter().collect())
    }

    /// The events after `revision` under `prefix`.
    pub fn since(&self, prefix: &str, revision: u64) -> Result<VecDeque<Arc<Event>>, StoreError> {
        self.check_revision(revision)?;
        let first = self.history.partition_point(|e| e.revision <= revision);
        Ok(self.history.range(first..).filter(|e| e.key.starts_with(prefix)).cloned().collect())
    }

    fn check_revision(&self, revision: u64) -> Result<(), StoreError> {
        if revision < self.compacted {
            return Err(StoreError::Expired { requested: revision, oldest: self.compacted });
        }
        if revision > self.revision {
            return Err(StoreError::Future { requested: revision, current: self.revision });
        }
        Ok(())
    }

    /// Tells one watcher that it has seen everything up to now.
    pub fn progress(&self, resource: &str, id: u64) {
        if let Some(w) = self.watchers.get(resource).and_then(|all| all.iter().find(|w| w.id == id)) {
            // A full channel holds events that say more than a bookmark would.
            let _ = w.sender.try_send(Arc::new(Event::progress(self.revision)));
        }
    }
}

/// Hands an event to a watcher; false when it must be closed.
fn tell(watcher: &Registered, event: &Arc<Event>) -> bool {
    match watcher.sender.try_send(event.clone()) {
        Ok(()) => true,
        Err(mpsc::error::TrySendError::Closed(_)) => false,
        Err(mpsc::error::TrySendError::Full(_)) => {
            watcher.slow.store(true, Ordering::Release);
            false
        }
    }
}

/// `/<group>/<plural>/` of a key or prefix.
pub(crate) fn resource_of(key: &str) -> &str {
    let end = key.match_indices('/').nth(2).map_or(key.len(), |(at, _)| at + 1);
    &key[..end]
}
