//! Where the time of each start went: the phases of the run log, joined with what the measuring client saw.

use std::{collections::BTreeMap, time::Duration};

use podlab_timeline::{Entry, Event, Lane, PodKey, SCHEMA_VERSION, Stage, fold::fold};

use crate::Start;

/// The time of one start by phase. The phases add up to the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribution {
    /// From the create request until a watcher saw the Pod Ready.
    pub total: Duration,
    /// Phases in the order of the Pod's way; `request` is the time until the API server accepted it.
    pub phases: Vec<(&'static str, Duration)>,
    /// Time of phases whose end nothing marks.
    pub unattributed: Duration,
}

/// Splits starts by the run log of their cluster. A start of which the log knows nothing has one phase, unattributed.
pub fn attribute(entries: &[Entry], namespace: &str, starts: &[Start]) -> Vec<Attribution> {
    // Another watcher, that of a scenario's own demands, may have seen the Pod earlier or later; who measures is who counts.
    let seen = |e: &&Entry| e.event != Event::Stage(Stage::Seen);
    let mut all: Vec<Entry> = entries.iter().filter(seen).cloned().collect();
    all.extend(starts.iter().map(|s| Entry {
        v: SCHEMA_VERSION,
        t: s.seen,
        lane: Lane::Watch,
        pod: Some(key(namespace, s)),
        node: None,
        event: Event::Stage(Stage::Seen),
    }));
    let timelines = fold(&all);
    let known: BTreeMap<&str, _> = timelines.iter().map(|(k, t)| (k.uid.as_str(), t)).collect();
    starts
        .iter()
        .map(|start| {
            let total = start.total();
            let split =
                known.get(start.uid.as_str()).and_then(|t| Some((t.stages.get(&Stage::Accepted)?, t.phases()?)));
            let Some((accepted, split)) = split else {
                return Attribution { total, phases: Vec::new(), unattributed: total };
            };
            let mut phases = vec![("request", accepted.since(start.asked))];
            phases.extend(split.phases.iter().map(|p| (p.name, p.duration)));
            Attribution { total, phases, unattributed: split.unattributed }
        })
        .collect()
}

fn key(namespace: &str, start: &Start) -> PodKey {
    PodKey { namespace: namespace.to_owned(), name: start.name.clone(), uid: start.uid.clone() }
}
