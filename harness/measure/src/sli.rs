//! The Kubernetes service level indicator of Pod startup, to the letter.
//!
//! "Startup latency of schedulable stateless pods, excluding time to pull images and run init containers, measured from pod
//! creation timestamp to when all its containers are reported as started and observed via watch". A container that started
//! and has already ended has started. Schedulable: placeable at once, without another actor and without preemption.
//! Stateless: only `secret`, `configMap`, `downwardAPI`, `emptyDir` volumes, and projections of those (the token every Pod
//! mounts among them). Source: kubernetes/community sig-scalability/slos/pod_startup_latency.md; which times are taken out
//! follows kubernetes pkg/kubelet/util/pod_startup_latency_tracker.go since PR #131950: pulls that overlap count once.

use std::time::Duration;

use podlab_clock::Mono;
use serde_json::Value;

/// A time from–to.
pub type Interval = (Mono, Mono);

/// What is known of one Pod's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliInput {
    /// When the API accepted it.
    pub created: Mono,
    /// For each container that is no init container, when a watch first showed that it had started; sidecars are init
    /// containers.
    pub started: Vec<Option<Mono>>,
    /// Image pulls.
    pub pulls: Vec<Interval>,
    /// Runs of init containers that end.
    pub inits: Vec<Interval>,
    /// Whether its `PodScheduled` condition was ever `False`.
    pub was_unschedulable: bool,
    /// Whether it has a volume that keeps state.
    pub stateful: bool,
}

/// Why a Pod does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excluded {
    /// It keeps state.
    Stateful,
    /// It could not be placed at once.
    Unschedulable,
}

/// What the indicator says of one Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sli {
    /// Its startup latency.
    Latency(Duration),
    /// It does not count.
    Excluded(Excluded),
    /// It counts, and did not arrive.
    Lost,
}

/// Computes it.
pub fn sli(input: &SliInput) -> Sli {
    if input.stateful {
        return Sli::Excluded(Excluded::Stateful);
    }
    if input.was_unschedulable {
        return Sli::Excluded(Excluded::Unschedulable);
    }
    let Some(all): Option<Vec<Mono>> = input.started.iter().copied().collect() else { return Sli::Lost };
    let Some(end) = all.into_iter().max() else { return Sli::Lost };
    let out: Vec<Interval> = input.pulls.iter().chain(&input.inits).copied().collect();
    Sli::Latency(end.since(input.created).saturating_sub(union(&out, input.created, end)))
}

/// Time covered by at least one of the intervals, between two ends.
pub fn union(intervals: &[Interval], from: Mono, to: Mono) -> Duration {
    let mut cut: Vec<Interval> =
        intervals.iter().map(|(a, b)| ((*a).max(from), (*b).min(to))).filter(|(a, b)| a < b).collect();
    cut.sort();
    let (mut sum, mut reached) = (Duration::ZERO, from);
    for (a, b) in cut {
        sum += b.since(a.max(reached));
        reached = reached.max(b);
    }
    sum
}

/// Whether a Pod's spec has a volume that keeps state.
pub fn is_stateful(pod: &Value) -> bool {
    const STATELESS: [&str; 5] = ["secret", "configMap", "downwardAPI", "emptyDir", "projected"];
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().any(|v| {
        let kind = v.as_object().and_then(|o| o.keys().find(|k| *k != "name"));
        // A volume without a source is an emptyDir.
        kind.is_some_and(|k| !STATELESS.contains(&k.as_str()))
    })
}

/// For each container of a Pod that is no init container, whether its status says that it has started at least once.
pub fn started(pod: &Value) -> Vec<bool> {
    let names = pod.pointer("/spec/containers").and_then(Value::as_array);
    let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let one = |container: &Value| {
        let name = container.get("name")?;
        let status = statuses?.iter().find(|s| s.get("name") == Some(name))?;
        let at = |path: &str| status.pointer(path).is_some_and(|v| !v.is_null());
        let ran = ["/state/running/startedAt", "/state/terminated/startedAt", "/lastState/terminated/startedAt"];
        Some(ran.into_iter().any(at))
    };
    names.into_iter().flatten().map(|c| one(c).unwrap_or(false)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn ms(n: u64) -> Mono {
        Mono(n * 1_000_000)
    }

    fn input(started: &[u64]) -> SliInput {
        SliInput { created: ms(100), started: started.iter().map(|n| Some(ms(*n))).collect(), ..SliInput::default() }
    }

    fn latency(n: u64) -> Sli {
        Sli::Latency(Duration::from_millis(n))
    }

    #[test]
    fn it_ends_with_the_last_container_that_is_seen_started() {
        assert_eq!(sli(&input(&[150, 180, 160])), latency(80));
    }

    #[test]
    fn image_pulls_and_init_containers_are_taken_out() {
        let pod = SliInput {
            pulls: vec![(ms(110), ms(130))],
            inits: vec![(ms(135), ms(155)), (ms(155), ms(165))],
            ..input(&[180])
        };
        assert_eq!(sli(&pod), latency(80 - 20 - 20 - 10));
    }

    #[test]
    fn pulls_at_the_same_time_are_taken_out_once() {
        let pod = SliInput { pulls: vec![(ms(110), ms(140)), (ms(120), ms(150)), (ms(115), ms(125))], ..input(&[180]) };
        assert_eq!(sli(&pod), latency(40));
    }

    #[test]
    fn a_pull_that_goes_on_after_the_start_is_taken_out_up_to_it() {
        // The image of a container that restarts is pulled again; of an earlier Pod, before this one was there.
        let pod = SliInput { pulls: vec![(ms(50), ms(120)), (ms(170), ms(900))], ..input(&[180]) };
        assert_eq!(sli(&pod), latency(80 - 20 - 10));
    }

    #[test]
    fn a_container_that_has_already_ended_has_started() {
        let pod = |status: Value| json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": {"containerStatuses": status}});
        let running = json!({"name": "a", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
        let ended = json!({"name": "b", "state": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z"}}});
        let again = json!({"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z"}}});
        let waits = json!({"name": "b", "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}});
        // A container whose program could not be started has no time of start.
        let failed =
            json!({"name": "b", "state": {"terminated": {"exitCode": 128, "reason": "StartError", "startedAt": null}}});
        assert_eq!(started(&pod(json!([running, ended]))), [true, true]);
        assert_eq!(started(&pod(json!([running, again]))), [true, true]);
        assert_eq!(started(&pod(json!([running, waits]))), [true, false]);
        assert_eq!(started(&pod(json!([running, failed]))), [true, false]);
        assert_eq!(started(&json!({"spec": {"containers": [{"name": "a"}]}})), [false]);
    }

    #[test]
    fn a_pod_that_could_not_be_placed_at_once_does_not_count() {
        let pod = SliInput { was_unschedulable: true, ..input(&[180]) };
        assert_eq!(sli(&pod), Sli::Excluded(Excluded::Unschedulable));
    }

    #[test]
    fn a_pod_that_keeps_state_does_not_count() {
        assert_eq!(sli(&SliInput { stateful: true, ..input(&[180]) }), Sli::Excluded(Excluded::Stateful));
        let with = |volume: Value| json!({"spec": {"volumes": [volume]}});
        for volume in [
            json!({"name": "v", "persistentVolumeClaim": {}}),
            json!({"name": "v", "csi": {}}),
            json!({"name": "v", "hostPath": {}}),
            json!({"name": "v", "ephemeral": {}}),
        ] {
            assert!(is_stateful(&with(volume.clone())), "{volume}");
        }
        // The token that every Pod mounts does not make it stateful.
        for volume in [
            json!({"name": "v", "emptyDir": {}}),
            json!({"name": "v", "secret": {}}),
            json!({"name": "v", "configMap": {}}),
            json!({"name": "v", "downwardAPI": {}}),
            json!({"name": "kube-api-access-x", "projected": {"sources": []}}),
            json!({"name": "v"}),
        ] {
            assert!(!is_stateful(&with(volume.clone())), "{volume}");
        }
    }

    #[test]
    fn a_pod_that_counts_and_does_not_arrive_is_lost() {
        let mut pod = input(&[180]);
        pod.started.push(None);
        assert_eq!(sli(&pod), Sli::Lost);
        assert_eq!(sli(&input(&[])), Sli::Lost);
    }

    proptest! {
        #[test]
        fn it_is_never_negative_and_never_more_than_the_whole(pulls in proptest::collection::vec((0u64..500, 0u64..500), 0..8), inits in proptest::collection::vec((0u64..500, 0u64..500), 0..4), end in 100u64..600) {
            let to = |all: Vec<(u64, u64)>| all.into_iter().map(|(a, b)| (ms(a), ms(a + b))).collect::<Vec<_>>();
            let pod = SliInput { pulls: to(pulls), inits: to(inits), ..input(&[end]) };
            let Sli::Latency(l) = sli(&pod) else { panic!("it counts") };
            prop_assert!(l <= Duration::from_millis(end - 100));
        }
    }
}
