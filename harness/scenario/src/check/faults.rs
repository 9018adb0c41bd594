//! A fault that cannot fire, or of which nobody would notice that it did not, is an error.

use std::collections::BTreeSet;

use podlab_fault::{At, Effect, Fault};

use super::calls::{CNI, CRI, CSI};
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
    if f.when.nth.contains(&0) {
        return Some("when.nth counts from 1".into());
    }
    // The virtual world has taps at every call, and every capability.
    if scenario.clock == Worlds::Virtual {
        return None;
    }
    if matches!(f.at, At::Api(_)) || matches!(f.effect, Effect::CrashAt { .. }) {
        return Some("it needs `clock: virtual`: only there is a tap at that seam".into());
    }
    let (seam, name, known, needs) = match &f.at {
        At::Cni(c) => ("cni", &c.command, &CNI[..TAPPED_CNI], Capability::FaultCni),
        At::Cri(m) => ("cri", &m.method, &CRI[..], Capability::FaultCri),
        At::Csi(m) => ("csi", &m.method, &CSI[..TAPPED_CSI], Capability::FaultCsi),
        At::Api(_) => return None,
    };
    if !known.contains(&name.as_str()) {
        return Some(format!("at.{seam} has no {name:?}{}", suggest(name, known.iter().copied())));
    }
    if f.when.pod.is_some() && seam == "csi" {
        return Some("a CSI call names a volume, not a Pod: leave when.pod out".into());
    }
    (!scenario.requires.contains(&needs)).then(|| format!("requires must list fault.{seam}"))
}
