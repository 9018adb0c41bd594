//! What must hold in every run, whatever the scenario demands.
//!
//! - A phase goes Pending, Running, then Succeeded or Failed, and never back; but a Pod whose sandbox was made anew runs
//!   its init containers again, and is Pending until they have (k/k pkg/kubelet/kubelet_pods.go getPhase).
//! - A container's restart count never falls.
//! - What the simulated node saw and must not see (two containers of one name running, a volume published before it was
//!   staged) is in the log as `{"invariant": …}`.

use std::collections::BTreeMap;

use podlab_timeline::{Entry, Event, Lane, Outcome};

use crate::monitors::Broken;

/// The first invariant that was broken.
pub(crate) fn broken(entries: &[Entry]) -> Option<Broken> {
    let found = |monitor, what: String| Some(Broken { monitor, what });
    let mut phases: BTreeMap<&str, (u8, &str)> = BTreeMap::new();
    let mut restarts: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let mut sandboxes: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in entries {
        if let Event::Run(v) = &entry.event
            && let Some(what) = v.get("invariant").and_then(|w| w.as_str())
        {
            return found("node", what.to_owned());
        }
        if let (Some(pod), Event::Call { method, outcome: Outcome::Ok, .. }, Lane::Cri) =
            (&entry.pod, &entry.event, entry.lane)
            && method == "RunPodSandbox"
        {
            *sandboxes.entry(&pod.uid).or_default() += 1;
        }
        let (Some(pod), Event::Field { name, value }) = (&entry.pod, &entry.event) else { continue };
        if name == "phase" {
            let rank = rank(value);
            match phases.insert(&pod.uid, (rank, value)) {
                Some((1, _)) if rank == 0 && sandboxes.get(pod.uid.as_str()).is_some_and(|n| *n > 1) => {}
                Some((before, _)) if rank < before => {
                    return found("phase", format!("the phase of {} went back to {value}", pod.name));
                }
                Some((2, before)) if before != value => {
                    return found("phase", format!("the phase of {} was {before} and became {value}", pod.name));
                }
                _ => {}
            }
        }
        if name.ends_with("/restartCount")
            && let Ok(n) = value.parse::<i64>()
        {
            let before = restarts.insert((&pod.uid, name), n);
            if before.is_some_and(|b| n < b) {
                return found("restart-count", format!("{name} of {} fell to {n}", pod.name));
            }
        }
    }
    None
}

fn rank(phase: &str) -> u8 {
    match phase {
        "Running" => 1,
        "Succeeded" | "Failed" => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use podlab_clock::Mono;
    use podlab_timeline::{Lane, PodKey, SCHEMA_VERSION};

    use super::*;

    fn log(fields: &[(&str, &str)]) -> Vec<Entry> {
        let entry = |(i, (name, value)): (usize, &(&str, &str))| Entry {
            v: SCHEMA_VERSION,
            t: Mono(i as u64),
            lane: Lane::Watch,
            pod: Some(PodKey { namespace: "d".into(), name: "a".into(), uid: "u".into() }),
            node: None,
            event: Event::Field { name: (*name).into(), value: (*value).into() },
        };
        fields.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn a_phase_that_goes_back_and_a_count_that_falls_are_found() {
        assert_eq!(broken(&log(&[("phase", "Pending"), ("phase", "Running"), ("phase", "Succeeded")])), None);
        assert!(broken(&log(&[("phase", "Running"), ("phase", "Pending")])).is_some());
        assert!(broken(&log(&[("phase", "Failed"), ("phase", "Succeeded")])).is_some());
        let again = |sandboxes: usize, end: &str| {
            let mut entries = log(&[("phase", "Running"), ("phase", end), ("phase", "Running")]);
            let made = Event::Call {
                method: "RunPodSandbox".into(),
                start: Mono(0),
                outcome: Outcome::Ok,
                subject: String::new(),
            };
            let call = Entry { lane: Lane::Cri, event: made, ..entries[0].clone() };
            entries.splice(0..0, std::iter::repeat_n(call, sandboxes));
            broken(&entries)
        };
        assert_eq!(again(2, "Pending"), None, "its init containers run again");
        assert!(again(1, "Pending").is_some() && again(2, "Failed").is_some());
        let name = "container/c/restartCount";
        assert_eq!(broken(&log(&[(name, "0"), (name, "1")])), None);
        assert!(broken(&log(&[(name, "2"), (name, "1")])).is_some());
    }
}
