//! Two runs, trial by trial.

use std::{collections::BTreeMap, time::Duration};

use crate::{Run, Trial};

/// One trial in two runs; at least one of them has it.
pub(crate) struct Compared<'a> {
    pub(crate) before: Option<&'a Trial>,
    pub(crate) after: Option<&'a Trial>,
    pub(crate) normal_before: String,
    pub(crate) normal_after: String,
}

/// Pairs the trials of two runs by name; what moved comes first, then by name.
pub(crate) fn compare<'a>(before: &'a Run, after: &'a Run) -> Vec<Compared<'a>> {
    let mut all: BTreeMap<&str, (Option<&Trial>, Option<&Trial>)> = BTreeMap::new();
    before.trials.iter().for_each(|t| all.entry(&t.name).or_default().0 = Some(t));
    after.trials.iter().for_each(|t| all.entry(&t.name).or_default().1 = Some(t));
    let pair = |(before, after): (Option<&'a Trial>, Option<&'a Trial>)| Compared {
        before,
        after,
        normal_before: before.map(normal).unwrap_or_default(),
        normal_after: after.map(normal).unwrap_or_default(),
    };
    let mut out: Vec<Compared<'a>> = all.into_values().map(pair).collect();
    out.sort_by_key(|c| (!c.verdict_moved(), !c.differs()));
    out
}

/// The normal form of a trial: of the Pods its scenario keeps, else of all that have one.
fn normal(t: &Trial) -> String {
    if !t.timeline.is_empty() {
        return t.timeline.clone();
    }
    let nodes: Vec<(String, String)> = (1..=10).map(|i| (format!("node-{i}"), "<node>".to_owned())).collect();
    let pods = t.timelines.iter().filter(|(k, _)| !k.uid.is_empty());
    pods.map(|(k, timeline)| format!("pod {}\n{}", k.name, timeline.normal_form(&nodes))).collect()
}

impl Compared<'_> {
    /// The trial's name.
    pub(crate) fn name(&self) -> &str {
        self.after.or(self.before).map_or("", |t| t.name.as_str())
    }

    /// Whether it ended otherwise, or is only in one of them.
    pub(crate) fn verdict_moved(&self) -> bool {
        let word = |t: Option<&Trial>| t.map(|t| t.verdict.word());
        word(self.before) != word(self.after)
    }

    /// Whether its timeline is another one; a trial that is only in one run has none to differ from.
    pub(crate) fn differs(&self) -> bool {
        self.before.is_some() && self.after.is_some() && self.normal_before != self.normal_after
    }

    /// Startup of its first Pod; zero without one.
    pub(crate) fn ready_before(&self) -> Duration {
        ready(self.before)
    }

    /// The same after.
    pub(crate) fn ready_after(&self) -> Duration {
        ready(self.after)
    }
}

fn ready(t: Option<&Trial>) -> Duration {
    t.and_then(Trial::startup).map_or(Duration::ZERO, |(_, p)| p.total)
}
