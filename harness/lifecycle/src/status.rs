//! The status a Pod should have, how it is merged with what the API shows, and the rules that guard its end.
//!
//! ```text
//! runtime, probes ─► generate ─► keep (phase absorbs, times only move on change) ─► merge ─► API
//!                                                 merge: foreign conditions stay;
//!                                                 a terminal phase is held back while containers may run
//! ```
//! Source: k/k pkg/kubelet/kubelet_pods.go generateAPIPodStatus, pkg/kubelet/status/status_manager.go mergePodStatus.

use podlab_api::{
    core::{ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus},
    jiff::Timestamp,
};

use crate::{
    conditions,
    container::{self, View, secs},
    phase::{self, Liveness},
    qos,
    resize::ResizeState,
    spec::{self, ContainerKind},
    words::{Phase, condition},
};

/// Longest termination message of one container, bytes.
pub const MAX_MESSAGE: usize = 4096;
/// All termination messages of a Pod together, bytes.
pub const MAX_POD_MESSAGES: usize = 12 * 1024;

/// Readiness and started flags, as the prober knows them.
pub trait Readiness {
    /// Whether a running container counts as started.
    fn started(&self, container: &ContainerStatus) -> bool;
    /// Whether a running, started container is ready.
    fn ready(&self, container: &ContainerStatus) -> bool;
}

/// A verdict that ends the Pod whatever its containers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Message of the condition `DisruptionTarget`, when it is the node's doing.
    pub disruption: Option<String>,
}

/// What [`generate`] needs besides the containers.
pub struct Inputs<'a> {
    /// Pod, runtime view, start failures, id scheme.
    pub view: View<'a>,
    /// The last status generated for this Pod, or the API's for a Pod seen for the first time.
    pub previous: &'a PodStatus,
    /// Probe results.
    pub readiness: &'a dyn Readiness,
    /// Whether containers can still come back.
    pub liveness: Liveness,
    /// Deadline, eviction or shutdown verdict.
    pub verdict: Option<&'a Verdict>,
    /// The node's addresses.
    pub host_ips: &'a [String],
    /// Where an in-place resize stands, if there is one.
    pub resize: Option<&'a ResizeState>,
}

/// Generates the status of a Pod.
pub fn generate(inputs: &Inputs<'_>) -> PodStatus {
    let (pod, previous) = (inputs.view.pod, inputs.previous);
    let api = pod.status.as_ref();
    let list = |l: &Option<Vec<ContainerStatus>>| l.clone().unwrap_or_default();
    let mut init = container::statuses(
        &inputs.view,
        ContainerKind::Init,
        spec::init_containers(pod),
        &list(&previous.init_container_statuses),
    );
    let mut regular = container::statuses(
        &inputs.view,
        ContainerKind::Regular,
        spec::containers(pod),
        &list(&previous.container_statuses),
    );
    let ephemeral_spec = spec::ephemeral_containers(pod);
    let ephemeral = container::statuses(
        &inputs.view,
        ContainerKind::Ephemeral,
        &ephemeral_spec,
        &list(&previous.ephemeral_container_statuses),
    );
    flag(pod, inputs.readiness, &mut init, &mut regular);

    let old = Phase::parse(previous.phase.as_deref());
    let shown = Phase::parse(api.and_then(|s| s.phase.as_deref()));
    let began = conditions::any_regular_started(previous.container_statuses.as_deref().unwrap_or_default());
    let mut next = phase::phase(pod, &init, &regular, inputs.liveness, began);
    if !next.is_terminal() {
        next = [old, shown].into_iter().find(|p| p.is_terminal()).unwrap_or(next);
    }
    let (mut reason, mut message) = (None, None);
    if next == old {
        reason = previous.reason.clone().or_else(|| api.and_then(|s| s.reason.clone()));
        message = previous.message.clone().or_else(|| api.and_then(|s| s.message.clone()));
    }
    if let Some(v) = inputs.verdict {
        next = Phase::Failed;
        (reason, message) = (Some(v.reason.clone()), Some(v.message.clone()));
    }
    if shown.is_terminal() {
        next = shown;
    }
    let foreign = api.and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut conditions = conditions::generate(
        &conditions::Inputs { pod, runtime: Some(inputs.view.runtime), init: &init, regular: &regular, phase: next },
        &foreign,
    );
    conditions.extend(inputs.resize.map(|r| r.condition(pod.metadata.generation)));
    if let Some(message) = inputs.verdict.and_then(|v| v.disruption.as_deref()) {
        conditions.retain(|c| c.type_ != condition::DISRUPTION_TARGET);
        conditions.push(terminated_by_agent(pod, message));
    }
    let ips = pod_ips(inputs, previous);
    let some = |l: Vec<ContainerStatus>| Some(l).filter(|l| !l.is_empty());
    PodStatus {
        phase: Some(next.as_str().to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        host_ip: inputs.host_ips.first().cloned(),
        host_ips: Some(inputs.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|l: &Vec<PodIP>| !l.is_empty()),
        start_time: previous.start_time.clone(),
        init_container_statuses: some(init),
        container_statuses: some(regular),
        ephemeral_container_statuses: some(ephemeral),
        qos_class: Some(qos::of(pod).as_str().to_owned()),
        observed_generation: pod.metadata.generation,
        resize: None,
        resources: previous.resources.clone(),
        allocated_resources: previous.allocated_resources.clone(),
        ..PodStatus::default()
    }
}

/// Why the node agent ends a Pod that did nothing wrong.
fn terminated_by_agent(pod: &Pod, message: &str) -> PodCondition {
    let reason = Some("TerminationByKubelet");
    let mut c = conditions::condition_of(condition::DISRUPTION_TARGET, true, reason, Some(message.to_owned()));
    c.observed_generation = pod.metadata.generation;
    c
}

fn pod_ips(inputs: &Inputs<'_>, previous: &PodStatus) -> Vec<String> {
    let pod = inputs.view.pod;
    if spec::host_network(pod) {
        return inputs.host_ips.to_vec();
    }
    let now = inputs.view.runtime.sandboxes.first().filter(|s| s.ready).map(|s| s.ips.clone()).unwrap_or_default();
    // A Pod keeps its last address in the status after its sandbox is gone.
    if !now.is_empty() { now } else { previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect() }
}

/// Sets `started` and `ready`. Source: k/k pkg/kubelet/prober/prober_manager.go UpdatePodStatus.
fn flag(pod: &Pod, readiness: &dyn Readiness, init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    for s in regular {
        let runs = s.state.as_ref().is_some_and(|s| s.running.is_some());
        let started = runs && readiness.started(s);
        s.started = Some(started);
        s.ready = started && readiness.ready(s);
    }
    for s in init {
        let runs = s.state.as_ref().is_some_and(|s| s.running.is_some());
        let started = runs && readiness.started(s);
        s.started = Some(started);
        let sidecar = spec::init_containers(pod).iter().any(|c| c.name == s.name && spec::is_sidecar(c));
        s.ready = if sidecar {
            started && readiness.ready(s)
        } else {
            s.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
        };
    }
}

/// The status of a Pod the node refused. Source: k/k pkg/kubelet/kubelet.go rejectPod.
pub fn rejected(pod: &Pod, verdict: &Verdict) -> PodStatus {
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(verdict.reason.clone()),
        message: Some(format!("Pod was rejected: {}", verdict.message)),
        qos_class: Some(qos::of(pod).as_str().to_owned()),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// Fills in what time alone decides: `startTime`, and transition times that move only when a status changes.
pub fn stamp(mut next: PodStatus, previous: &PodStatus, now: Timestamp) -> PodStatus {
    next.start_time = previous.start_time.clone().or_else(|| Some(secs(now)));
    let old = previous.conditions.as_deref().unwrap_or_default();
    for c in next.conditions.iter_mut().flatten() {
        let before = old.iter().find(|o| o.type_ == c.type_);
        let same = before.filter(|o| o.status == c.status).and_then(|o| o.last_transition_time.clone());
        c.last_transition_time =
            same.or_else(|| c.last_transition_time.take().filter(|_| before.is_none())).or_else(|| Some(secs(now)));
    }
    limit_messages(&mut next);
    next
}

fn limit_messages(status: &mut PodStatus) {
    let lists =
        [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    let count: usize = lists.iter().map(|l| l.as_ref().map_or(0, Vec::len)).sum();
    let each = (MAX_POD_MESSAGES / count.max(1)).min(MAX_MESSAGE);
    for s in lists.into_iter().flatten().flatten() {
        for t in [&mut s.state, &mut s.last_state].into_iter().flatten().filter_map(|s| s.terminated.as_mut()) {
            if let Some(m) = &mut t.message
                && m.len() > each
            {
                let end = (0..=each).rev().find(|i| m.is_char_boundary(*i)).unwrap_or(0);
                m.truncate(end);
            }
        }
    }
}

/// Whether containers of the Pod may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayRun {
    /// They may: a terminal phase waits.
    Yes,
    /// They are known to be gone.
    No,
}

/// What to write over `shown` so that the API shows `next`.
pub fn merge(shown: &PodStatus, next: &PodStatus, may_run: MayRun) -> PodStatus {
    let mut out = next.clone();
    let to_terminal =
        !Phase::parse(shown.phase.as_deref()).is_terminal() && Phase::parse(next.phase.as_deref()).is_terminal();
    let mut merged: Vec<PodCondition> =
        shown.conditions.iter().flatten().filter(|c| !condition::owned_by_agent(&c.type_)).cloned().collect();
    for c in next.conditions.iter().flatten() {
        if condition::owned_by_agent(&c.type_) {
            merged.push(c.clone());
        } else if c.type_ == condition::DISRUPTION_TARGET && to_terminal && may_run == MayRun::No {
            merged.retain(|m| m.type_ != c.type_);
            merged.push(c.clone());
        }
    }
    out.resource_claim_statuses.clone_from(&shown.resource_claim_statuses);
    out.nominated_node_name.clone_from(&shown.nominated_node_name);
    if to_terminal && may_run == MayRun::Yes {
        out.phase.clone_from(&shown.phase);
        out.reason.clone_from(&shown.reason);
        out.message.clone_from(&shown.message);
    }
    let phase = Phase::parse(out.phase.as_deref());
    if phase.is_terminal() {
        for kind in [condition::READY, condition::CONTAINERS_READY] {
            if let Some(c) = merged.iter_mut().find(|c| c.type_ == kind && c.status == "True") {
                let generation = c.observed_generation;
                let time = c.last_transition_time.take();
                *c = PodCondition {
                    observed_generation: generation,
                    last_transition_time: time,
                    ..conditions::terminal(kind, phase)
                };
            }
        }
    }
    out.conditions = Some(merged).filter(|l| !l.is_empty());
    out
}

/// The last status of a Pod whose containers are all gone: what is not known to have ended counts as a failure.
/// Source: k/k pkg/kubelet/status/status_manager.go TerminatePod.
pub fn finish(pod: &Pod, status: &PodStatus) -> PodStatus {
    const LOST: &str = "The container could not be located when the pod was terminated";
    let mut out = status.clone();
    let ended = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let ran = |s: &ContainerStatus| {
        s.state.as_ref().is_some_and(|st| st.running.is_some() || st.terminated.is_some())
            || s.last_state.as_ref().is_some_and(|st| st.terminated.is_some())
    };
    let regular = out.container_statuses.as_deref().unwrap_or_default();
    let init = out.init_container_statuses.as_deref().unwrap_or_default();
    let initialized = spec::init_containers(pod).is_empty()
        || regular.iter().any(ran)
        || init.iter().all(|s| s.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0));
    if initialized {
        for s in out.container_statuses.iter_mut().flatten().filter(|s| !ended(s)) {
            s.state = Some(container::lost(LOST));
            s.ready = false;
            s.started = Some(false);
        }
    }
    let began = init.iter().rposition(ran).map_or(0, |i| i + 1);
    for s in out.init_container_statuses.iter_mut().flatten().take(began).filter(|s| !ended(s)) {
        s.state = Some(container::lost(LOST));
        s.ready = false;
        s.started = Some(false);
    }
    if !Phase::parse(out.phase.as_deref()).is_terminal() {
        out.phase = Some(Phase::Failed.as_str().to_owned());
    }
    out
}

/// The status after one container's readiness changed, everything else as it was; `None` when nothing changes.
/// Source: k/k pkg/kubelet/status/status_manager.go SetContainerReadiness.
pub fn with_readiness(pod: &Pod, status: &PodStatus, container_id: &str, ready: bool) -> Option<PodStatus> {
    let mut out = status.clone();
    let lists = [&mut out.init_container_statuses, &mut out.container_statuses];
    let hit = lists.into_iter().flatten().flatten().find(|s| s.container_id.as_deref() == Some(container_id))?;
    if hit.ready == ready {
        return None;
    }
    hit.ready = ready;
    Some(refresh_ready(pod, out))
}

/// The status after one container's started flag changed; `None` when nothing changes.
pub fn with_started(pod: &Pod, status: &PodStatus, container_id: &str, started: bool) -> Option<PodStatus> {
    let mut out = status.clone();
    let lists = [&mut out.init_container_statuses, &mut out.container_statuses];
    let hit = lists.into_iter().flatten().flatten().find(|s| s.container_id.as_deref() == Some(container_id))?;
    if hit.started == Some(started) {
        return None;
    }
    hit.started = Some(started);
    Some(refresh_ready(pod, out))
}

/// Recomputes the conditions that container flags decide.
fn refresh_ready(pod: &Pod, mut status: PodStatus) -> PodStatus {
    let old = status.conditions.take().unwrap_or_default();
    let mut next = conditions::generate(
        &conditions::Inputs {
            pod,
            runtime: None,
            init: status.init_container_statuses.as_deref().unwrap_or_default(),
            regular: status.container_statuses.as_deref().unwrap_or_default(),
            phase: Phase::parse(status.phase.as_deref()),
        },
        &old,
    );
    if let Some(c) = old.iter().find(|c| c.type_ == condition::READY_TO_START) {
        let at = next.iter().position(|c| condition::owned_by_agent(&c.type_)).unwrap_or(next.len());
        next.insert(at, c.clone());
    }
    for c in old.iter().filter(|c| {
        matches!(
            c.type_.as_str(),
            condition::RESIZE_PENDING | condition::RESIZE_IN_PROGRESS | condition::ALL_RESTARTING
        )
    }) {
        next.push(c.clone());
    }
    status.conditions = Some(next);
    status
}

#[cfg(test)]
mod tests;
