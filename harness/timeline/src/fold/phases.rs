//! The startup of a Pod as contiguous phases: each ends where the next begins, so they sum to the total.

use std::time::Duration;

use podlab_clock::Mono;

use crate::{PodTimeline, Stage};

/// One phase, named after what happens in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Short name.
    pub name: &'static str,
    /// From.
    pub start: Mono,
    /// How long.
    pub duration: Duration,
}

/// The whole startup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phases {
    /// From the accepted create to the last milestone.
    pub total: Duration,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Time whose end no milestone marks: the sum of phases that had to be joined because one in between is missing.
    pub unattributed: Duration,
    /// Whether a watcher saw the Pod Ready.
    pub complete: bool,
}

/// A phase by the milestone that ends it.
const NAMES: [(Stage, &str); 12] = [
    (Stage::Popped, "queue"),
    (Stage::Bound, "schedule"),
    (Stage::Observed, "observe"),
    (Stage::Admitted, "admit"),
    (Stage::VolumesReady, "volumes"),
    (Stage::SandboxReady, "sandbox"),
    (Stage::ImagesReady, "images"),
    (Stage::InitDone, "init"),
    (Stage::Started, "start"),
    (Stage::Ready, "readiness"),
    (Stage::StatusWritten, "status"),
    (Stage::Seen, "watch"),
];

/// Names of all phases, in order.
pub const PHASES: [&str; 12] = {
    let mut out = [""; 12];
    let mut i = 0;
    while i < out.len() {
        out[i] = NAMES[i].1;
        i += 1;
    }
    out
};

/// Splits a timeline. `None` when the Pod's creation is not in the log.
pub(super) fn split(timeline: &PodTimeline) -> Option<Phases> {
    let begin = *timeline.stages.get(&Stage::Accepted)?;
    let mut at = begin;
    let mut phases = Vec::new();
    let mut unattributed = Duration::ZERO;
    let mut missing = false;
    for (stage, name) in NAMES {
        let Some(reached) = timeline.stages.get(&stage) else {
            missing = true;
            continue;
        };
        // Milestones of different processes may cross by a hair (an image is ready before the sandbox is); then the
        // phase was over before it could be waited for, and takes no time on the critical path.
        let end = (*reached).max(at);
        let duration = end.since(at);
        if missing {
            unattributed += duration;
            missing = false;
        }
        phases.push(Phase { name, start: at, duration });
        at = end;
    }
    Some(Phases { total: at.since(begin), phases, unattributed, complete: timeline.stages.contains_key(&Stage::Seen) })
}
