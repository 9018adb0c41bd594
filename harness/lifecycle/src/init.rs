//! The init part of a sync's plan: which init containers and sidecars come next.
//!
//! Walks the list backwards, because completed init containers may have been collected: the last one that left a trace
//! decides. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container.go computeInitContainerActions.

use podlab_api::core::{Container, Pod};
use podlab_mutant::{self as mutant, Mutant};

use crate::{
    actions::{Actions, Inputs, KillOrder, KillReason},
    probe::ProbeResult,
    restart,
    runtime::{ContainerRecord, RuntimePod, RuntimeState},
    spec,
};

/// Fills in the init part; true when the init phase is over.
pub(crate) fn compute(pod: &Pod, runtime: &RuntimePod, inputs: &Inputs<'_>, actions: &mut Actions) -> bool {
    let init = spec::init_containers(pod);
    if init.is_empty() {
        return true;
    }
    let mut initialized = spec::containers(pod).iter().any(|c| runtime.container(&c.name).is_some());
    let mut later_began = initialized;
    for (i, c) in init.iter().enumerate().rev() {
        let sidecar = spec::is_sidecar(c);
        let Some(record) = runtime.container(&c.name) else {
            if later_began && sidecar {
                actions.init.push(i);
            }
            continue;
        };
        if later_began && !sidecar {
            continue;
        }
        let walk = Walk { last: i + 1 == init.len(), index: i, later_began };
        let step = if sidecar {
            step_sidecar(c, record, inputs, &walk, actions)
        } else {
            step_init(pod, c, record, &walk, actions)
        };
        match step {
            Step::Over => initialized = true,
            Step::Going => {}
            Step::PodFailed => {
                actions.kill_pod = true;
                actions.init.clear();
                return false;
            }
        }
        later_began = true;
    }
    if !later_began {
        actions.init.push(0);
    }
    actions.init.reverse();
    initialized
}

struct Walk {
    last: bool,
    index: usize,
    later_began: bool,
}

enum Step {
    Over,
    Going,
    PodFailed,
}

fn step_init(pod: &Pod, c: &Container, r: &ContainerRecord, walk: &Walk, actions: &mut Actions) -> Step {
    match r.state {
        RuntimeState::Created => {
            // Made but never started: its creation failed midway; starting it again makes a new one.
            actions.init.push(walk.index);
            Step::Going
        }
        RuntimeState::Running => Step::Going,
        RuntimeState::Exited if r.exit_code == 0 || mutant::is(Mutant::InitFailureIsIgnored) => done(walk, actions),
        RuntimeState::Exited => {
            if restart::after_exit(pod, c, true, r.exit_code) == restart::Decision::Leave {
                return Step::PodFailed;
            }
            actions.init.push(walk.index);
            Step::Going
        }
        RuntimeState::Unknown => {
            if !restart::restarts_on_failure(pod, c, true) {
                return Step::PodFailed;
            }
            kill_unknown(c, r, actions);
            actions.init.push(walk.index);
            Step::Going
        }
    }
}

fn step_sidecar(c: &Container, r: &ContainerRecord, inputs: &Inputs<'_>, walk: &Walk, actions: &mut Actions) -> Step {
    match r.state {
        RuntimeState::Created | RuntimeState::Exited => {
            actions.init.push(walk.index);
            Step::Going
        }
        RuntimeState::Unknown => {
            kill_unknown(c, r, actions);
            actions.init.push(walk.index);
            Step::Going
        }
        RuntimeState::Running => {
            if c.startup_probe.is_some() {
                match inputs.startup.get(&r.id) {
                    None | Some(ProbeResult::Unknown) => return Step::Going,
                    Some(ProbeResult::Failure) => {
                        kill(c, r, "startup", KillReason::Startup, actions);
                        actions.init.push(walk.index);
                        return Step::Going;
                    }
                    Some(ProbeResult::Success) => {}
                }
            }
            let step = if walk.last {
                Step::Over
            } else {
                if !walk.later_began {
                    actions.init.push(walk.index + 1);
                }
                Step::Going
            };
            if c.liveness_probe.is_some() && inputs.liveness.get(&r.id) == Some(ProbeResult::Failure) {
                kill(c, r, "liveness", KillReason::Liveness, actions);
                actions.init.push(walk.index);
            }
            step
        }
    }
}

fn done(walk: &Walk, actions: &mut Actions) -> Step {
    if walk.last {
        return Step::Over;
    }
    actions.init.push(walk.index + 1);
    Step::Going
}

fn kill(c: &Container, r: &ContainerRecord, probe: &str, reason: KillReason, actions: &mut Actions) {
    let message = format!("Init container {} failed {probe} probe", c.name);
    actions.kill.insert(r.id.clone(), KillOrder { name: c.name.clone(), message, reason });
}

fn kill_unknown(c: &Container, r: &ContainerRecord, actions: &mut Actions) {
    let message = "Init container is in \"unknown\" state, try killing it before restart".to_owned();
    actions.kill.insert(r.id.clone(), KillOrder { name: c.name.clone(), message, reason: KillReason::Unknown });
}
