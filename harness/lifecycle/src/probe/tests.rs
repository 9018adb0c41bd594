//! Thresholds and delays of probes.
use podlab_api::core::{ContainerState, ContainerStateRunning, ContainerStateTerminated};
use proptest::prelude::*;

use super::*;

fn status(id: &str, started: bool, at: i64) -> ContainerStatus {
    let running =
        ContainerStateRunning { started_at: Some(podlab_api::meta::Time(Timestamp::from_second(at).unwrap())) };
    ContainerStatus {
        container_id: Some(id.to_owned()),
        started: Some(started),
        state: Some(ContainerState { running: Some(running), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

const TIMES: ProbeTimes = ProbeTimes { initial_delay: 2, period: 1, timeout: 1, success: 1, failure: 3 };
const ALIVE: PodView = PodView { deleting: false, terminal: false, restarts: true };

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

#[test]
fn other_probes_wait_for_startup_and_for_the_delay() {
    let mut m = Machine::new(ProbeKind::Liveness, TIMES);
    m.adopt(&status("a", false, 0), false);
    assert_eq!(m.turn(Some(&status("a", false, 0)), ALIVE, at(5)), Turn::Skip);
    assert_eq!(m.turn(Some(&status("a", true, 0)), ALIVE, at(1)), Turn::Skip);
    assert_eq!(m.turn(Some(&status("a", true, 0)), ALIVE, at(2)), Turn::Probe);
}

#[test]
fn three_failures_in_a_row_fail_and_hold_until_a_new_container() {
    let mut m = Machine::new(ProbeKind::Liveness, TIMES);
    m.adopt(&status("a", true, 0), false);
    use ProbeResult::{Failure, Success};
    let got: Vec<_> =
        [Failure, Failure, Success, Failure, Failure, Failure].into_iter().map(|r| m.outcome(r)).collect();
    assert_eq!(got, [None, None, Some(Success), None, None, Some(Failure)]);
    assert_eq!(m.turn(Some(&status("a", true, 0)), ALIVE, at(9)), Turn::Skip);
    assert_eq!(m.adopt(&status("b", true, 0), false), Some(Adopted { old: Some("a".into()), set: Success }));
    assert_eq!(m.turn(Some(&status("b", true, 0)), ALIVE, at(9)), Turn::Probe);
}

#[test]
fn an_ended_container_fails_and_ends_the_worker_only_when_it_stays_down() {
    let m = Machine::new(ProbeKind::Readiness, TIMES);
    let mut s = status("a", true, 0);
    s.state =
        Some(ContainerState { terminated: Some(ContainerStateTerminated::default()), ..ContainerState::default() });
    assert_eq!(m.turn(Some(&s), ALIVE, at(9)), Turn::Set(ProbeResult::Failure));
    assert_eq!(m.turn(Some(&s), PodView { restarts: false, ..ALIVE }, at(9)), Turn::SetAndEnd(ProbeResult::Failure));
}

#[test]
fn a_deleted_pod_is_probed_for_readiness_alone() {
    let deleting = PodView { deleting: true, ..ALIVE };
    for (kind, expect) in
        [(ProbeKind::Liveness, Turn::SetAndEnd(ProbeResult::Success)), (ProbeKind::Readiness, Turn::Probe)]
    {
        assert_eq!(Machine::new(kind, TIMES).turn(Some(&status("a", true, 0)), deleting, at(9)), expect);
    }
}

#[test]
fn a_container_seen_ready_before_the_agent_restarted_stays_ready() {
    let mut m = Machine::new(ProbeKind::Readiness, TIMES);
    assert_eq!(m.adopt(&status("a", true, 0), true).map(|a| a.set), Some(ProbeResult::Success));
}

proptest! {
    #[test]
    fn a_failure_needs_the_threshold_in_a_row(outcomes in proptest::collection::vec(any::<bool>(), 0..60), threshold in 1u32..5) {
        let mut m = Machine::new(ProbeKind::Readiness, ProbeTimes { failure: threshold, ..TIMES });
        let mut row = 0;
        for ok in outcomes {
            row = if ok { 0 } else { row + 1 };
            let got = m.outcome(if ok { ProbeResult::Success } else { ProbeResult::Failure });
            prop_assert_eq!(got == Some(ProbeResult::Failure), !ok && row >= threshold);
        }
    }
}
