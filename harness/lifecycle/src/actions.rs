//! What the next sync of a Pod must do.
//!
//! ```text
//! sandbox unusable ──► kill everything, make one, first init container (or all regular ones)
//! sandbox usable   ──► new ephemeral containers
//!                      init phase not over ──► next init container(s), nothing else
//!                      init phase over     ──► per regular container: keep | start | kill (+ start)
//!                      nothing kept, nothing to start ──► kill the Pod
//! ```
//! Source: k/k pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodActions.

use std::collections::BTreeMap;

use podlab_api::core::{Container, Pod};

use crate::{
    init,
    probe::{ProbeResult, Results},
    restart,
    runtime::{RuntimePod, RuntimeState},
    spec::{self, ContainerKind},
};

/// Why a single container is killed while its Pod goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its definition changed.
    Changed,
    /// Its state is unknown; it must not run twice.
    Unknown,
}

/// A container to kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillOrder {
    /// Container name.
    pub name: String,
    /// Message of the Killing event.
    pub message: String,
    /// Why.
    pub reason: KillReason,
}

/// The plan of one sync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actions {
    /// Kill every container and the sandbox first.
    pub kill_pod: bool,
    /// Then make a sandbox, with this attempt number.
    pub create_sandbox: Option<u32>,
    /// The latest sandbox, if any.
    pub sandbox_id: Option<String>,
    /// Containers to kill, by id.
    pub kill: BTreeMap<String, KillOrder>,
    /// Ephemeral containers to start, by index.
    pub ephemeral: Vec<usize>,
    /// Init containers to start, by index.
    pub init: Vec<usize>,
    /// Regular containers to start, by index.
    pub start: Vec<usize>,
    /// Running containers that stay.
    pub keep: usize,
}

/// What probes say, and how definitions are compared; read-only inputs of [`compute`].
pub struct Inputs<'a> {
    /// Liveness results by container id.
    pub liveness: &'a Results,
    /// Startup results by container id.
    pub startup: &'a Results,
    /// Hash of the part of a container whose change means a restart.
    pub hash: &'a dyn Fn(&Container) -> u64,
}

/// Computes the plan.
pub fn compute(pod: &Pod, runtime: &RuntimePod, inputs: &Inputs<'_>) -> Actions {
    let sandbox = runtime.sandbox_changed(pod);
    let mut actions = Actions { sandbox_id: sandbox.id.clone(), ..Actions::default() };
    if sandbox.changed {
        actions.kill_pod = true;
        return with_new_sandbox(pod, runtime, sandbox.attempt, actions);
    }
    for (i, c) in spec::ephemeral_containers(pod).iter().enumerate() {
        if runtime.container(&c.name).is_none() {
            actions.ephemeral.push(i);
        }
    }
    let initialized = init::compute(pod, runtime, inputs, &mut actions);
    if actions.kill_pod || !initialized {
        return actions;
    }
    for (i, c) in spec::containers(pod).iter().enumerate() {
        regular(pod, runtime, inputs, i, c, &mut actions);
    }
    if actions.keep == 0 && actions.start.is_empty() {
        actions.kill_pod = true;
        // Sidecars must not keep a finished Pod alive.
        actions.init.clear();
    }
    actions
}

fn with_new_sandbox(pod: &Pod, runtime: &RuntimePod, attempt: u32, mut actions: Actions) -> Actions {
    let may_restart = spec::restart_policy(pod) != spec::RestartPolicy::Never;
    if !may_restart && attempt != 0 && !runtime.containers.is_empty() {
        return actions;
    }
    let succeeded =
        |c: &Container| runtime.container(&c.name).is_some_and(|r| r.state == RuntimeState::Exited && r.exit_code == 0);
    let on_failure = spec::restart_policy(pod) == spec::RestartPolicy::OnFailure;
    let start: Vec<usize> = spec::containers(pod)
        .iter()
        .enumerate()
        .filter(|(_, c)| !(on_failure && succeeded(c)))
        .map(|(i, _)| i)
        .collect();
    let had_regular = spec::containers(pod).iter().any(|c| runtime.container(&c.name).is_some());
    if start.is_empty() && had_regular {
        return actions;
    }
    actions.create_sandbox = Some(attempt);
    if spec::init_containers(pod).is_empty() {
        actions.start = start;
    } else {
        actions.init = vec![0];
    }
    actions
}

fn regular(pod: &Pod, runtime: &RuntimePod, inputs: &Inputs<'_>, i: usize, c: &Container, actions: &mut Actions) {
    let record = match runtime.container(&c.name) {
        Some(r) if r.state == RuntimeState::Running => r,
        other => {
            if restart::should_start(pod, c, false, runtime) {
                actions.start.push(i);
                if let Some(r) = other.filter(|r| r.state == RuntimeState::Unknown) {
                    let message = "Container is in \"unknown\" state, try killing it before restart".to_owned();
                    actions
                        .kill
                        .insert(r.id.clone(), KillOrder { name: c.name.clone(), message, reason: KillReason::Unknown });
                }
            }
            return;
        }
    };
    let mut again = restart::restarts_on_failure(pod, c, false);
    let (why, reason) = if record.spec_hash.is_some_and(|h| h != (inputs.hash)(c)) {
        again = true;
        (format!("Container {} definition changed", c.name), KillReason::Changed)
    } else if inputs.liveness.get(&record.id) == Some(ProbeResult::Failure) {
        (format!("Container {} failed liveness probe", c.name), KillReason::Liveness)
    } else if inputs.startup.get(&record.id) == Some(ProbeResult::Failure) {
        (format!("Container {} failed startup probe", c.name), KillReason::Startup)
    } else {
        actions.keep += 1;
        return;
    };
    let message = if again {
        actions.start.push(i);
        format!("{why}, will be restarted")
    } else {
        why
    };
    actions.kill.insert(record.id.clone(), KillOrder { name: c.name.clone(), message, reason });
}

/// The spec a container of this kind and index was declared with.
pub fn declared(pod: &Pod, kind: ContainerKind, index: usize) -> Option<Container> {
    match kind {
        ContainerKind::Init => spec::init_containers(pod).get(index).cloned(),
        ContainerKind::Regular => spec::containers(pod).get(index).cloned(),
        ContainerKind::Ephemeral => spec::ephemeral_containers(pod).into_iter().nth(index),
    }
}

#[cfg(test)]
pub(crate) mod tests;
