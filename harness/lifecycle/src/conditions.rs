//! Pod conditions from phase and container statuses. Source: k/k pkg/kubelet/status/generate.go.

use podlab_api::core::{Container, ContainerStatus, Pod, PodCondition};

use crate::{
    restart,
    runtime::RuntimePod,
    spec,
    words::{Phase, bracketed, condition},
};

/// What the conditions are computed from.
pub struct Inputs<'a> {
    /// The Pod.
    pub pod: &'a Pod,
    /// What the runtime has; `None` when only the statuses changed and the sandbox condition is kept.
    pub runtime: Option<&'a RuntimePod>,
    /// Statuses of the init containers.
    pub init: &'a [ContainerStatus],
    /// Statuses of the regular containers.
    pub regular: &'a [ContainerStatus],
    /// The phase that goes with them.
    pub phase: Phase,
}

/// All conditions the node agent owns, in the order it writes them, after the foreign ones of `foreign`.
pub fn generate(inputs: &Inputs<'_>, foreign: &[PodCondition]) -> Vec<PodCondition> {
    let mut out: Vec<PodCondition> = foreign.iter().filter(|c| !condition::owned_by_agent(&c.type_)).cloned().collect();
    if let Some(runtime) = inputs.runtime {
        out.push(sandbox(inputs.pod, runtime));
    }
    let ready = containers_ready(inputs);
    out.push(initialized(inputs));
    out.push(pod_ready(inputs.pod, &ready, foreign));
    out.push(ready);
    out.push(condition_of(condition::SCHEDULED, true, None, None));
    let generation = inputs.pod.metadata.generation;
    for c in &mut out {
        if condition::owned_by_agent(&c.type_) {
            c.observed_generation = generation;
        }
    }
    out
}

/// `PodReadyToStartContainers`: a usable sandbox exists.
pub fn sandbox(pod: &Pod, runtime: &RuntimePod) -> PodCondition {
    condition_of(condition::READY_TO_START, !runtime.sandbox_changed(pod).changed, None, None)
}

/// `Initialized`.
pub fn initialized(inputs: &Inputs<'_>) -> PodCondition {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for c in spec::init_containers(inputs.pod) {
        match inputs.init.iter().find(|s| s.name == c.name) {
            None => unknown.push(c.name.as_str()),
            Some(s) if spec::is_sidecar(c) && s.started != Some(true) => incomplete.push(c.name.as_str()),
            Some(s) if !spec::is_sidecar(c) && !s.ready => incomplete.push(c.name.as_str()),
            Some(_) => {}
        }
    }
    if inputs.phase == Phase::Succeeded && unknown.is_empty() {
        return condition_of(condition::INITIALIZED, true, Some("PodCompleted"), None);
    }
    // Sidecars that restart do not undo an initialisation.
    // A Pod whose rule made everything start over was initialized once, and stays so.
    let began_before = |s: &ContainerStatus| s.last_state.as_ref().is_some_and(|l| l.terminated.is_some());
    let starting_over = restart::may_restart_all(inputs.pod) && inputs.regular.iter().any(began_before);
    if any_regular_started(inputs.regular) || starting_over {
        return condition_of(condition::INITIALIZED, true, None, None);
    }
    match complaint(&unknown, &incomplete, "incomplete") {
        Some(m) => condition_of(condition::INITIALIZED, false, Some("ContainersNotInitialized"), Some(m)),
        None => condition_of(condition::INITIALIZED, true, None, None),
    }
}

/// `ContainersReady`.
pub fn containers_ready(inputs: &Inputs<'_>) -> PodCondition {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let mut look = |list: &[ContainerStatus], c: &Container| match list.iter().find(|s| s.name == c.name) {
        None => unknown.push(c.name.clone()),
        Some(s) if !s.ready => unready.push(c.name.clone()),
        Some(_) => {}
    };
    for c in spec::init_containers(inputs.pod).iter().filter(|c| spec::is_sidecar(c)) {
        look(inputs.init, c);
    }
    for c in spec::containers(inputs.pod) {
        look(inputs.regular, c);
    }
    if inputs.phase == Phase::Succeeded && unknown.is_empty() || inputs.phase == Phase::Failed {
        return terminal(condition::CONTAINERS_READY, inputs.phase);
    }
    let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
    let unready: Vec<&str> = unready.iter().map(String::as_str).collect();
    match complaint(&unknown, &unready, "unready") {
        Some(m) => condition_of(condition::CONTAINERS_READY, false, Some("ContainersNotReady"), Some(m)),
        None => condition_of(condition::CONTAINERS_READY, true, None, None),
    }
}

/// `Ready`: all containers are, and every readiness gate is open.
pub fn pod_ready(pod: &Pod, containers: &PodCondition, conditions: &[PodCondition]) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: condition::READY.to_owned(), ..containers.clone() };
    }
    let mut shut = Vec::new();
    for gate in spec::pod_spec(pod).readiness_gates.iter().flatten() {
        let name = &gate.condition_type;
        match conditions.iter().find(|c| c.type_ == *name) {
            None => shut.push(format!("corresponding condition of pod readiness gate \"{name}\" does not exist.")),
            Some(c) if c.status != "True" => {
                shut.push(format!("the status of pod readiness gate \"{name}\" is not \"True\", but {}", c.status));
            }
            Some(_) => {}
        }
    }
    if shut.is_empty() {
        return condition_of(condition::READY, true, None, None);
    }
    condition_of(condition::READY, false, Some("ReadinessGatesNotReady"), Some(shut.join(", ")))
}

/// `Ready` or `ContainersReady` of a Pod that has ended.
pub fn terminal(kind: &str, phase: Phase) -> PodCondition {
    let reason = match phase {
        Phase::Succeeded => Some("PodCompleted"),
        Phase::Failed => Some("PodFailed"),
        Phase::Pending | Phase::Running | Phase::Unknown => None,
    };
    condition_of(kind, false, reason, None)
}

/// Whether some regular container runs or ran.
pub fn any_regular_started(regular: &[ContainerStatus]) -> bool {
    regular.iter().filter_map(|s| s.state.as_ref()).any(|s| s.running.is_some() || s.terminated.is_some())
}

fn complaint(unknown: &[&str], bad: &[&str], word: &str) -> Option<String> {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", bracketed(unknown)));
    }
    if !bad.is_empty() {
        parts.push(format!("containers with {word} status: {}", bracketed(bad)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// A condition without times.
pub fn condition_of(kind: &str, status: bool, reason: Option<&str>, message: Option<String>) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        ..PodCondition::default()
    }
}
