//! Whether a container that ended is started again.
//!
//! ```text
//! exited ──first matching rule──► Restart | RestartAllContainers
//!    └─ no rule ─► container's restartPolicy ─► Pod's restartPolicy
//! ```
//! Source: k/k pkg/kubelet/container/helpers.go ShouldContainerBeRestarted, pkg/api/v1/pod/util.go.

use podlab_api::core::{Container, Pod};
use podlab_mutant::{self as mutant, Mutant};

use crate::{
    runtime::{ContainerRecord, RuntimePod, RuntimeState},
    spec::{self, RestartPolicy},
};

/// What follows an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Start this container again.
    Restart,
    /// Start every container of the Pod again.
    RestartAll,
    /// Leave it down.
    Leave,
}

/// The policy that applies to a container once rules did not match: its own, else the Pod's. Ordinary init containers
/// of an `Always` Pod restart on failure only.
pub fn effective_policy(pod: &Pod, container: &Container, init: bool) -> RestartPolicy {
    let own = container.restart_policy.as_deref().map(|p| RestartPolicy::parse(Some(p)));
    match own.unwrap_or_else(|| spec::restart_policy(pod)) {
        RestartPolicy::Always if init && !spec::is_sidecar(container) => RestartPolicy::OnFailure,
        other => other,
    }
}

/// What to do after `container` ended with `exit_code`.
pub fn after_exit(pod: &Pod, container: &Container, init: bool, exit_code: i32) -> Decision {
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches {
            return if rule.action == "RestartAllContainers" { Decision::RestartAll } else { Decision::Restart };
        }
    }
    match effective_policy(pod, container, init) {
        RestartPolicy::Always => Decision::Restart,
        RestartPolicy::OnFailure if exit_code != 0 || mutant::is(Mutant::OnFailureIsAlways) => Decision::Restart,
        RestartPolicy::OnFailure | RestartPolicy::Never => Decision::Leave,
    }
}

/// Whether a container that is not running should be started by the next sync.
pub fn should_start(pod: &Pod, container: &Container, init: bool, runtime: &RuntimePod) -> bool {
    if spec::is_deleting(pod) {
        return false;
    }
    match runtime.container(&container.name) {
        None => true,
        Some(c) => match c.state {
            RuntimeState::Running => false,
            RuntimeState::Created | RuntimeState::Unknown => true,
            RuntimeState::Exited => after_exit(pod, container, init, c.exit_code) != Decision::Leave,
        },
    }
}

/// Whether a failure of this container is followed by another try, for any exit code but 0.
pub fn restarts_on_failure(pod: &Pod, container: &Container, init: bool) -> bool {
    effective_policy(pod, container, init) != RestartPolicy::Never
}

/// Whether some container has a rule that restarts everything.
pub fn may_restart_all(pod: &Pod) -> bool {
    let rules = |c: &Container| c.restart_policy_rules.iter().flatten().any(|r| r.action == "RestartAllContainers");
    spec::containers(pod).iter().chain(spec::init_containers(pod)).any(rules)
}

/// Whether some container's exit asks for everything to restart.
pub fn wants_restart_all(pod: &Pod, runtime: &RuntimePod) -> bool {
    let asks = |c: &Container, init: bool| {
        let exited = |r: &&ContainerRecord| r.state == RuntimeState::Exited && r.reason != "RestartingAllContainers";
        runtime
            .container(&c.name)
            .filter(exited)
            .is_some_and(|r| after_exit(pod, c, init, r.exit_code) == Decision::RestartAll)
    };
    spec::containers(pod).iter().any(|c| asks(c, false)) || spec::init_containers(pod).iter().any(|c| asks(c, true))
}
