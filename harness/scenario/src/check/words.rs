//! Words of Kubernetes in a demand: one that no Pod ever shows is never true, and under `never` nobody would notice.

use crate::{EventMatch, Matcher, Moment, Step, problem};

/// `status.phase` of a Pod. Source: k/k staging/src/k8s.io/api/core/v1/types.go PodPhase.
const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];
/// Status of a condition. Source: the same file, ConditionStatus.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
/// Beginnings of a container's state.
const STATES: [&str; 3] = ["running", "waiting", "terminated"];
/// Conditions the control plane and the node agent write. A readiness gate is a condition too, of any name, so only a near
/// miss is refused.
const CONDITIONS: [&str; 10] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
    "ResourceHealthStatus",
];
/// Reasons of events about Pods. A foreign component has its own, so only a near miss is refused.
/// Source: k/k pkg/kubelet/events/event.go, pkg/scheduler, pkg/controller.
const REASONS: [&str; 50] = [
    "Scheduled",
    "FailedScheduling",
    "Preempted",
    "Pulling",
    "Pulled",
    "Failed",
    "Created",
    "Started",
    "Killing",
    "BackOff",
    "Unhealthy",
    "ProbeWarning",
    "SandboxChanged",
    "FailedCreatePodSandBox",
    "FailedPodSandBoxStatus",
    "FailedKillPod",
    "FailedSync",
    "FailedMount",
    "FailedAttachVolume",
    "SuccessfulAttachVolume",
    "FailedMapVolume",
    "FailedUnMount",
    "VolumeResizeFailed",
    "FailedPostStartHook",
    "FailedPreStopHook",
    "ExceededGracePeriod",
    "Evicted",
    "Preempting",
    "DeadlineExceeded",
    "NodeNotReady",
    "NodeAffinity",
    "NodeShutdown",
    "NetworkNotReady",
    "TaintManagerEviction",
    "SysctlForbidden",
    "ErrImageNeverPull",
    "InspectFailed",
    "FailedToRetrieveImagePullSecret",
    "FailedValidation",
    "HostPortConflict",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "ResizeStarted",
    "ResizeCompleted",
    "ResizeError",
    "ResizeDeferred",
    "ResizeInfeasible",
    "FailedCreate",
    "SuccessfulCreate",
];

/// What names something no Pod shows, if a step does.
pub(super) fn wrong(step: &Step) -> Option<String> {
    let moments = |all: &[(&str, Option<&Moment>)]| {
        all.iter().find_map(|(at, m)| m.and_then(moment).map(|why| format!("{at}.{why}")))
    };
    match step {
        Step::Eventually(e) => matcher(&e.what).map(|why| format!("eventually.match.{why}")),
        Step::Holds(h) => matcher(&h.what).map(|why| format!("holds.match.{why}")),
        Step::Never(n) => {
            let of = n.what.as_ref().and_then(matcher).map(|why| format!("never.match.{why}"));
            of.or_else(|| moments(&[("never.of", n.of.as_ref())]))
        }
        Step::Exactly(e) => event(&e.event).map(|why| format!("exactly.{why}")),
        Step::Order(o) => o
            .moments
            .iter()
            .enumerate()
            .find_map(|(i, m)| moment(m).map(|why| format!("order.moments[{}].{why}", i + 1))),
        Step::Within(w) => moments(&[("within.from", Some(&w.from)), ("within.to", Some(&w.to))]),
        Step::Elapsed(e) => moments(&[("elapsed.from", Some(&e.from)), ("elapsed.to", Some(&e.to))]),
        Step::Between(b) => moments(&[
            ("between.from", Some(&b.from)),
            ("between.to", Some(&b.to)),
            ("between.none", b.none.as_ref()),
            ("between.some", b.some.as_ref()),
        ]),
        Step::Times(t) => moments(&[("times.of", Some(&t.of))]),
        _ => None,
    }
}

/// Why a manifest cannot be read, counted in lines of its own text. One that is filled in is read when it is played.
pub(super) fn manifest(text: &str) -> Option<String> {
    let mut line = 0;
    for document in text.split_inclusive('\n').collect::<Vec<_>>().split(|l| l.trim_end() == "---") {
        let whole = document.concat();
        if !is_filled_in(&whole)
            && let Err(e) = serde_saphyr::from_str::<serde_json::Value>(&whole)
        {
            let at = e.location().map(|at| format!("line {} of it", line + at.line())).unwrap_or_default();
            let why = e.to_string();
            let why = why.lines().next().unwrap_or_default().trim_start_matches("error: ");
            return Some(format!("yaml: {at}: {why}"));
        }
        line += u64::try_from(document.len()).unwrap_or(0) + 1;
    }
    None
}

/// A text that is filled in is known only when it is played.
fn is_filled_in(word: &str) -> bool {
    word.contains("${")
}

fn one_of(at: &str, word: &str, known: &[&'static str]) -> Option<String> {
    let fine = is_filled_in(word) || known.contains(&word);
    (!fine).then(|| format!("{at}: there is no {word:?}{}", problem::suggest(word, known.iter().copied())))
}

fn near_miss(at: &str, word: &str, known: &[&'static str]) -> Option<String> {
    if is_filled_in(word) || known.contains(&word) {
        return None;
    }
    let near = problem::near(word, known.iter().copied())?;
    Some(format!("{at}: there is no {word:?}; did you mean {near:?}?"))
}

/// A state, of which a prefix will do.
fn state(at: &str, text: &str) -> Option<String> {
    let fine = is_filled_in(text)
        || match text.split_once(':') {
            Some((first, _)) => STATES.contains(&first),
            None => STATES.iter().any(|s| s.starts_with(text)),
        };
    let first = text.split(':').next().unwrap_or_default();
    (!fine).then(|| format!("{at}: no container is ever {text:?}{}", problem::suggest(first, STATES)))
}

fn event(e: &EventMatch) -> Option<String> {
    near_miss("event.reason", &e.reason, &REASONS)
}

fn matcher(m: &Matcher) -> Option<String> {
    let given = |t: &Option<String>| t.is_some();
    if m.gone == Some(true) && [&m.phase, &m.condition, &m.container, &m.node, &m.ip].into_iter().any(given) {
        return Some("gone: a Pod that is gone shows nothing else".into());
    }
    if m.restarts == Some(0) {
        return Some("restarts: every container has been restarted at least 0 times".into());
    }
    m.phase
        .as_ref()
        .and_then(|p| one_of("phase", p, &PHASES))
        .or_else(|| m.status.as_ref().and_then(|s| one_of("status", s, &STATUSES)))
        .or_else(|| m.state.as_ref().and_then(|s| state("state", s)))
        .or_else(|| m.last_state.as_ref().and_then(|s| state("lastState", s)))
        .or_else(|| m.condition.as_ref().and_then(|c| near_miss("condition", c, &CONDITIONS)))
        .or_else(|| m.event.as_ref().and_then(event))
}

fn moment(m: &Moment) -> Option<String> {
    if let Some(reason) = &m.event {
        return near_miss("event", reason, &REASONS);
    }
    let field = m.field.as_deref()?;
    if is_filled_in(field) {
        return None;
    }
    let parts: Vec<&str> = field.split('/').collect();
    match parts.as_slice() {
        ["phase"] => m.value.as_ref().and_then(|v| one_of("value", v, &PHASES)),
        ["gone" | "status.reason" | "status.message" | "deleting"] => None,
        ["condition", name, ..] => near_miss("field", name, &CONDITIONS),
        ["container", _, "state"] => m.value.as_ref().and_then(|v| state("value", v)),
        ["container", _, "ready" | "restartCount"] => None,
        ["container", _, last] => {
            let known = ["state", "ready", "restartCount"];
            Some(format!("field: of a container there is no {last:?}{}", problem::suggest(last, known)))
        }
        _ => {
            let known =
                ["phase", "status.reason", "status.message", "deleting", "condition/NAME", "container/NAME/state"];
            Some(format!("field: nothing watched is called {field:?}{}", problem::suggest(field, known)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::manifest;

    #[test]
    fn a_manifest_that_cannot_be_read_is_told_with_its_line() {
        assert_eq!(manifest("a: b\n---\nc: [d]\n"), None);
        assert_eq!(manifest("a: ${x\n"), None, "it is filled in first");
        let said = manifest("a: b\n---\nc: d\n  e: f\n").unwrap();
        assert!(said.starts_with("yaml: line 4 of it: "), "{said}");
    }
}
