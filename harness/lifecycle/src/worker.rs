//! The life of a Pod's worker, and when it runs again.
//!
//! ```text
//!           sync ok / error: again later
//!            ┌──┐
//! Syncing ───┴──┴──terminal status, deletion, removal, kill──► Terminating ──stopped──► Terminated ──cleaned──► Finished
//!                                                                 └─ failed to kill: again ─┘
//! ```
//! Nothing goes back. Source: k/k pkg/kubelet/pod_workers.go.

use std::time::Duration;

/// Resync of a healthy Pod, before jitter.
pub const RESYNC: Duration = Duration::from_secs(60);
/// Retry after an error, before jitter.
pub const RETRY: Duration = Duration::from_secs(10);
/// Retry while the node's network is not ready, before jitter.
pub const RETRY_NETWORK: Duration = Duration::from_secs(1);

/// Where a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// Bringing the Pod to what its spec says.
    Syncing,
    /// Stopping its containers.
    Terminating,
    /// Cleaning up: volumes, cgroup, API object.
    Terminated,
    /// Nothing left to do.
    Finished,
}

/// What moves a worker on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEvent {
    /// The Pod's status became terminal.
    BecameTerminal,
    /// Deletion, removal from the API, eviction, shutdown.
    AskedToEnd,
    /// Every container and the sandbox have stopped.
    Stopped,
    /// Everything is cleaned up.
    Cleaned,
}

/// The next state; total, and terminal stays terminal.
pub fn step(state: WorkerState, event: WorkerEvent) -> WorkerState {
    use WorkerEvent as E;
    use WorkerState as S;
    match (state, event) {
        (S::Syncing, E::BecameTerminal | E::AskedToEnd) => S::Terminating,
        (S::Terminating, E::Stopped) => S::Terminated,
        (S::Terminated, E::Cleaned) => S::Finished,
        (s, E::BecameTerminal | E::AskedToEnd | E::Stopped | E::Cleaned) => s,
    }
}

/// How a sync ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncOutcome {
    /// Nothing left to do for now.
    Done,
    /// The node's network is not ready.
    NetworkNotReady,
    /// It failed.
    Failed,
    /// It failed only because of back-offs; the earliest of them ends after this long.
    BackingOff(Duration),
    /// Nothing left to do until something falls due after this long, e.g. the active deadline. Upstream looks once a
    /// second, so there is no jitter. Source: k/k pkg/kubelet/active_deadline.go ShouldSync, kubelet.go syncLoop.
    Due(Duration),
}

/// When to run again: the base delay, times 1 to 1.5 by `jitter` in `[0, 1)`. `resync` is that of a healthy Pod.
pub fn requeue(outcome: SyncOutcome, resync: Duration, jitter: f64) -> Duration {
    let base = match outcome {
        SyncOutcome::Due(d) => return d.min(resync),
        SyncOutcome::Done => resync,
        SyncOutcome::NetworkNotReady => RETRY_NETWORK,
        SyncOutcome::Failed => RETRY,
        SyncOutcome::BackingOff(d) => d.min(RESYNC),
    };
    base.mul_f64(1.0 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = WorkerEvent> {
        prop_oneof![
            Just(WorkerEvent::BecameTerminal),
            Just(WorkerEvent::AskedToEnd),
            Just(WorkerEvent::Stopped),
            Just(WorkerEvent::Cleaned)
        ]
    }

    /// Source: k/k pkg/kubelet/pod_workers.go completeWork.
    #[test]
    fn a_worker_comes_again_when_upstreams_would() {
        let (secs, ms) = (Duration::from_secs, Duration::from_millis);
        let last = 1.0;
        for (outcome, least, most) in [
            (SyncOutcome::Done, secs(60), secs(90)),
            (SyncOutcome::Failed, secs(10), secs(15)),
            (SyncOutcome::NetworkNotReady, secs(1), ms(1500)),
            (SyncOutcome::BackingOff(secs(20)), secs(20), secs(30)),
        ] {
            assert_eq!((requeue(outcome, RESYNC, 0.0), requeue(outcome, RESYNC, last)), (least, most), "{outcome:?}");
        }
    }

    #[test]
    fn what_falls_due_is_not_late() {
        assert_eq!(requeue(SyncOutcome::Due(Duration::from_secs(30)), RESYNC, 0.9), Duration::from_secs(30));
        assert_eq!(requeue(SyncOutcome::Due(Duration::from_secs(300)), RESYNC, 0.9), RESYNC);
    }

    proptest! {
        #[test]
        fn a_worker_never_goes_back(events in proptest::collection::vec(event(), 0..40)) {
            let mut state = WorkerState::Syncing;
            for e in events {
                let next = step(state, e);
                prop_assert!(next >= state);
                state = next;
            }
        }

        #[test]
        fn a_requeue_stays_within_half_again_of_its_base(j in 0.0..1.0f64, secs in 0u64..1000) {
            let d = requeue(SyncOutcome::BackingOff(Duration::from_secs(secs)), RESYNC, j);
            let base = Duration::from_secs(secs.min(60));
            prop_assert!(d >= base && d <= base.mul_f64(1.5));
        }
    }
}
