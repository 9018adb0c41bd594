//! `NodeResourcesFit`. Source: k/k pkg/scheduler/framework/plugins/noderesources/fit.go.

use podlab_mutant::{self as mutant, Mutant};

use super::Rejection;
use crate::{cache::NodeInfo, pod_info::PodInfo, queue::ClusterEvent};

/// Whether the node has room; names every resource that is short.
pub(super) fn fit(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    let allocatable = |key: &str| node.allocatable.get(key).copied().unwrap_or(0);
    let used = |key: &str| node.requested.get(key).copied().unwrap_or(0);
    let mut reasons = Vec::new();
    // A request above what the node has at all is not helped by evicting anybody.
    let mut hopeless = false;
    let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
    if pods + 1 > allocatable("pods") {
        reasons.push("Too many pods".to_owned());
        hopeless |= allocatable("pods") < 1;
    }
    // Upstream's order: cpu, memory, ephemeral storage, then the rest by name.
    let rank = |key: &str| ["cpu", "memory", "ephemeral-storage"].iter().position(|k| *k == key).unwrap_or(3);
    let mut wanted: Vec<(&String, i64)> = pod.requests.iter().map(|(k, v)| (k, *v)).filter(|(_, v)| *v > 0).collect();
    wanted.sort_by_key(|(k, _)| (rank(k), (*k).clone()));
    for (key, amount) in wanted {
        if amount > allocatable(key) - used(key) {
            reasons.push(format!("Insufficient {key}"));
            hopeless |= amount > allocatable(key);
        }
    }
    if reasons.is_empty() || mutant::is(Mutant::RoomForEverybody) {
        return Ok(());
    }
    let wants = [ClusterEvent::NodeAdd, ClusterEvent::NodeAllocatable, ClusterEvent::PodDelete];
    Err(Rejection { reasons, preemptible: !hopeless, wants: wants.into_iter().collect() })
}
