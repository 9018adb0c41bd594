//! Container states from what the runtime says.
use super::*;
use crate::actions::tests::{mk_pod, record, with_sandbox};

fn words(s: &ContainerState) -> String {
    if s.running.is_some() {
        return "running".to_owned();
    }
    if let Some(t) = &s.terminated {
        return format!("terminated:{}", t.exit_code);
    }
    format!("waiting:{}", s.waiting.as_ref().and_then(|w| w.reason.clone()).unwrap_or_default())
}

fn one(pod: &Pod, records: Vec<ContainerRecord>, failures: &StartFailures, old: &[ContainerStatus]) -> ContainerStatus {
    let runtime = with_sandbox(records);
    let view = View { pod, runtime: &runtime, failures, scheme: "podlab", starting_over: false };
    statuses(&view, ContainerKind::Regular, spec::containers(pod), old).remove(0)
}

#[test]
fn states_follow_the_runtime() {
    let none = StartFailures::new();
    for (records, expect) in [
        (vec![], "waiting:ContainerCreating"),
        (vec![record("c", RuntimeState::Running, 0)], "running"),
        (vec![record("c", RuntimeState::Exited, 3)], "terminated:3"),
        (vec![record("c", RuntimeState::Created, 0)], "waiting:"),
    ] {
        let s = one(&mk_pod("Always", &[], &["c"]), records, &none, &[]);
        assert_eq!(words(s.state.as_ref().unwrap()), expect);
    }
    let s = one(&mk_pod("Always", &[("i", false)], &["c"]), vec![], &none, &[]);
    assert_eq!(words(s.state.as_ref().unwrap()), "waiting:PodInitializing");
}

#[test]
fn a_start_that_is_due_and_failed_shows_as_waiting_over_the_last_end() {
    let failure = StartFailure { reason: WaitingReason::CrashLoopBackOff, message: "back-off".to_owned() };
    let failures: StartFailures = [("c".to_owned(), failure)].into();
    let ended = || vec![record("c", RuntimeState::Exited, 1)];
    let s = one(&mk_pod("Always", &[], &["c"]), ended(), &failures, &[]);
    assert_eq!(words(s.state.as_ref().unwrap()), "waiting:CrashLoopBackOff");
    assert_eq!(words(s.last_state.as_ref().unwrap()), "terminated:1");
    let s = one(&mk_pod("Never", &[], &["c"]), ended(), &failures, &[]);
    assert_eq!(words(s.state.as_ref().unwrap()), "terminated:1");
}

#[test]
fn the_container_before_becomes_the_last_state() {
    let mut newer = record("c", RuntimeState::Running, 0);
    newer.restart_count = 1;
    let s = one(
        &mk_pod("Always", &[], &["c"]),
        vec![newer, record("c", RuntimeState::Exited, 7)],
        &StartFailures::new(),
        &[],
    );
    assert_eq!(
        (words(s.state.as_ref().unwrap()), words(s.last_state.as_ref().unwrap())),
        ("running".into(), "terminated:7".into())
    );
    assert_eq!(s.restart_count, 1);
}

#[test]
fn a_container_that_was_never_started_hides_no_earlier_end() {
    let at = |state, code, restarts| {
        let mut r = record("c", state, code);
        (r.id, r.restart_count) = (format!("c{restarts}"), restarts);
        r
    };
    let (running, created) = (at(RuntimeState::Running, 0, 3), at(RuntimeState::Created, 0, 2));
    let pod = mk_pod("Always", &[], &["c"]);
    let all = vec![running.clone(), created.clone(), at(RuntimeState::Exited, 7, 1)];
    let s = one(&pod, all, &StartFailures::new(), &[]);
    assert_eq!(s.last_state.as_ref().map(words), Some("terminated:7".to_owned()));
    // Nor the end an earlier status told of, when the runtime has forgotten that container.
    let old = one(&pod, vec![at(RuntimeState::Exited, 7, 1)], &StartFailures::new(), &[]);
    let s = one(&pod, vec![running, created], &StartFailures::new(), &[old]);
    assert_eq!(s.last_state.as_ref().map(words), Some("terminated:7".to_owned()));
}

#[test]
fn a_container_that_vanished_while_running_counts_as_a_restart() {
    let pod = mk_pod("Always", &[], &["c"]);
    let old = one(&pod, vec![record("c", RuntimeState::Running, 0)], &StartFailures::new(), &[]);
    let s = one(&pod, vec![], &StartFailures::new(), &[old]);
    assert_eq!(s.restart_count, 1);
    assert_eq!(words(s.last_state.as_ref().unwrap()), "terminated:137");
}
