//! `InterPodAffinity`: required affinity and anti-affinity between Pods, in both directions.
//! Source: k/k pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.

use std::collections::BTreeMap;

use podlab_api::{core::PodAffinityTerm, matching::selects};
use podlab_mutant::{self as mutant, Mutant};

use super::{Rejection, View};
use crate::{cache::NodeInfo, pod_info::PodInfo, queue::ClusterEvent};

type Pair = (String, String);

/// Counts per topology pair, made once per cycle.
pub(super) struct Prepared {
    /// Existing Pods that match all of the Pod's affinity terms, per term's topology pair.
    affinity: BTreeMap<Pair, usize>,
    /// Existing Pods that match one of the Pod's anti-affinity terms.
    anti: BTreeMap<Pair, usize>,
    /// Existing Pods whose anti-affinity terms match the Pod.
    existing_anti: BTreeMap<Pair, usize>,
    /// No Pod anywhere matches, and the Pod matches its own terms: it may be the first of its group.
    first_of_group: bool,
}

/// Whether a term, written in a Pod of `namespace`, means this other Pod.
pub(crate) fn term_matches(term: &PodAffinityTerm, namespace: &str, other: &PodInfo, view: &View<'_>) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or(&[]);
    let by_selector = term.namespace_selector.as_ref().is_some_and(|s| {
        let empty = BTreeMap::new();
        selects(s, view.namespaces.get(other.namespace()).unwrap_or(&empty))
    });
    let own = listed.is_empty() && term.namespace_selector.is_none() && other.namespace() == namespace;
    let in_namespace = own || by_selector || listed.iter().any(|n| n == other.namespace());
    in_namespace && term.label_selector.as_ref().is_some_and(|s| selects(s, &other.labels()))
}

impl Prepared {
    pub(super) fn new(pod: &PodInfo, view: &View<'_>) -> Self {
        let (mut affinity, mut anti, mut existing_anti) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for node in view.cache.nodes() {
            let labels = node.labels();
            let count = |map: &mut BTreeMap<Pair, usize>, key: &str| {
                if let Some(value) = labels.get(key) {
                    *map.entry((key.to_owned(), value.clone())).or_default() += 1;
                }
            };
            for other in node.pods.values().filter(|p| p.key != pod.key) {
                let all = !pod.affinity.is_empty()
                    && pod.affinity.iter().all(|t| term_matches(t, pod.namespace(), other, view));
                if all {
                    pod.affinity.iter().for_each(|t| count(&mut affinity, &t.topology_key));
                }
                for t in pod.anti_affinity.iter().filter(|t| term_matches(t, pod.namespace(), other, view)) {
                    count(&mut anti, &t.topology_key);
                }
                for t in other.anti_affinity.iter().filter(|t| term_matches(t, other.namespace(), pod, view)) {
                    count(&mut existing_anti, &t.topology_key);
                }
            }
        }
        let itself = pod.affinity.iter().all(|t| term_matches(t, pod.namespace(), pod, view));
        let first_of_group = affinity.is_empty() && itself;
        Self { affinity, anti, existing_anti, first_of_group }
    }

    pub(super) fn check(&self, pod: &PodInfo, node: &NodeInfo, _: &View<'_>) -> Result<(), Rejection> {
        let labels = node.labels();
        let pair = |key: &str| labels.get(key).map(|v| (key.to_owned(), v.clone()));
        let has = |map: &BTreeMap<Pair, usize>, key: &str| pair(key).is_some_and(|p| map.contains_key(&p));
        let wants = [ClusterEvent::PodAdd, ClusterEvent::PodDelete, ClusterEvent::NodeAdd, ClusterEvent::NodeLabel];
        let keys_there = pod.affinity.iter().all(|t| labels.contains_key(&t.topology_key));
        let near =
            keys_there && (self.first_of_group || pod.affinity.iter().all(|t| has(&self.affinity, &t.topology_key)));
        if !near {
            return Err(Rejection::new("node(s) didn't match pod affinity rules", false, &wants));
        }
        if mutant::is(Mutant::AntiAffinityIsIgnored) {
            return Ok(());
        }
        if pod.anti_affinity.iter().any(|t| has(&self.anti, &t.topology_key)) {
            return Err(Rejection::new("node(s) didn't match pod anti-affinity rules", true, &wants));
        }
        if self.existing_anti.keys().any(|(key, value)| labels.get(key) == Some(value)) {
            return Err(Rejection::new("node(s) didn't satisfy existing pods anti-affinity rules", true, &wants));
        }
        Ok(())
    }
}
