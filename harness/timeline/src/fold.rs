//! From the log to one timeline per Pod: milestones, phases that add up, calls, and a normal form for snapshots.

mod normal;
mod phases;
mod read;

use std::collections::BTreeMap;

use podlab_clock::Mono;

use crate::{Entry, Event, Lane, Outcome, PodKey, Stage};
pub use normal::NORMAL_FORM_VERSION;
pub use phases::{PHASES, Phase, Phases};
pub use read::{ReadError, read_log};

/// A call of a Pod's timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who.
    pub lane: Lane,
    /// Which method.
    pub method: String,
    /// About what.
    pub subject: String,
    /// From.
    pub start: Mono,
    /// To.
    pub end: Mono,
    /// How it ended.
    pub outcome: Outcome,
}

/// A Kubernetes event as last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenEvent {
    /// When it was first seen.
    pub first: Mono,
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Component.
    pub source: String,
    /// Repeats.
    pub count: u32,
    /// Part of the object.
    pub field_path: String,
}

/// Everything the log says of one Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodTimeline {
    /// How many entries the log had before it first spoke of this Pod: the order of Pods that had one name after the other,
    /// also under a clock that stood still meanwhile.
    pub place: usize,
    /// Milestones, the first time each was reached.
    pub stages: BTreeMap<Stage, Mono>,
    /// Calls in order of their end.
    pub calls: Vec<Call>,
    /// Values of watched fields in order.
    pub fields: BTreeMap<String, Vec<(Mono, String)>>,
    /// Events in order of first appearance.
    pub events: Vec<SeenEvent>,
}

/// Folds a log into timelines by Pod. Entries may be in any order; those of one Pod that lack the UID (a CNI call) are
/// joined to the Pod of that name that is known by then.
pub fn fold(entries: &[Entry]) -> BTreeMap<PodKey, PodTimeline> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by_key(|e| e.t);
    let mut uids: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut out: BTreeMap<PodKey, PodTimeline> = BTreeMap::new();
    for (place, entry) in sorted.into_iter().enumerate() {
        let Some(pod) = &entry.pod else { continue };
        let mut key = pod.clone();
        let name = (key.namespace.clone(), key.name.clone());
        if key.uid.is_empty() {
            key.uid = uids.get(&name).cloned().unwrap_or_default();
        } else {
            uids.insert(name, key.uid.clone());
        }
        let fresh = || PodTimeline { place, ..PodTimeline::default() };
        apply(out.entry(key).or_insert_with(fresh), entry);
    }
    out
}

fn apply(timeline: &mut PodTimeline, entry: &Entry) {
    match &entry.event {
        Event::Stage(stage) => {
            timeline.stages.entry(*stage).or_insert(entry.t);
        }
        Event::Call { method, start, outcome, subject } => timeline.calls.push(Call {
            lane: entry.lane,
            method: method.clone(),
            subject: subject.clone(),
            start: *start,
            end: entry.t,
            outcome: outcome.clone(),
        }),
        Event::Field { name, value } => {
            let values = timeline.fields.entry(name.clone()).or_default();
            if values.last().is_none_or(|(_, last)| last != value) {
                values.push((entry.t, value.clone()));
            }
        }
        Event::KubeEvent { kind, reason, message, source, count, field_path } => {
            let same = |e: &&mut SeenEvent| {
                e.reason == *reason
                    && e.message == *message
                    && e.source == *source
                    && e.field_path == *field_path
                    && e.kind == *kind
            };
            match timeline.events.iter_mut().find(same) {
                Some(seen) => seen.count = seen.count.max(*count),
                None => timeline.events.push(SeenEvent {
                    first: entry.t,
                    kind: kind.clone(),
                    reason: reason.clone(),
                    message: message.clone(),
                    source: source.clone(),
                    count: *count,
                    field_path: field_path.clone(),
                }),
            }
        }
        Event::Run(_) => {}
    }
}

impl PodTimeline {
    /// The startup split into phases.
    pub fn phases(&self) -> Option<Phases> {
        phases::split(self)
    }

    /// The normal form, for snapshots: one line per lane and field, without times, ids and addresses. Interleavings of
    /// different lanes do not show, the order inside each does.
    pub fn normal_form(&self, names: &[(String, String)]) -> String {
        normal::render(self, names)
    }

    /// How many calls `<lane>.<method>` there were.
    pub fn count(&self, lane: Lane, method: &str) -> usize {
        self.calls.iter().filter(|c| c.lane == lane && c.method == method).count()
    }
}
