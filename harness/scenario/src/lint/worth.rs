//! Lints about what a scenario is worth: intents that say nothing, demands that an idle cluster meets, steps that are never
//! done, capabilities and images left to chance.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Found,
    facts::{acts, is_negative, matcher, objects},
};
use crate::{
    Capability, Cel, Scenario, Step, Worlds,
    cel::{LIVE, Vars},
};

/// Fewest words of an intent.
const WORDS: usize = 5;

pub(crate) fn check(s: &Scenario, found: &mut Found) {
    let intent = s.intent.trim();
    if intent.split_whitespace().count() < WORDS || !intent.ends_with('.') {
        found.say("vague-intent", "intent", "it is no sentence that says what holds");
    }
    let (mut any, mut positive) = (false, false);
    for (_, steps) in [("given", &s.given), ("when", &s.when), ("then", &s.then)] {
        for step in steps {
            step.walk("", &mut |_, step| {
                any |= acts(step);
                positive |= step.inner().is_empty() && step.demands() && !is_negative(step) && !is_end(step);
            });
        }
    }
    // A load does something, and a gate wants it to have come to something.
    any |= s.load.is_some();
    positive |= !s.gate.is_empty();
    if s.load.as_ref().is_some_and(|l| l.warmup == 0) && !s.measure.is_empty() {
        found.say("measure-without-warmup", "load", "the first Pods pay for caches and connections, and are measured");
    }
    if !any {
        found.say("no-action", "", "no step does anything to the cluster");
    } else if !positive {
        found.say(
            "negative-only",
            "then",
            "every demand is that something is not; a cluster that does nothing meets them all",
        );
    }
    capabilities(s, found);
    images(s, found);
}

/// That a Pod is gone is also so when it never did what it was made for.
fn is_end(step: &Step) -> bool {
    matcher(step).is_some_and(|m| m.gone == Some(true) && m.event.is_none())
}

fn capabilities(s: &Scenario, found: &mut Found) {
    if s.clock == Worlds::Virtual {
        return;
    }
    let mut needs: BTreeMap<&str, (Capability, String)> = BTreeMap::new();
    s.walk(&mut |path, step| match step {
        Step::Agent(_) => drop(needs.entry("node.agent").or_insert((Capability::NodeAgent, path.to_owned()))),
        Step::Node(_) => drop(needs.entry("node.power").or_insert((Capability::NodePower, path.to_owned()))),
        _ => {}
    });
    if s.cluster.nodes > 1 {
        needs.insert("nodes.2", (Capability::TwoNodes, "cluster.nodes".into()));
    }
    let crash = s.faults.iter().position(|f| matches!(f.effect, podlab_fault::Effect::CrashAt { .. }));
    if let Some(i) = crash.filter(|_| s.clock.real()) {
        needs.insert("node.agent", (Capability::NodeAgent, format!("faults[{}]", i + 1)));
    }
    for (word, (capability, path)) in &needs {
        if !s.requires.contains(capability) {
            found.say(
                "missing-capability",
                path,
                format!("requires must list {word}: elsewhere it would fail, not be skipped"),
            );
        }
    }
    for (i, capability) in s.requires.iter().enumerate() {
        let seam = |name: &str| s.faults.iter().any(|f| f.at.seam() == name);
        let idle = match capability {
            Capability::FaultCni => !seam("cni"),
            Capability::FaultCri => !seam("cri"),
            Capability::FaultCsi => !seam("csi"),
            Capability::FaultApi => !seam("api"),
            Capability::NodeAgent => !needs.contains_key("node.agent"),
            Capability::NodePower => !needs.contains_key("node.power"),
            _ => false,
        };
        if idle {
            let text = "nothing here needs it; it would be skipped for nothing where that is missing";
            found.say("unused-capability", &format!("requires[{}]", i + 1), text);
        }
    }
}

fn images(s: &Scenario, found: &mut Found) {
    for (path, object) in objects(s).into_iter().flatten() {
        let mut all = Vec::new();
        gather(&object, &mut all);
        for image in all {
            let name = image.rsplit('/').next().unwrap_or_default();
            if !image.contains('@') && (!name.contains(':') || name.ends_with(":latest")) {
                found.say(
                    "unpinned-image",
                    &path,
                    format!("{image:?} may be another image tomorrow; give it a tag or a digest"),
                );
            }
        }
    }
}

/// Every `image:` with a text below a tree.
fn gather<'a>(tree: &'a Value, out: &mut Vec<&'a str>) {
    match tree {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if key == "image" => out.push(text),
                    _ => gather(value, out),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| gather(v, out)),
        _ => {}
    }
}

/// Conditions that come out the same in every variant.
pub(crate) fn unreachable(first: &Scenario, variants: &[Scenario], found: &mut Found) {
    first.walk(&mut |path, step| {
        let Step::If(s) = step else { return };
        let outcome = |v: &Scenario| constant(&s.that, v);
        let all: Option<Vec<bool>> = variants.iter().map(outcome).collect();
        let Some(all) = all else { return };
        if all.iter().all(|b| !b) {
            found.say("unreachable-step", &format!("{path}.if.then"), format!("`{}` is never true", s.that.0));
        } else if all.iter().all(|b| *b) && !s.otherwise.is_empty() {
            found.say("unreachable-step", &format!("{path}.if.else"), format!("`{}` is always true", s.that.0));
        }
    });
}

/// The value of a condition that needs nothing of the run.
fn constant(that: &Cel, s: &Scenario) -> Option<bool> {
    let free = that.free().ok()?;
    let mut vars: Vars = BTreeMap::from([
        ("params".to_owned(), s.origin.params.clone()),
        ("matrix".to_owned(), s.origin.matrix.clone()),
    ]);
    if s.clock != Worlds::Both {
        vars.insert("world".into(), if s.clock == Worlds::Real { "real" } else { "virtual" }.into());
    }
    let known = free.iter().all(|n| vars.contains_key(n) && !LIVE.contains(&n.as_str()));
    known.then(|| that.holds(&vars).ok()).flatten()
}
