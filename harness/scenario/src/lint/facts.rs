//! What lints need to know of a step: what it speaks of, and what kind of demand it is.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{Apply, Matcher, Moment, Scenario, Step, check::moments};

/// The matcher of a step that has one.
pub(crate) fn matcher(step: &Step) -> Option<&Matcher> {
    match step {
        Step::Eventually(e) => Some(&e.what),
        Step::Holds(h) => Some(&h.what),
        Step::Never(n) => n.what.as_ref(),
        _ => None,
    }
}

/// The Pods a step speaks of.
pub(crate) fn pods(step: &Step) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    all.extend(matcher(step).map(|m| m.pod.as_str()));
    match step {
        Step::Delete(d) => all.extend(d.pod.as_deref()),
        Step::Exec(e) => all.extend([e.pod.as_str()]),
        Step::Evict(e) => all.extend([e.pod.as_str()]),
        Step::Resize(r) => all.extend([r.pod.as_str()]),
        Step::Debug(d) => all.extend([d.pod.as_str()]),
        Step::Exactly(e) => all.extend([e.pod.as_str()]),
        Step::Status(s) => all.extend([s.pod.as_str()]),
        Step::Logs(l) => all.extend([l.pod.as_str()]),
        Step::Checkpoint(c) => all.extend([c.pod.as_str()]),
        Step::Monotone(m) => all.extend([m.pod.as_str()]),
        Step::Elapsed(e) => all.extend([&e.from, &e.to].into_iter().filter_map(|m| m.pod.as_deref())),
        Step::Order(o) => all.extend(o.moments.iter().filter_map(|m| m.pod.as_deref())),
        Step::Within(w) => all.extend([&w.from, &w.to].into_iter().filter_map(|m| m.pod.as_deref())),
        Step::Times(t) => all.extend(t.of.pod.as_deref()),
        _ => {}
    }
    all
}

/// Whether a step acts on the cluster.
pub(crate) fn acts(step: &Step) -> bool {
    step.asks() || matches!(step, Step::Exec(_) | Step::Agent(_) | Step::Node(_) | Step::Drain(_))
}

/// Whether a step demands only that something is not, or is no more: a cluster that does nothing meets it.
pub(crate) fn is_negative(step: &Step) -> bool {
    match step {
        Step::Never(_) | Step::LeakFree(_) => true,
        Step::Exactly(e) => e.n == 0,
        Step::Times(t) => t.exactly == Some(0) || t.exactly.is_none() && t.at_least.is_none_or(|n| n == 0),
        Step::Rpc(calls) => calls.values().all(|n| n.exactly == Some(0)),
        _ => false,
    }
}

/// The moments of a step.
pub(crate) fn moments_of(step: &Step) -> Vec<Moment> {
    let mut all = Vec::new();
    moments(step, &mut |m| all.push(m.clone()));
    all
}

/// The objects a scenario applies, as trees; `None` when one of them is only known at run time.
pub(crate) fn objects(scenario: &Scenario) -> Option<Vec<(String, Value)>> {
    let mut all = Vec::new();
    let mut unknown = false;
    scenario.walk(&mut |path, step| {
        let Step::Apply(apply) = step else { return };
        let text = match apply {
            Apply::Yaml(text) => text.clone(),
            Apply::File(file) => match scenario.beside(file) {
                Some(text) => text,
                None => return unknown = true,
            },
        };
        if matches!(apply, Apply::Yaml(_)) && text.replace("$${", "").contains("${") {
            unknown = true;
        }
        let documents = format!("\n{text}").replace("\n---\n", "\n\u{0}");
        for document in documents.split('\u{0}').filter(|d| !d.trim().is_empty()) {
            match serde_saphyr::from_str::<Value>(document) {
                Ok(tree) => all.push((path.to_owned(), tree)),
                Err(_) => unknown = true,
            }
        }
    });
    (!unknown).then_some(all)
}

impl Scenario {
    /// A file beside this one, if it can be read.
    pub(crate) fn beside(&self, file: &str) -> Option<String> {
        let (path, _) = self.origin.files.all.first()?;
        std::fs::read_to_string(path.parent()?.join(file)).ok()
    }
}
