//! Filters: may this Pod go to this node, and if not, why, in upstream's words and order.

pub(crate) mod affinity;
mod resources;
pub(crate) mod spread;

use std::collections::{BTreeMap, BTreeSet};

use podlab_api::{
    core::{Taint, Toleration},
    matching::{Labels, node_allowed, untolerated},
};
use podlab_mutant::{self as mutant, Mutant};

use crate::{
    cache::{Cache, NodeInfo},
    pod_info::PodInfo,
    queue::ClusterEvent,
    volumes::VolumeState,
};

/// Why a node was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Reasons as the message counts them; several for several missing resources.
    pub(crate) reasons: Vec<String>,
    /// Whether evicting Pods could help.
    pub(crate) preemptible: bool,
    /// What may change it.
    pub(crate) wants: BTreeSet<ClusterEvent>,
}

impl Rejection {
    fn new(reason: &str, preemptible: bool, wants: &[ClusterEvent]) -> Self {
        Self { reasons: vec![reason.to_owned()], preemptible, wants: wants.iter().copied().collect() }
    }
}

/// What a cycle looks at. Labels of namespaces serve the namespace selectors of affinity terms.
pub(crate) struct View<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) namespaces: &'a BTreeMap<String, Labels>,
    pub(crate) volumes: &'a VolumeState,
}

/// What the filters know of a Pod before they look at a node.
pub(crate) struct Prepared<'a> {
    pub(crate) pod: &'a PodInfo,
    affinity: affinity::Prepared,
    spread: spread::Prepared,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(pod: &'a PodInfo, view: &View<'_>) -> Self {
        Self { pod, affinity: affinity::Prepared::new(pod, view), spread: spread::Prepared::new(pod, view) }
    }
}

/// Runs the filters on one node; the first that refuses it decides.
pub(crate) fn filter(prepared: &Prepared<'_>, node: &NodeInfo, view: &View<'_>) -> Result<(), Rejection> {
    let pod = prepared.pod;
    unschedulable(pod, node)?;
    node_name(pod, node)?;
    taints(pod, node)?;
    node_affinity(pod, node)?;
    ports(pod, node)?;
    resources::fit(pod, node)?;
    view.volumes.fit(pod, node).map_err(|(reason, preemptible)| {
        Rejection::new(
            &reason,
            preemptible,
            &[ClusterEvent::Storage, ClusterEvent::NodeAdd, ClusterEvent::NodeLabel, ClusterEvent::PodDelete],
        )
    })?;
    prepared.spread.check(node)?;
    prepared.affinity.check(pod, node, view)
}

fn tolerations(pod: &PodInfo) -> &[Toleration] {
    pod.pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or(&[])
}

fn unschedulable(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    let marked = node.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.unschedulable).unwrap_or(false);
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if marked && untolerated(&[taint], tolerations(pod), &["NoSchedule"]).is_some() {
        return Err(Rejection::new(
            "node(s) were unschedulable",
            false,
            &[ClusterEvent::NodeAdd, ClusterEvent::NodeTaint],
        ));
    }
    Ok(())
}

fn node_name(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    match pod.node_name() {
        Some(name) if name != node.name => {
            Err(Rejection::new("node(s) didn't match the requested node name", false, &[ClusterEvent::NodeAdd]))
        }
        _ => Ok(()),
    }
}

fn taints(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    let taints = node.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or(&[]);
    match untolerated(taints, tolerations(pod), &["NoSchedule", "NoExecute"]) {
        Some(_) if !mutant::is(Mutant::TaintsAreIgnored) => Err(Rejection::new(
            "node(s) had untolerated taint(s)",
            false,
            &[ClusterEvent::NodeAdd, ClusterEvent::NodeTaint],
        )),
        Some(_) | None => Ok(()),
    }
}

fn node_affinity(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    let spec = pod.pod.spec.as_ref();
    let selector = spec.and_then(|s| s.node_selector.as_ref());
    let affinity = spec.and_then(|s| s.affinity.as_ref());
    match &node.node {
        Some(n) if !node_allowed(selector, affinity, n) => Err(Rejection::new(
            "node(s) didn't match Pod's node affinity/selector",
            false,
            &[ClusterEvent::NodeAdd, ClusterEvent::NodeLabel],
        )),
        _ => Ok(()),
    }
}

fn ports(pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
    let any = "0.0.0.0";
    let clash = |a: &(String, String, i32), b: &(String, String, i32)| {
        a.1 == b.1 && a.2 == b.2 && (a.0 == b.0 || a.0 == any || b.0 == any)
    };
    let used = || node.pods.values().flat_map(|p| &p.host_ports);
    if pod.host_ports.iter().any(|wanted| used().any(|u| clash(wanted, u))) {
        let text = "node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::new(text, true, &[ClusterEvent::NodeAdd, ClusterEvent::PodDelete]));
    }
    Ok(())
}
