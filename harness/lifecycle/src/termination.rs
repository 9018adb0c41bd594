//! How containers are ended: grace periods, the preStop budget, the order of sidecars.
//!
//! ```text
//! Killing event ─► preStop (counts against the grace) ─► wait for whom it outlives ─► TERM ─ rest of the grace ─► KILL
//! ```
//! Source: k/k pkg/kubelet/kuberuntime/{kuberuntime_container,kuberuntime_termination_order}.go, pkg/kubelet/pod_workers.go.

use std::{collections::BTreeMap, time::Duration};

use podlab_api::core::{Container, Pod};
use podlab_mutant::{self as mutant, Mutant};

use crate::{actions::KillReason, spec};

/// What is left to a container at least, once its preStop used the grace up.
pub const MINIMUM_GRACE: Duration = Duration::from_secs(2);
/// Grace of a Pod that states none.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Grace period of a Pod that is being ended, in seconds: the override of who asked, else the deletion's, else the
/// spec's; a repeat may only shorten it. Source: calculateEffectiveGracePeriod.
pub fn pod_grace(pod: &Pod, asked: Option<i64>, current: Option<i64>) -> i64 {
    if mutant::is(Mutant::GraceIsForgotten) {
        return 30;
    }
    let wanted = asked
        .or_else(|| if spec::is_deleting(pod) { pod.metadata.deletion_grace_period_seconds } else { None })
        .or(spec::pod_spec(pod).termination_grace_period_seconds)
        .unwrap_or(30);
    let wanted = current.map_or(wanted, |c| wanted.min(c));
    // A forced deletion (0) still lets the runtime stop the process in order.
    if wanted < 1 { 1 } else { wanted }
}

/// Grace of one container that is killed for `reason` while its Pod goes on, before any override.
/// Source: setTerminationGracePeriod.
pub fn container_grace(pod: &Pod, container: Option<&Container>, reason: Option<KillReason>) -> i64 {
    if let Some(deleting) = pod.metadata.deletion_grace_period_seconds.filter(|_| spec::is_deleting(pod)) {
        return deleting;
    }
    let own = spec::pod_spec(pod).termination_grace_period_seconds.unwrap_or(30);
    let of_probe = |p: Option<&podlab_api::core::Probe>| p.and_then(|p| p.termination_grace_period_seconds);
    match (reason, container) {
        (Some(KillReason::Liveness), Some(c)) => of_probe(c.liveness_probe.as_ref()).unwrap_or(own),
        (Some(KillReason::Startup), Some(c)) => of_probe(c.startup_probe.as_ref()).unwrap_or(own),
        (Some(KillReason::Liveness | KillReason::Startup | KillReason::Changed | KillReason::Unknown) | None, _) => own,
    }
}

/// What StopContainer is given after preStop and waiting took `spent` of `grace`.
pub fn stop_timeout(grace: Duration, spent: Duration) -> Duration {
    let counted = if mutant::is(Mutant::PreStopIsFree) { Duration::ZERO } else { spent };
    grace.saturating_sub(counted).max(MINIMUM_GRACE)
}

/// For each running container, those that must have ended before it gets its TERM: a sidecar outlives every regular
/// container and every sidecar declared after it.
pub fn outlives(pod: &Pod, running: &[String]) -> BTreeMap<String, Vec<String>> {
    let runs = |name: &String| running.contains(name);
    let mut later: Vec<String> = spec::containers(pod).iter().map(|c| c.name.clone()).filter(runs).collect();
    let mut out: BTreeMap<String, Vec<String>> = running.iter().map(|n| (n.clone(), Vec::new())).collect();
    if mutant::is(Mutant::SidecarsGoFirst) {
        return out;
    }
    for c in spec::init_containers(pod).iter().rev().filter(|c| spec::is_sidecar(c)) {
        if out.contains_key(&c.name) {
            out.insert(c.name.clone(), later.clone());
            later.push(c.name.clone());
        }
    }
    out
}

/// How long the caller of a kill waits for the whole Pod. Source: killPodNow.
pub fn kill_wait(grace: Duration) -> Duration {
    (grace + grace / 2).max(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        let c = |name: &str, policy: Option<&str>| Container {
            name: name.to_owned(),
            restart_policy: policy.map(str::to_owned),
            ..Container::default()
        };
        Pod {
            spec: Some(podlab_api::core::PodSpec {
                init_containers: Some(vec![c("s1", Some("Always")), c("i", None), c("s2", Some("Always"))]),
                containers: vec![c("a", None), c("b", None)],
                ..Default::default()
            }),
            ..Pod::default()
        }
    }

    #[test]
    fn sidecars_end_after_the_containers_and_in_reverse_order() {
        let names: Vec<String> = ["s1", "s2", "a", "b"].map(str::to_owned).to_vec();
        let order = outlives(&pod(), &names);
        assert_eq!(order["a"], Vec::<String>::new());
        assert_eq!(order["s2"], ["a", "b"]);
        assert_eq!(order["s1"], ["a", "b", "s2"]);
    }

    #[test]
    fn a_stop_gets_two_seconds_even_when_the_hook_used_the_grace_up() {
        let s = Duration::from_secs;
        assert_eq!(stop_timeout(s(5), s(1)), s(4));
        assert_eq!(stop_timeout(s(5), s(9)), s(2));
        assert_eq!(stop_timeout(s(1), s(0)), s(2));
    }

    #[test]
    fn a_grace_period_only_shrinks_and_never_reaches_zero() {
        let mut p = pod();
        assert_eq!(pod_grace(&p, None, None), 30);
        assert_eq!(pod_grace(&p, Some(5), Some(3)), 3);
        assert_eq!(pod_grace(&p, Some(0), None), 1);
        p.metadata.deletion_timestamp = Some(podlab_api::meta::Time(Default::default()));
        p.metadata.deletion_grace_period_seconds = Some(7);
        assert_eq!(pod_grace(&p, None, None), 7);
    }
}
