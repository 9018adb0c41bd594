//! What all Pods together may take: the limits of `/kubepods`.
//! Source: k/k pkg/kubelet/cm/node_container_manager_linux.go enforceNodeAllocatableCgroups.

use std::{sync::Arc, time::Duration};

use podlab_lifecycle::resources::{self, PodCgroupLimits};

use crate::agent::Agent;

/// Pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(60);

/// The capacity less what is reserved; hard eviction thresholds keep nothing free here. A node's disk is memory (see
/// DECISIONS), so what Pods write to it is allowed on top.
fn limits(agent: &Agent) -> PodCgroupLimits {
    let reserved = |key: &str| agent.config.reserved.get(key).copied().unwrap_or(0);
    let left = |capacity: i64, key: &str| (capacity - reserved(key)).max(0);
    let memory = left(agent.capacity.memory, "memory").saturating_add(agent.capacity.ephemeral_storage);
    PodCgroupLimits {
        cpu_shares: resources::shares(left(agent.capacity.cpu_milli, "cpu")),
        memory: Some(memory),
        ..PodCgroupLimits::default()
    }
}

/// Sets the limits, trying again until it works. Dropping it midway is safe.
pub(crate) async fn enforce(agent: Arc<Agent>) {
    if agent.config.cgroup_root.is_none() {
        return;
    }
    loop {
        match agent.host.cgroup_apply("/kubepods", &limits(&agent)) {
            Ok(()) => {
                let text = "Updated Node Allocatable limit across pods";
                return agent.say.node("NodeAllocatableEnforced", text);
            }
            Err(error) => {
                let text = format!("Failed to update Node Allocatable Limits [\"kubepods\"]: {error}");
                agent.say.node_warn("FailedNodeAllocatableEnforcement", text);
            }
        }
        tokio::select! {
            biased;
            () = agent.shutdown.cancelled() => return,
            () = agent.clock.sleep(RETRY) => {}
        }
    }
}
