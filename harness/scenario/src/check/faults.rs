//! A fault that cannot fire, or of which nobody would notice that it did not, is an error.

use std::collections::BTreeSet;

use podlab_fault::{At, Effect, Fault};

use super::calls::{CNI, CRI, CSI, VERBS};
use crate::{Capability, Scenario, Worlds, problem::suggest};

/// CNI verbs and CSI methods that go through a tap among real processes.
const TAPPED_CNI: usize = 2;
const TAPPED_CSI: usize = 6;

pub(crate) fn check(scenario: &Scenario, say: &mut dyn FnMut(&str, &str)) {
    let mut ids = BTreeSet::new();
    for (i, f) in scenario.faults.iter().enumerate() {
        let at = format!("faults[{}]", i + 1);
        if !ids.insert(&f.id) {
            say(&at, &format!("faults.{}: there are two of this id", f.id));
        }
        if let Some(why) = wrong(f, scenario) {
            say(&at, &format!("faults.{}: {why}", f.id));
        }
    }
}

fn wrong(f: &Fault, scenario: &Scenario) -> Option<String> {
    if f.must.fired.is_none() {
        return Some("must.fired has to say how often it fires; one that never does would go unnoticed".into());
    }
    if let (Some(0), Some(_)) = (f.must.fired, f.must.healed_by) {
        return Some("must.healedBy demands nothing of a fault that never fires".into());
    }
    if f.when.nth.contains(&0) {
        return Some("when.nth counts from 1".into());
    }
    if let Some(why) = unfit(f).or_else(|| names(f, scenario)) {
        return Some(why);
    }
    // The virtual world has taps at every call, and every capability.
    if scenario.clock == Worlds::Virtual {
        return None;
    }
    real(f, scenario)
}

/// An effect where it means nothing.
fn unfit(f: &Fault) -> Option<String> {
    let effect = f.effect.name();
    let (streams, reads) = match &f.at {
        At::Api(a) => (a.verb == "watch", ["get", "list"].contains(&a.verb.as_str())),
        At::Cri(m) => (m.method == "GetContainerEvents", false),
        At::Cni(_) | At::Csi(_) => (false, false),
    };
    match &f.effect {
        Effect::Truncate { .. } | Effect::SlowTrickle { .. } if !streams => {
            Some(format!("{effect} needs a stream: a watch of the API, or GetContainerEvents of the CRI"))
        }
        Effect::Stale if !reads => Some("stale needs a read: get or list of the API".into()),
        Effect::Duplicate if streams => Some("duplicate of a stream would only be another stream".into()),
        _ => None,
    }
}

/// A call or a caller that does not exist.
fn names(f: &Fault, scenario: &Scenario) -> Option<String> {
    let At::Api(at) = &f.at else { return None };
    if !VERBS.contains(&at.verb.as_str()) {
        return Some(format!("at.api.verb: there is no {:?}{}", at.verb, suggest(&at.verb, VERBS)));
    }
    let client = at.client.as_ref()?;
    let nodes: Vec<String> = (1..=scenario.cluster.nodes).map(|n| format!("node-{n}")).collect();
    let known: Vec<&str> = ["scheduler", "controllers"].into_iter().chain(nodes.iter().map(String::as_str)).collect();
    let text = || format!("at.api.client: there is no {client:?}{}", suggest(client, known.iter().copied()));
    (!known.contains(&client.as_str())).then(text)
}

/// What only some of the worlds can do.
fn real(f: &Fault, scenario: &Scenario) -> Option<String> {
    if matches!(f.effect, Effect::CrashAt { .. }) {
        if matches!(&f.at, At::Api(a) if a.client.as_ref().is_none_or(|c| !c.starts_with("node-"))) {
            return Some("crashAt kills a node's agent: say whose call with at.api.client, such as node-1".into());
        }
        if scenario.clock.virtual_too() && matches!(f.at, At::Cni(_)) {
            return Some("crashAt at a CNI call needs `clock: real`: no agent makes it in the virtual world".into());
        }
        if !scenario.requires.contains(&Capability::NodeAgent) {
            return Some("requires must list node.agent".into());
        }
    }
    let (seam, name, known, needs) = match &f.at {
        At::Cni(c) => ("cni", &c.command, &CNI[..TAPPED_CNI], Capability::FaultCni),
        At::Cri(m) => ("cri", &m.method, &CRI[..], Capability::FaultCri),
        At::Csi(m) => ("csi", &m.method, &CSI[..TAPPED_CSI], Capability::FaultCsi),
        At::Api(a) => {
            if a.client.is_none() {
                return Some("on real containers at.api.client has to be said: each counts its own calls".into());
            }
            ("api", &a.verb, &VERBS[..], Capability::FaultApi)
        }
    };
    if !known.contains(&name.as_str()) {
        return Some(format!("at.{seam} has no {name:?}{}", suggest(name, known.iter().copied())));
    }
    if f.when.pod.is_some() && seam == "csi" {
        return Some("a CSI call names a volume, not a Pod: leave when.pod out".into());
    }
    (!scenario.requires.contains(&needs)).then(|| format!("requires must list fault.{seam}"))
}
