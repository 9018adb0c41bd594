//! Lints about names: what is bound and never used, and Pods that nothing makes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Found,
    facts::{objects, pods},
};
use crate::{
    Cel, Scenario, Step,
    problem::suggest,
    template::{Part, parts},
};

/// Kinds whose controllers make Pods under names of their own.
const MAKERS: [&str; 7] =
    ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicationController"];

pub(crate) fn check(s: &Scenario, found: &mut Found) {
    let Some(objects) = objects(s) else { return };
    let kind = |o: &Value| o["kind"].as_str().unwrap_or_default().to_owned();
    if objects.is_empty() || objects.iter().any(|(_, o)| MAKERS.contains(&kind(o).as_str())) {
        return;
    }
    let made: BTreeSet<&str> =
        objects.iter().filter(|(_, o)| kind(o) == "Pod").filter_map(|(_, o)| o["metadata"]["name"].as_str()).collect();
    let mut say = |path: &str, name: &str| {
        // A name that is only known at run time, and a mirror Pod, are made by somebody else.
        if !made.contains(name) && !name.contains("${") && !name.contains("-node-") {
            found.say(
                "unknown-pod",
                path,
                format!("nothing here makes a Pod {name:?}{}", suggest(name, made.iter().copied())),
            );
        }
    };
    s.walk(&mut |path, step| pods(step).into_iter().for_each(|name| say(path, name)));
    for name in s.snapshot.iter().flat_map(|k| &k.timeline) {
        say("snapshot.timeline", name);
    }
    for (i, f) in s.faults.iter().enumerate() {
        if let Some(name) = &f.when.pod
            && !matches!(f.at.seam(), "api")
        {
            say(&format!("faults[{}]", i + 1), name);
        }
    }
}

/// What is bound and never used: bindings, checkpoints, parameters and matrix names.
pub(crate) fn unused(first: &Scenario, variants: &[Scenario], found: &mut Found) {
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut unchanged: BTreeSet<&str> = BTreeSet::new();
    first.walk(&mut |path, step| {
        expressions(step, &mut |e| used.extend(e.free().unwrap_or_default()));
        if step.inner().is_empty()
            && let Some(value) = first.origin.template(path)
        {
            texts(value, &mut used);
        }
        match step {
            Step::Unchanged(name) => drop(unchanged.insert(name)),
            Step::Group(g) => g.params.iter().flat_map(|p| p.values()).for_each(|v| texts(v, &mut used)),
            _ => {}
        }
    });
    first.walk(&mut |path, step| match step {
        Step::Bind(names) => {
            for name in names.keys().filter(|n| !used.contains(*n)) {
                found.say("unused-binding", &format!("{path}.bind.{name}"), format!("nothing uses {name:?}"));
            }
        }
        Step::ForEach(f) if !used.contains(&f.name) => {
            found.say("unused-binding", path, format!("no step of it uses {:?}: it does the same for each", f.name));
        }
        Step::Checkpoint(c) if !unchanged.contains(c.name.as_str()) => {
            found.say("unused-binding", path, format!("nothing asks whether {:?} has changed", c.name));
        }
        _ => {}
    });
    let text = first.origin.files.all.first().map(|(_, text)| text.as_str()).unwrap_or_default();
    let mentions = |kind: &str, name: &str| {
        let word = format!("{kind}.{name}");
        text.match_indices(&word).any(|(i, _)| {
            let after = text[i + word.len()..].chars().next();
            after.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
        })
    };
    for name in first.params.keys().filter(|n| !mentions("params", n)) {
        found.say("unused-param", &format!("params.{name}"), format!("nothing says `params.{name}`"));
    }
    for name in first.matrix.keys().filter(|n| !mentions("matrix", n)) {
        let text = format!("nothing says `matrix.{name}`: {} trials are the same", variants.len());
        found.say("unused-param", &format!("matrix.{name}"), text);
    }
}

/// The expressions of a step, without those inside other steps.
fn expressions(step: &Step, each: &mut dyn FnMut(&Cel)) {
    match step {
        Step::Expect(e) => each(&e.that),
        Step::Never(n) => n.that.iter().for_each(each),
        Step::Bind(names) => names.values().for_each(each),
        Step::If(s) => each(&s.that),
        Step::Repeat(s) => s.until.iter().for_each(each),
        Step::ForEach(s) => each(&s.list),
        _ => {}
    }
}

fn texts(value: &Value, used: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if text.contains("${") => {
            for part in parts(text).unwrap_or_default() {
                if let Part::Expr(e) = part {
                    used.extend(e.free().unwrap_or_default());
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| texts(v, used)),
        Value::Object(map) => map.values().for_each(|v| texts(v, used)),
        _ => {}
    }
}
