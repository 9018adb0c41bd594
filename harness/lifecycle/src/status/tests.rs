//! Statuses from containers, case by case.
use super::*;
use crate::{
    actions::tests::{mk_pod, record, with_sandbox},
    container::StartFailures,
    runtime::{RuntimePod, RuntimeState},
};

struct Always;
impl Readiness for Always {
    fn started(&self, _: &ContainerStatus) -> bool {
        true
    }
    fn ready(&self, _: &ContainerStatus) -> bool {
        true
    }
}

fn gen_status(pod: &Pod, runtime: &RuntimePod, previous: &PodStatus, liveness: Liveness) -> PodStatus {
    let failures = StartFailures::new();
    generate(&Inputs {
        view: View { pod, runtime, failures: &failures, scheme: "podlab", starting_over: false },
        previous,
        readiness: &Always,
        liveness,
        verdict: None,
        host_ips: &["1.1.1.1".to_owned()],
        resize: None,
    })
}

fn cond(s: &PodStatus, kind: &str) -> String {
    let c = s.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
    format!("{} {}", c.status, c.reason.as_deref().unwrap_or("-"))
}

#[test]
fn a_completed_pod_is_held_in_its_phase_until_nothing_can_run() {
    let pod = mk_pod("Never", &[], &["c"]);
    let running = gen_status(
        &pod,
        &with_sandbox(vec![record("c", RuntimeState::Running, 0)]),
        &PodStatus::default(),
        Liveness::Active,
    );
    assert_eq!(running.phase.as_deref(), Some("Running"));
    assert_eq!(cond(&running, "Ready"), "True -");
    let done = gen_status(&pod, &with_sandbox(vec![record("c", RuntimeState::Exited, 0)]), &running, Liveness::Active);
    assert_eq!(done.phase.as_deref(), Some("Succeeded"));
    let held = merge(&running, &done, MayRun::Yes);
    assert_eq!(held.phase.as_deref(), Some("Running"));
    assert_eq!(
        (cond(&held, "Ready"), cond(&held, "Initialized")),
        ("False PodCompleted".into(), "True PodCompleted".into())
    );
    assert_eq!(merge(&held, &done, MayRun::No).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_terminal_phase_absorbs() {
    let pod = mk_pod("Always", &[], &["c"]);
    let failed = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
    let s = gen_status(&pod, &with_sandbox(vec![record("c", RuntimeState::Running, 0)]), &failed, Liveness::Active);
    assert_eq!(s.phase.as_deref(), Some("Failed"));
}

#[test]
fn stopping_an_always_pod_makes_it_fail_on_a_signal_and_succeed_on_zero() {
    let pod = mk_pod("Always", &[], &["c"]);
    for (code, expect) in [(0, "Succeeded"), (137, "Failed")] {
        let runtime = with_sandbox(vec![record("c", RuntimeState::Exited, code)]);
        assert_eq!(
            gen_status(&pod, &runtime, &PodStatus::default(), Liveness::Terminal).phase.as_deref(),
            Some(expect)
        );
        assert_eq!(
            gen_status(&pod, &runtime, &PodStatus::default(), Liveness::Active).phase.as_deref(),
            Some("Running")
        );
    }
}

#[test]
fn transition_times_move_only_when_the_status_does() {
    let pod = mk_pod("Always", &[], &["c"]);
    let t = |s| Timestamp::from_second(s).unwrap();
    let first = stamp(
        gen_status(&pod, &with_sandbox(vec![]), &PodStatus::default(), Liveness::Active),
        &PodStatus::default(),
        t(10),
    );
    let second = stamp(
        gen_status(&pod, &with_sandbox(vec![record("c", RuntimeState::Running, 0)]), &first, Liveness::Active),
        &first,
        t(20),
    );
    let time = |s: &PodStatus, k: &str| {
        s.conditions.iter().flatten().find(|c| c.type_ == k).unwrap().last_transition_time.clone().unwrap().0
    };
    assert_eq!(time(&second, "Initialized"), t(10));
    assert_eq!(time(&second, "Ready"), t(20));
    assert_eq!(second.start_time.unwrap().0, t(10));
}

#[test]
fn readiness_alone_updates_the_conditions() {
    let pod = mk_pod("Always", &[], &["c"]);
    let s = gen_status(
        &pod,
        &with_sandbox(vec![record("c", RuntimeState::Running, 0)]),
        &PodStatus::default(),
        Liveness::Active,
    );
    let off = with_readiness(&pod, &s, "podlab://id-c", false).unwrap();
    assert_eq!(cond(&off, "Ready"), "False ContainersNotReady");
    assert_eq!(cond(&off, "PodReadyToStartContainers"), "True -");
    assert!(with_readiness(&pod, &off, "podlab://id-c", false).is_none());
    assert!(with_readiness(&pod, &off, "podlab://other", true).is_none());
}

#[test]
fn foreign_conditions_survive_a_merge_and_gates_hold_ready() {
    let mut pod = mk_pod("Always", &[], &["c"]);
    pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![podlab_api::core::PodReadinessGate { condition_type: "example.com/lb".into() }]);
    let s = gen_status(
        &pod,
        &with_sandbox(vec![record("c", RuntimeState::Running, 0)]),
        &PodStatus::default(),
        Liveness::Active,
    );
    assert_eq!(cond(&s, "Ready"), "False ReadinessGatesNotReady");
    let gate = conditions::condition_of("example.com/lb", true, None, None);
    let shown = PodStatus { conditions: Some(vec![gate]), ..PodStatus::default() };
    assert_eq!(cond(&merge(&shown, &s, MayRun::Yes), "example.com/lb"), "True -");
}

#[test]
fn a_pod_that_ended_before_anything_ran_fails() {
    let pod = mk_pod("Always", &[("i", false)], &["c"]);
    let s = gen_status(&pod, &with_sandbox(vec![]), &PodStatus::default(), Liveness::Terminal);
    assert_eq!(s.phase.as_deref(), Some("Pending"));
    let f = finish(&pod, &s);
    assert_eq!(f.phase.as_deref(), Some("Failed"));
    assert!(f.container_statuses.unwrap()[0].state.as_ref().unwrap().waiting.is_some());
}
