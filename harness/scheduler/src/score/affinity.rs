//! Preferred affinity between Pods. Source: k/k pkg/scheduler/framework/plugins/interpodaffinity/scoring.go.

use std::collections::BTreeMap;

use crate::{
    cache::NodeInfo,
    filter::{View, affinity::term_matches},
    pod_info::PodInfo,
};

/// Weight an existing Pod's required affinity has when it matches the incoming Pod.
const HARD_WEIGHT: i64 = 1;

/// Sum of the weights of matching terms per node, in both directions.
pub(super) fn raw(pod: &PodInfo, nodes: &[&NodeInfo], view: &View<'_>) -> Vec<i64> {
    let mut pairs: BTreeMap<(String, String), i64> = BTreeMap::new();
    for node in view.cache.nodes() {
        let labels = node.labels();
        let mut count = |key: &str, weight: i64| {
            if let Some(value) = labels.get(key) {
                *pairs.entry((key.to_owned(), value.clone())).or_default() += weight;
            }
        };
        for other in node.pods.values() {
            for (terms, sign) in [(&pod.preferred_affinity, 1), (&pod.preferred_anti_affinity, -1)] {
                for w in terms.iter().filter(|w| term_matches(&w.pod_affinity_term, pod.namespace(), other, view)) {
                    count(&w.pod_affinity_term.topology_key, sign * i64::from(w.weight));
                }
            }
            for (terms, sign) in [(&other.preferred_affinity, 1), (&other.preferred_anti_affinity, -1)] {
                for w in terms.iter().filter(|w| term_matches(&w.pod_affinity_term, other.namespace(), pod, view)) {
                    count(&w.pod_affinity_term.topology_key, sign * i64::from(w.weight));
                }
            }
            for t in other.affinity.iter().filter(|t| term_matches(t, other.namespace(), pod, view)) {
                count(&t.topology_key, HARD_WEIGHT);
            }
        }
    }
    let sum = |n: &&NodeInfo| n.labels().into_iter().filter_map(|(k, v)| pairs.get(&(k, v))).sum();
    nodes.iter().map(sum).collect()
}
