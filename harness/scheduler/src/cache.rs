//! Nodes with the Pods on them, including those assumed there while their binding is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podlab_api::{core::Node, parse_milli, parse_quantity};

use crate::pod_info::{Key, PodInfo};

/// One node as filters and scores see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// Absent while Pods are known of a node that is not.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) pods: BTreeMap<Key, Arc<PodInfo>>,
    pub(crate) allocatable: BTreeMap<String, i64>,
    /// Sum of the Pods' requests.
    pub(crate) requested: BTreeMap<String, i64>,
    /// Sum of the Pods' requests with defaults, for scores.
    pub(crate) nonzero: (i64, i64),
}

impl NodeInfo {
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.node.as_ref().and_then(|n| n.metadata.labels.clone()).unwrap_or_default()
    }

    fn set_node(&mut self, node: Arc<Node>) {
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.clone()).unwrap_or_default();
        self.allocatable = allocatable.iter().map(|(k, q)| (k.clone(), amount(k, &q.0))).collect();
        self.node = Some(node);
    }

    pub(crate) fn add(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.key);
        self.count(&pod, 1);
        self.pods.insert(pod.key.clone(), pod);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(old) = self.pods.remove(key) {
            self.count(&old, -1);
        }
    }

    fn count(&mut self, pod: &PodInfo, sign: i64) {
        for (k, v) in &pod.requests {
            *self.requested.entry(k.clone()).or_default() += sign * v;
        }
        self.nonzero.0 += sign * pod.nonzero.0;
        self.nonzero.1 += sign * pod.nonzero.1;
    }
}

/// A quantity as the scheduler counts it: CPU in thousandths, the rest in units, saturating.
fn amount(resource: &str, text: &str) -> i64 {
    let parsed = if resource == "cpu" { parse_milli(text) } else { parse_quantity(text) };
    parsed.map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX))
}

/// All nodes and placed Pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cache {
    nodes: BTreeMap<String, NodeInfo>,
    placed: BTreeMap<Key, String>,
    assumed: BTreeSet<Key>,
}

impl Cache {
    /// The nodes that exist, by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.values().filter(|n| n.node.is_some())
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).filter(|n| n.node.is_some())
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let info = self.nodes.entry(name.clone()).or_default();
        info.name = name;
        info.set_node(node);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(info) = self.nodes.get_mut(name) {
            info.node = None;
            info.allocatable.clear();
        }
        self.nodes.retain(|_, n| n.node.is_some() || !n.pods.is_empty());
    }

    /// Takes note of a Pod on a node; confirms an assumed one.
    pub(crate) fn set_pod(&mut self, pod: &Arc<PodInfo>) {
        self.assumed.remove(&pod.key);
        match pod.node_name() {
            Some(node) if !pod.is_terminal() => self.place(pod.clone(), node.to_owned()),
            _ => self.remove_pod(&pod.key),
        }
    }

    pub(crate) fn remove_pod(&mut self, key: &Key) {
        self.assumed.remove(key);
        if let Some(node) = self.placed.remove(key)
            && let Some(info) = self.nodes.get_mut(&node)
        {
            info.remove(key);
        }
    }

    /// Counts a Pod on a node before the API has confirmed it.
    pub(crate) fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.assumed.insert(pod.key.clone());
        self.place(pod, node.to_owned());
    }

    /// Undoes [`Cache::assume`], unless the API has confirmed it meanwhile.
    pub(crate) fn forget(&mut self, key: &Key) {
        if self.assumed.contains(key) {
            self.remove_pod(key);
        }
    }

    pub(crate) fn is_assumed(&self, key: &Key) -> bool {
        self.assumed.contains(key)
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: String) {
        if self.placed.get(&pod.key).is_some_and(|old| *old != node) {
            self.remove_pod(&pod.key);
        }
        self.placed.insert(pod.key.clone(), node.clone());
        let info = self.nodes.entry(node.clone()).or_default();
        info.name = node;
        info.add(pod);
    }
}
