//! `PodTopologySpread`, required constraints. Source: k/k pkg/scheduler/framework/plugins/podtopologyspread/filtering.go.

use std::collections::BTreeMap;

use podlab_api::{
    core::TopologySpreadConstraint,
    matching::{node_allowed, selects},
};

use super::{Rejection, View};
use crate::{cache::NodeInfo, pod_info::PodInfo, queue::ClusterEvent};

struct Constraint {
    key: String,
    max_skew: usize,
    /// Whether the Pod itself counts.
    own: usize,
    /// Matching Pods per domain.
    counts: BTreeMap<String, usize>,
    least: usize,
}

/// The required constraints with their counts.
pub(super) struct Prepared(Vec<Constraint>);

impl Prepared {
    pub(super) fn new(pod: &PodInfo, view: &View<'_>) -> Self {
        let all = pod.pod.spec.as_ref().and_then(|s| s.topology_spread_constraints.as_deref()).unwrap_or(&[]);
        let required = all.iter().filter(|c| c.when_unsatisfiable == "DoNotSchedule");
        Self(required.map(|c| Constraint::new(c, pod, view)).collect())
    }

    pub(super) fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let wants = [ClusterEvent::PodAdd, ClusterEvent::PodDelete, ClusterEvent::NodeAdd, ClusterEvent::NodeLabel];
        let labels = node.labels();
        for c in &self.0 {
            let text = "node(s) didn't match pod topology spread constraints";
            let Some(domain) = labels.get(&c.key) else {
                return Err(Rejection::new(&format!("{text} (missing required label)"), false, &wants));
            };
            let here = c.counts.get(domain).copied().unwrap_or(0);
            if here + c.own > c.least + c.max_skew {
                return Err(Rejection::new(text, true, &wants));
            }
        }
        Ok(())
    }
}

/// Pods of a domain that a constraint counts.
pub(crate) fn matching_pods(c: &TopologySpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> usize {
    let counts = |p: &&std::sync::Arc<PodInfo>| {
        p.namespace() == pod.namespace()
            && !p.is_deleting()
            && c.label_selector.as_ref().is_some_and(|s| selects(s, &p.labels()))
    };
    node.pods.values().filter(counts).count()
}

impl Constraint {
    fn new(c: &TopologySpreadConstraint, pod: &PodInfo, view: &View<'_>) -> Self {
        let spec = pod.pod.spec.as_ref();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in view.cache.nodes() {
            let honoured = c.node_affinity_policy.as_deref() != Some("Ignore");
            let allowed = node.node.as_ref().is_some_and(|n| {
                node_allowed(spec.and_then(|s| s.node_selector.as_ref()), spec.and_then(|s| s.affinity.as_ref()), n)
            });
            if let (Some(domain), true) = (node.labels().get(&c.topology_key), allowed || !honoured) {
                *counts.entry(domain.clone()).or_default() += matching_pods(c, pod, node);
            }
        }
        let enough = counts.len() >= usize::try_from(c.min_domains.unwrap_or(1)).unwrap_or(1);
        let least = if enough { counts.values().copied().min().unwrap_or(0) } else { 0 };
        let own = usize::from(c.label_selector.as_ref().is_some_and(|s| selects(s, &pod.labels())));
        Self { key: c.topology_key.clone(), max_skew: usize::try_from(c.max_skew).unwrap_or(1), own, counts, least }
    }
}
