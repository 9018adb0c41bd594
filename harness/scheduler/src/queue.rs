//! The scheduling queue. Pure: time is an argument. Source: k/k pkg/scheduler/backend/queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podlab_clock::Mono;

use crate::pod_info::Key;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A Pod nothing has helped for this long is tried again anyway.
const FLUSH_AFTER: Duration = Duration::from_secs(300);

/// Something in the cluster that may make a Pod schedulable. A Pod waits for the kinds its rejections name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClusterEvent {
    /// A node came.
    NodeAdd,
    /// A node's labels changed.
    NodeLabel,
    /// A node's taints or schedulability changed.
    NodeTaint,
    /// A node's allocatable grew.
    NodeAllocatable,
    /// An assigned Pod came or changed its labels.
    PodAdd,
    /// An assigned Pod went or freed resources.
    PodDelete,
    /// A claim, volume or class came or changed.
    Storage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Active,
    Backoff(Mono),
    Unschedulable {
        since: Mono,
        wants: BTreeSet<ClusterEvent>,
    },
    Gated,
    /// In a cycle or being bound; events seen meanwhile.
    InFlight(BTreeSet<ClusterEvent>),
}

#[derive(Debug, Clone)]
struct Entry {
    priority: i32,
    added: Mono,
    order: u64,
    attempts: u32,
    place: Place,
}

/// The Pods that want a node.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<Key, Entry>,
    counter: u64,
}

/// Back-off before attempt number `attempts` + 1: 1 s, 2 s, 4 s, 8 s, then 10 s.
pub(crate) fn backoff(attempts: u32) -> Duration {
    let factor = 2_u32.saturating_pow(attempts.saturating_sub(1).min(10));
    INITIAL_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
}

impl Queue {
    /// Adds a Pod, or takes note that its object changed: a change other than its status lets it be tried again.
    pub(crate) fn add(&mut self, key: &Key, priority: i32, gated: bool, spec_changed: bool, now: Mono) {
        self.counter += 1;
        let order = self.counter;
        let fresh = || Entry { priority, added: now, order, attempts: 0, place: Place::Active };
        let entry = self.entries.entry(key.clone()).or_insert_with(fresh);
        entry.priority = priority;
        match (&entry.place, gated) {
            (Place::InFlight(_), _) => {}
            (_, true) => entry.place = Place::Gated,
            (Place::Gated, false) => entry.place = Place::Active,
            (Place::Unschedulable { .. }, false) if spec_changed => entry.release(now),
            _ => {}
        }
    }

    /// Forgets a Pod: bound or deleted.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// Takes the next Pod: highest priority first, then first come first served.
    pub(crate) fn pop(&mut self, now: Mono) -> Option<Key> {
        self.expire(now);
        let active = self.entries.iter().filter(|(_, e)| e.place == Place::Active);
        let (key, _) = active.min_by_key(|(_, e)| (std::cmp::Reverse(e.priority), e.added, e.order))?;
        let key = key.clone();
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = Place::InFlight(BTreeSet::new());
            entry.attempts += 1;
        }
        Some(key)
    }

    /// Puts a Pod back that found no node; it waits for one of the events in `wants`.
    pub(crate) fn park(&mut self, key: &Key, wants: BTreeSet<ClusterEvent>, now: Mono) {
        if let Some(entry) = self.entries.get_mut(key) {
            let seen = match &entry.place {
                Place::InFlight(seen) => seen.clone(),
                _ => BTreeSet::new(),
            };
            let missed = seen.intersection(&wants).next().is_some();
            entry.place = Place::Unschedulable { since: now, wants };
            if missed {
                entry.release(now);
            }
        }
    }

    /// Puts a Pod back after an error: it is tried again when its back-off is over.
    pub(crate) fn retry(&mut self, key: &Key, now: Mono) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.place = Place::Backoff(now.after(backoff(entry.attempts)));
        }
    }

    /// Something happened: Pods waiting for it are tried again when their back-off allows.
    pub(crate) fn event(&mut self, event: ClusterEvent, now: Mono) {
        for entry in self.entries.values_mut() {
            match &mut entry.place {
                Place::Unschedulable { wants, .. } if wants.contains(&event) => entry.release(now),
                Place::InFlight(seen) => drop(seen.insert(event)),
                _ => {}
            }
        }
    }

    /// When the queue will next change by itself.
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        let deadline = |e: &Entry| match &e.place {
            Place::Backoff(until) => Some(*until),
            Place::Unschedulable { since, .. } => Some(since.after(FLUSH_AFTER)),
            Place::Active | Place::Gated | Place::InFlight(_) => None,
        };
        self.entries.values().filter_map(deadline).min()
    }

    fn expire(&mut self, now: Mono) {
        for entry in self.entries.values_mut() {
            match entry.place {
                Place::Backoff(until) if until <= now => entry.place = Place::Active,
                Place::Unschedulable { since, .. } if since.after(FLUSH_AFTER) <= now => entry.place = Place::Active,
                _ => {}
            }
        }
    }
}

impl Entry {
    /// To the active queue, or to back-off while that lasts. Back-off runs from the failed attempt.
    fn release(&mut self, now: Mono) {
        let since = match &self.place {
            Place::Unschedulable { since, .. } => *since,
            _ => now,
        };
        let until = since.after(backoff(self.attempts));
        self.place = if until <= now { Place::Active } else { Place::Backoff(until) };
    }
}
