//! What expressions see: the cluster as the watcher knows it, the calls in the run log, and what was bound.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use podlab_scenario::{Cel, Expect, Invariant, Never, Scenario, Vars};
use podlab_timeline::{Entry, Event};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::{
    judge,
    steps::{Done, SETTLE, Stage, StepError},
    temporal,
    watch::{Seen, Watcher, count},
};

/// What never changes: parameters, this variant of the matrix, the world.
pub(crate) fn constants(scenario: &Scenario, world: &str) -> Vars {
    let or_empty = |v: &Value| if v.is_object() { v.clone() } else { json!({}) };
    BTreeMap::from([
        ("params".to_owned(), or_empty(&scenario.origin.params)),
        ("matrix".to_owned(), or_empty(&scenario.origin.matrix)),
        ("world".to_owned(), Value::from(world)),
    ])
}

/// The cluster's part, without the calls.
fn cluster(seen: &Seen, vars: &Vars) -> Vars {
    let mut all = vars.clone();
    let pods: Map<String, Value> = seen.pods.iter().map(|(name, pod)| (name.clone(), pod.0.clone())).collect();
    all.insert("podNames".into(), seen.pods.keys().cloned().collect());
    all.insert("pods".into(), Value::Object(pods));
    all.insert("gone".into(), seen.gone.iter().cloned().collect());
    let events = seen.events.values().map(|e| {
        let text = |path: &[&str]| e.str_at(path).unwrap_or_default();
        json!({
            "pod": text(&["involvedObject", "name"]), "type": text(&["type"]), "reason": text(&["reason"]),
            "message": text(&["message"]), "source": text(&["source", "component"]), "count": count(e),
        })
    });
    all.insert("events".into(), events.collect());
    all
}

/// How often each call was made, by `<lane>.<method>`.
fn calls(entries: &[Entry]) -> Value {
    let mut out: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries {
        if let Event::Call { method, .. } = &entry.event {
            let lane = serde_json::to_value(entry.lane).unwrap_or_default();
            *out.entry(format!("{}.{method}", lane.as_str().unwrap_or_default())).or_default() += 1;
        }
    }
    json!(out)
}

/// Whether an expression looks at the run log, which nobody watches.
fn reads_the_log(e: &Cel) -> bool {
    e.free().is_ok_and(|free| free.contains("calls"))
}

impl Stage<'_> {
    /// Everything an expression may see now.
    pub(crate) fn vars_now(&self) -> Result<Vars, StepError> {
        let entries = self.backend.entries()?;
        let mut all = cluster(&self.watcher.look(), &self.vars);
        all.insert("calls".into(), calls(&entries));
        Ok(all)
    }

    /// The value of an expression now; one without a value is a failed demand.
    pub(crate) fn eval(&self, e: &Cel) -> Result<Value, StepError> {
        e.eval(&self.vars_now()?).map_err(|why| StepError::Failed(format!("`{}`: {why}", e.0)))
    }

    /// Whether a condition is true now.
    pub(crate) fn is_true(&self, e: &Cel) -> Result<bool, StepError> {
        e.holds(&self.vars_now()?).map_err(|why| StepError::Failed(format!("`{}`: {why}", e.0)))
    }

    pub(crate) async fn expect(&self, e: &Expect) -> Done {
        if self.comes_true(&e.that, e.within.map_or(SETTLE, |w| w.0)).await? {
            return Ok(());
        }
        let why = e.that.why_not(&self.vars_now()?);
        let because = e.because.as_ref().map(|b| format!(" (it must be because {})", b.trim())).unwrap_or_default();
        let within = e.within.map(|w| format!("not within {:?}: ", w.0)).unwrap_or_default();
        Err(StepError::Failed(format!("{within}{why}{because}")))
    }

    /// Whether an expression becomes true in time. Without calls in it, every state the watcher sees is looked at.
    async fn comes_true(&self, e: &Cel, within: Duration) -> Result<bool, StepError> {
        if !reads_the_log(e) {
            let (e, vars) = (e.clone(), self.vars.clone());
            let met = self.watcher.first(move |seen| e.holds(&cluster(seen, &vars)) == Ok(true));
            return Ok(self.clock.timeout(within, met).await.is_some());
        }
        let deadline = self.clock.now().after(within);
        loop {
            if e.holds(&self.vars_now()?) == Ok(true) {
                return Ok(true);
            }
            if self.clock.now() >= deadline {
                return Ok(false);
            }
            // The run log has no watch.
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn never(&self, n: &Never) -> Done {
        let wrong = |what: String| Err(StepError::Failed(format!("never: {what}")));
        if let Some(what) = &n.what {
            let wanted = what.clone();
            let met = self.watcher.first(move |seen| judge::matches(&wanted, seen).is_ok());
            return match self.clock.timeout(n.duration.0, met).await {
                Some(_) => wrong(format!("{} came to be as it must not", what.pod)),
                None => Ok(()),
            };
        }
        if let Some(that) = &n.that {
            return match self.comes_true(that, n.duration.0).await? {
                true => wrong(format!("`{}` became true", that.0)),
                // One without a value would hold of every run.
                false => self.is_true(that).map(drop),
            };
        }
        self.clock.sleep(n.duration.0).await;
        match &n.of {
            Some(of) if temporal::count(of, &self.backend.entries()?) > 0 => {
                wrong(format!("{} happened", crate::elapsed::shown(of)))
            }
            _ => Ok(()),
        }
    }
}

/// Looks at every state for what must hold all the time.
#[derive(Clone, Default)]
pub(crate) struct Always(Arc<Mutex<Found>>);

#[derive(Default)]
struct Found {
    /// The first that was false: its number from 1, and why.
    broken: Option<(usize, String)>,
    /// Which have been true once.
    checked: Vec<bool>,
}

impl Always {
    /// Begins to look; told when something is false.
    pub(crate) fn watch(&self, watcher: &Watcher, scenario: &Scenario, vars: &Vars) -> oneshot::Receiver<()> {
        let (all, vars, found): (Vec<Invariant>, Vars, _) = (scenario.always.clone(), vars.clone(), self.0.clone());
        found.lock().unwrap_or_else(PoisonError::into_inner).checked = vec![false; all.len()];
        watcher.first(move |seen| {
            if all.is_empty() {
                return false;
            }
            let vars = cluster(seen, &vars);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            for (i, invariant) in all.iter().enumerate() {
                match invariant.that.holds(&vars) {
                    Ok(true) => found.checked[i] = true,
                    Ok(false) => {
                        let why = invariant.that.why_not(&vars);
                        found.broken =
                            Some((i + 1, format!("{why} (it must hold because {})", invariant.because.trim())));
                        return true;
                    }
                    Err(_) => {}
                }
            }
            false
        })
    }

    /// What was false, or at the end of a run never true: such a one has checked nothing.
    pub(crate) fn verdict(&self, scenario: &Scenario) -> Option<(String, String)> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((n, why)) = &found.broken {
            return Some((format!("always[{n}]"), why.clone()));
        }
        let idle = found.checked.iter().position(|checked| !checked)?;
        let that = scenario.always.get(idle).map(|i| i.that.0.clone()).unwrap_or_default();
        Some((
            format!("always[{}]", idle + 1),
            format!("`{that}` had a value in no state of the run: nothing was checked"),
        ))
    }

    /// What was false so far.
    pub(crate) fn broken(&self) -> Option<(String, String)> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.broken.as_ref().map(|(n, why)| (format!("always[{n}]"), why.clone()))
    }
}
