//! `status.phase` from container statuses. Source: k/k pkg/kubelet/kubelet_pods.go getPhase.

use podlab_api::core::{ContainerStatus, Pod};
use podlab_mutant::{self as mutant, Mutant};

use crate::{
    restart,
    spec::{self, RestartPolicy},
    words::Phase,
};

/// Whether the Pod's containers can still come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// The node agent still restarts containers.
    Active,
    /// The Pod was told to end; what stopped stays stopped.
    Terminal,
}

#[derive(Default)]
struct Count {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    succeeded: usize,
    restartable: usize,
}

/// The phase of a Pod. `began` says whether a regular container had started before this status.
pub fn phase(
    pod: &Pod,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    liveness: Liveness,
    began: bool,
) -> Phase {
    let mut count = Count::default();
    let (mut pending_init, mut pending_sidecar, mut failed_init) = (0, 0, 0);
    for c in spec::init_containers(pod) {
        let status = init.iter().find(|s| s.name == c.name);
        let state = status.and_then(|s| s.state.as_ref());
        let last = status.and_then(|s| s.last_state.as_ref()).and_then(|s| s.terminated.as_ref());
        let ended = state.and_then(|s| s.terminated.as_ref());
        let waits = state.is_some_and(|s| s.waiting.is_some());
        let runs = state.is_some_and(|s| s.running.is_some());
        if spec::is_sidecar(c) {
            match (status, runs, waits) {
                (None, ..) => count.unknown += 1,
                (Some(s), true, _) => {
                    if s.started != Some(true) {
                        pending_sidecar += 1;
                    }
                    count.running += 1;
                }
                (Some(_), _, true) if last.is_none() => {
                    pending_sidecar += 1;
                    count.waiting += 1;
                }
                _ => {}
            }
            continue;
        }
        let exit = ended.or(if waits { last } else { None });
        match exit {
            Some(t) if t.exit_code != 0 => {
                // One that will be tried again keeps the Pod pending through the containers that still wait for it.
                failed_init += usize::from(restart::after_exit(pod, c, true, t.exit_code) == restart::Decision::Leave);
            }
            Some(_) => {}
            None => pending_init += 1,
        }
    }
    for c in spec::containers(pod) {
        let status = regular.iter().find(|s| s.name == c.name);
        let state = status.and_then(|s| s.state.as_ref());
        match state {
            Some(s) if s.running.is_some() => count.running += 1,
            Some(s) if s.terminated.is_some() => {
                count.stopped += 1;
                let code = s.terminated.as_ref().map_or(0, |t| t.exit_code);
                count.succeeded += usize::from(code == 0);
                count.restartable += usize::from(restart::after_exit(pod, c, false, code) != restart::Decision::Leave);
            }
            Some(s) if s.waiting.is_some() => {
                let last = status.and_then(|s| s.last_state.as_ref()).and_then(|s| s.terminated.as_ref());
                match last {
                    Some(t) => {
                        count.stopped += 1;
                        count.restartable +=
                            usize::from(restart::after_exit(pod, c, false, t.exit_code) != restart::Decision::Leave);
                    }
                    None => count.waiting += 1,
                }
            }
            _ => count.unknown += 1,
        }
    }
    if failed_init > 0 {
        return Phase::Failed;
    }
    let initializing = pending_init > 0 || (pending_sidecar > 0 && !began);
    if initializing || count.waiting > 0 {
        return Phase::Pending;
    }
    if count.running > 0 && count.unknown == 0 {
        return Phase::Running;
    }
    if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        return stopped(pod, &count, liveness);
    }
    Phase::Pending
}

fn stopped(pod: &Pod, count: &Count, liveness: Liveness) -> Phase {
    let well = count.stopped == count.succeeded || mutant::is(Mutant::FailureLooksLikeSuccess);
    let by_exit = if well { Phase::Succeeded } else { Phase::Failed };
    if liveness == Liveness::Terminal {
        return by_exit;
    }
    if count.restartable > 0 {
        return Phase::Running;
    }
    match spec::restart_policy(pod) {
        RestartPolicy::Always => Phase::Running,
        RestartPolicy::OnFailure | RestartPolicy::Never => by_exit,
    }
}
