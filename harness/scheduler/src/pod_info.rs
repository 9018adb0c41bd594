//! What the scheduler needs of a Pod, computed once.

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::core::{Container, Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use podlab_lifecycle::resources::pod_requests;

/// `namespace/name`.
pub(crate) type Key = (String, String);

/// What a container without a request counts as when nodes are scored: 100m CPU and 200 MiB.
/// Source: k/k pkg/scheduler/util/pod_resources.go.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// A Pod with what filters and scores look at.
#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: Key,
    /// Requests by resource name; cpu in thousandths, the rest in units.
    pub(crate) requests: BTreeMap<String, i64>,
    /// CPU (thousandths) and memory (bytes) with defaults for containers that request none.
    pub(crate) nonzero: (i64, i64),
    pub(crate) priority: i32,
    pub(crate) host_ports: Vec<(String, String, i32)>,
    pub(crate) affinity: Vec<PodAffinityTerm>,
    pub(crate) anti_affinity: Vec<PodAffinityTerm>,
    pub(crate) preferred_affinity: Vec<WeightedPodAffinityTerm>,
    pub(crate) preferred_anti_affinity: Vec<WeightedPodAffinityTerm>,
}

impl PodInfo {
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        let spec = pod.spec.as_ref();
        let affinity = spec.and_then(|s| s.affinity.as_ref());
        let pod_affinity = affinity.and_then(|a| a.pod_affinity.as_ref());
        let pod_anti = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let containers: Vec<&Container> = spec.into_iter().flat_map(|s| &s.containers).collect();
        let requests = pod_requests(&pod);
        let asks = |c: &Container, key: &str| {
            c.resources.as_ref().and_then(|r| r.requests.as_ref()).is_some_and(|r| r.contains_key(key))
        };
        let default = |key: &str, each: i64| {
            each * i64::try_from(containers.iter().filter(|c| !asks(c, key)).count()).unwrap_or(0)
        };
        let amount = |key: &str| requests.get(key).copied().unwrap_or(0);
        let nonzero =
            (amount("cpu") + default("cpu", DEFAULT_MILLI_CPU), amount("memory") + default("memory", DEFAULT_MEMORY));
        let ports = containers.iter().flat_map(|c| c.ports.iter().flatten()).filter_map(|p| {
            let port = p.host_port.filter(|p| *p > 0)?;
            let ip = p.host_ip.clone().filter(|i| !i.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
            Some((ip, p.protocol.clone().unwrap_or_else(|| "TCP".into()), port))
        });
        Self {
            key: key_of(&pod),
            nonzero,
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            host_ports: ports.collect(),
            affinity: pod_affinity
                .and_then(|a| a.required_during_scheduling_ignored_during_execution.clone())
                .unwrap_or_default(),
            anti_affinity: pod_anti
                .and_then(|a| a.required_during_scheduling_ignored_during_execution.clone())
                .unwrap_or_default(),
            preferred_affinity: pod_affinity
                .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone())
                .unwrap_or_default(),
            preferred_anti_affinity: pod_anti
                .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone())
                .unwrap_or_default(),
            requests,
            pod,
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.key.0
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.pod.metadata.labels.clone().unwrap_or_default()
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    pub(crate) fn node_name(&self) -> Option<&str> {
        self.pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
    }

    pub(crate) fn nominated_node(&self) -> Option<&str> {
        self.pod.status.as_ref()?.nominated_node_name.as_deref().filter(|n| !n.is_empty())
    }

    /// Whether it no longer uses anything on its node.
    pub(crate) fn is_terminal(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    pub(crate) fn is_gated(&self) -> bool {
        self.pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty())
    }
}

pub(crate) fn key_of(pod: &Pod) -> Key {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}
