//! From the runtime's view of containers to `status.containerStatuses`.
//!
//! ```text
//! never seen ─► waiting ContainerCreating | PodInitializing
//! Created    ─► waiting            Running ─► running
//! Exited     ─► terminated ──a start is due and failed before──► waiting <reason>, lastState terminated
//! Unknown    ─► terminated ContainerStatusUnknown (was running) | waiting
//! ```
//! Source: k/k pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses.

use std::collections::BTreeMap;

use podlab_api::{
    core::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, LinuxContainerUser, Pod,
    },
    jiff::Timestamp,
    meta::Time,
};

use crate::{
    resize, restart,
    runtime::{ContainerRecord, RuntimePod, RuntimeState},
    spec::{self, ContainerKind},
    words::WaitingReason,
};

/// Why the last start of a container failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// The waiting reason it shows as.
    pub reason: WaitingReason,
    /// The message beside it.
    pub message: String,
}

/// Last start failures by container name.
pub type StartFailures = BTreeMap<String, StartFailure>;

/// Everything the conversion reads besides the containers themselves.
pub struct View<'a> {
    /// The Pod.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub runtime: &'a RuntimePod,
    /// Why starts failed.
    pub failures: &'a StartFailures,
    /// Scheme before container ids, e.g. `containerd`.
    pub scheme: &'a str,
    /// Every container was just removed because a restart rule asked for all of them.
    pub starting_over: bool,
}

/// Statuses of one list of containers; `previous` is the same list of the last status.
/// Regular and ephemeral containers come out sorted by name, init containers in spec order.
pub fn statuses(
    view: &View<'_>,
    kind: ContainerKind,
    list: &[Container],
    previous: &[ContainerStatus],
) -> Vec<ContainerStatus> {
    let has_init =
        kind == ContainerKind::Init || (kind == ContainerKind::Regular && !spec::init_containers(view.pod).is_empty());
    let old = |name: &str| previous.iter().find(|s| s.name == name);
    let mut out: Vec<ContainerStatus> = list.iter().map(|c| initial(view, c, old(&c.name), has_init)).collect();
    for status in &mut out {
        let name = status.name.clone();
        let mut seen = view.runtime.containers.iter().filter(|r| r.name == name);
        if let Some(newest) = seen.next() {
            *status = convert(view, newest, old(&name));
        }
        // One that was created and never started, because the agent died in between, is nobody's last end.
        if let Some(before) = seen.find(|r| r.state == RuntimeState::Exited) {
            status.last_state = Some(state_of(view, before));
        }
    }
    for (c, status) in list.iter().zip(&mut out) {
        apply_failure(view, kind, c, status);
        resize::show(c, view.runtime.container(&c.name), status);
    }
    if kind != ContainerKind::Init {
        out.sort_by(|a, b| a.name.cmp(&b.name));
    }
    out
}

/// The status of a container before the runtime's word is applied.
fn initial(view: &View<'_>, c: &Container, old: Option<&ContainerStatus>, has_init: bool) -> ContainerStatus {
    let reason = if has_init { WaitingReason::PodInitializing } else { WaitingReason::ContainerCreating };
    let mut status = ContainerStatus {
        name: c.name.clone(),
        image: c.image.clone().unwrap_or_default(),
        state: Some(waiting(Some(reason), None)),
        ..ContainerStatus::default()
    };
    let Some(old) = old else { return status };
    if view.starting_over && view.runtime.container(&c.name).is_none() {
        return started_over(old);
    }
    let terminated = old.state.as_ref().is_some_and(|s| s.terminated.is_some());
    if terminated {
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state.clone_from(&old.last_state);
    let was_running = old.state.as_ref().is_some_and(|s| s.running.is_some());
    let has_last = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if was_running && view.runtime.container(&c.name).is_none() && !has_last {
        status.last_state = Some(lost(
            "The container could not be located when the pod was deleted.  The container used to be Running",
        ));
        if !spec::is_deleting(view.pod) {
            status.restart_count += 1;
        }
    }
    status
}

/// A container that went because a restart rule asked for all of them. Source: k/k pkg/kubelet/kubelet_pods.go
/// convertToAPIContainerStatuses, RestartAllContainersOnContainerExits.
fn started_over(old: &ContainerStatus) -> ContainerStatus {
    let message = "The container is removed because RestartAllContainers in place".to_owned();
    let ended = old.state.clone().filter(|s| s.terminated.is_some()).unwrap_or_else(|| ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some(WaitingReason::RestartingAllContainers.to_string()),
            message: Some(message.clone()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    });
    ContainerStatus {
        name: old.name.clone(),
        image: old.image.clone(),
        image_id: old.image_id.clone(),
        restart_count: old.restart_count + 1,
        last_state: Some(ended),
        state: Some(waiting(Some(WaitingReason::RestartingAllContainers), Some(message))),
        ..ContainerStatus::default()
    }
}

fn convert(view: &View<'_>, r: &ContainerRecord, old: Option<&ContainerStatus>) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: r.name.clone(),
        image: r.image.clone(),
        image_id: r.image_id.clone(),
        container_id: Some(format!("{}://{}", view.scheme, r.id)),
        restart_count: i32::try_from(r.restart_count).unwrap_or(i32::MAX),
        state: Some(state_of(view, r)),
        last_state: None,
        user: r.user.as_ref().filter(|_| r.state == RuntimeState::Running).map(|u| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: u.uid,
                gid: u.gid,
                supplemental_groups: Some(u.groups.clone()).filter(|g| !g.is_empty()),
            }),
        }),
        ..ContainerStatus::default()
    };
    let was_running = old.is_some_and(|o| o.state.as_ref().is_some_and(|s| s.running.is_some()));
    if let (RuntimeState::Unknown, Some(old), true) = (r.state, old, was_running) {
        status.state = Some(lost("The container could not be located when the pod was terminated"));
        status.restart_count = old.restart_count + 1;
    }
    if let Some(old) = old {
        status.volume_mounts.clone_from(&old.volume_mounts);
        // The previous end is kept when the runtime no longer has the container it came from.
        let restarted = status.restart_count > 0;
        if restarted {
            status.last_state = if old.restart_count == status.restart_count || old.container_id == status.container_id
            {
                old.last_state.clone()
            } else {
                old.state.clone().filter(|s| s.terminated.is_some()).or_else(|| old.last_state.clone())
            };
        }
    }
    status
}

/// A container whose start is due and failed before is shown waiting with that reason.
fn apply_failure(view: &View<'_>, kind: ContainerKind, c: &Container, status: &mut ContainerStatus) {
    if kind == ContainerKind::Init {
        let done = view.runtime.container(&c.name).is_some_and(|r| r.state == RuntimeState::Exited && r.exit_code == 0);
        if done && !spec::is_sidecar(c) {
            return;
        }
    }
    if kind == ContainerKind::Ephemeral
        && view.runtime.container(&c.name).is_some_and(|r| r.state == RuntimeState::Exited)
    {
        return;
    }
    if !restart::should_start(view.pod, c, kind == ContainerKind::Init, view.runtime) {
        return;
    }
    let Some(failure) = view.failures.get(&c.name) else { return };
    if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(Some(failure.reason), Some(failure.message.clone()).filter(|m| !m.is_empty())));
}

fn state_of(view: &View<'_>, r: &ContainerRecord) -> ContainerState {
    match r.state {
        RuntimeState::Created | RuntimeState::Unknown => waiting(None, None),
        RuntimeState::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: r.started_at.map(secs) }),
            ..ContainerState::default()
        },
        RuntimeState::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(format!("{}://{}", view.scheme, r.id)),
                exit_code: r.exit_code,
                finished_at: r.finished_at.map(secs),
                message: Some(r.message.clone()).filter(|m| !m.is_empty()),
                reason: Some(r.reason.clone()).filter(|m| !m.is_empty()),
                signal: None,
                started_at: r.started_at.map(secs),
            }),
            ..ContainerState::default()
        },
    }
}

fn waiting(reason: Option<WaitingReason>, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: reason.map(|r| r.to_string()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// The state of a container nobody can find any more.
pub fn lost(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// A time as the API writes it: whole seconds.
pub fn secs(t: Timestamp) -> Time {
    Time(Timestamp::from_second(t.as_second()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
