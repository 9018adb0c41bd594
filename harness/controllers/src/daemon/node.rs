//! One node and one DaemonSet: whether a Pod belongs there, what the Pod is like, and what is to be done. Pure.
//! Source: k/k pkg/controller/daemon/daemon_controller.go NodeShouldRunDaemonPod, podsShouldBeOnNode; util/daemonset_util.go.

use podlab_api::{
    apps::DaemonSet,
    core::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration},
    jiff::Timestamp,
    matching::{node_allowed, untolerated},
    meta::ObjectMeta,
};

use crate::{
    replicaset::{owner, ready_since},
    revision::HASH,
};

/// Counts changes of the template, as it did before there were revisions.
pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const POD_GENERATION: &str = "pod-template-generation";

/// Whether a Pod belongs on a node, and whether one that is there may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It belongs there.
    Runs,
    /// None is made, one that is there stays.
    Stays,
    /// It does not belong there.
    No,
}

/// What is to be done on a node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Todo {
    pub(super) create: bool,
    /// Names of Pods to delete, with why one is worth an event.
    pub(super) delete: Vec<(String, Option<Finding>)>,
}

/// Why a Pod is deleted that nobody asked to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Failed,
    Succeeded,
}

/// Adds a toleration unless the same one is there.
fn tolerate(spec: &mut PodSpec, key: &str, effect: &str) {
    let all = spec.tolerations.get_or_insert_default();
    let wanted = Toleration {
        key: Some(format!("node.kubernetes.io/{key}")),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    };
    all.retain(|t| {
        !(t.key == wanted.key && t.effect == wanted.effect && t.operator == wanted.operator && t.value.is_none())
    });
    all.push(wanted);
}

/// The Pod of a node.
pub(super) fn pod_for(ds: &DaemonSet, node: &str, hash: &str) -> Pod {
    let template = ds.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    let mut spec = template.spec.unwrap_or_default();
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ] {
        tolerate(&mut spec, key, effect);
    }
    if spec.host_network == Some(true) {
        tolerate(&mut spec, "network-unavailable", "NoSchedule");
    }
    pin(&mut spec, node);
    let mut labels = meta.labels.unwrap_or_default();
    if let Some(generation) = ds.metadata.annotations.as_ref().and_then(|a| a.get(TEMPLATE_GENERATION)) {
        labels.insert(POD_GENERATION.to_owned(), generation.clone());
    }
    if !hash.is_empty() {
        labels.insert(HASH.to_owned(), hash.to_owned());
    }
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", ds.metadata.name.clone().unwrap_or_default())),
            namespace: ds.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner("apps/v1", "DaemonSet", &ds.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Lets the scheduler choose this node alone. Source: util.ReplaceDaemonSetPodNodeNameNodeAffinity.
fn pin(spec: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = affinity.required_during_scheduling_ignored_during_execution.take();
    let mut terms = required.map(|r| r.node_selector_terms).unwrap_or_default();
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    // Terms are alternatives: each has to name the node.
    for term in &mut terms {
        term.match_fields = Some(vec![field.clone()]);
    }
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector { node_selector_terms: terms });
}

/// The node a Pod is on, or is meant for. Source: util.GetTargetNodeName.
pub(super) fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.clone().filter(|n| !n.is_empty()) {
        return Some(name);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    fields.filter(|f| f.key == "metadata.name" && f.operator == "In").find_map(|f| f.values.as_ref()?.first().cloned())
}

/// Whether the set's Pod belongs on a node.
pub(super) fn fit(ds: &DaemonSet, node: &Node) -> Fit {
    let name = node.metadata.name.clone().unwrap_or_default();
    let pod = pod_for(ds, &name, "");
    let spec = pod.spec.unwrap_or_default();
    let elsewhere = spec.node_name.as_ref().is_some_and(|n| !n.is_empty() && *n != name);
    if elsewhere || !node_allowed(spec.node_selector.as_ref(), spec.affinity.as_ref(), node) {
        return Fit::No;
    }
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or(&[]);
    let tolerations = spec.tolerations.as_deref().unwrap_or(&[]);
    if untolerated(taints, tolerations, &["NoExecute", "NoSchedule"]).is_none() {
        return Fit::Runs;
    }
    if untolerated(taints, tolerations, &["NoExecute"]).is_none() { Fit::Stays } else { Fit::No }
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Whether it has been Ready for long enough.
pub(super) fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    ready_since(pod).is_some_and(|t| now.as_second() - t.as_second() >= i64::from(min_ready))
}

/// Scheduled ones first, then the oldest: the order in which Pods are kept.
pub(super) fn rank(pod: &Pod) -> (bool, Option<Timestamp>, Option<String>) {
    let unscheduled = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default().is_empty();
    (unscheduled, pod.metadata.creation_timestamp.as_ref().map(|t| t.0), pod.metadata.name.clone())
}

pub(super) fn is_new(pod: &Pod, hash: &str) -> bool {
    pod.metadata.labels.as_ref().and_then(|l| l.get(HASH)).is_some_and(|h| h == hash)
}

/// Whether an update may put a second Pod on a node first.
pub(super) fn surges(ds: &DaemonSet) -> bool {
    super::rolling::limits(ds, 1).0 > 0
}

/// What is to be done on a node that has these Pods. `resting` says whether a failed one has to wait for its deletion.
pub(super) fn todo(
    ds: &DaemonSet,
    fit: Fit,
    pods: Option<&Vec<Pod>>,
    hash: &str,
    now: Timestamp,
    resting: bool,
) -> Todo {
    let mut todo = Todo::default();
    let empty = Vec::new();
    let living = || pods.unwrap_or(&empty).iter().filter(|p| p.metadata.deletion_timestamp.is_none());
    let name = |p: &Pod| p.metadata.name.clone().unwrap_or_default();
    if fit == Fit::No {
        todo.delete = living().map(|p| (name(p), None)).collect();
        return todo;
    }
    if pods.is_none() {
        todo.create = fit == Fit::Runs;
        return todo;
    }
    let mut running: Vec<&Pod> = Vec::new();
    for pod in living() {
        match phase(pod) {
            "Failed" if resting => {}
            "Failed" => todo.delete.push((name(pod), Some(Finding::Failed))),
            "Succeeded" => todo.delete.push((name(pod), Some(Finding::Succeeded))),
            _ => running.push(pod),
        }
    }
    running.sort_by_key(|p| rank(p));
    if !surges(ds) {
        todo.delete.extend(running.iter().skip(1).map(|p| (name(p), None)));
        return todo;
    }
    if running.is_empty() {
        todo.create = fit == Fit::Runs;
        return todo;
    }
    // Two may be there while the new one is not available and the old one still serves.
    let (mut new, mut old) = (None, None);
    for pod in running {
        let slot = if is_new(pod, hash) { &mut new } else { &mut old };
        if slot.is_some() {
            todo.delete.push((name(pod), None));
        } else {
            *slot = Some(pod);
        }
    }
    if let (Some(new), Some(old)) = (new, old) {
        let min_ready = ds.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
        if ready_since(old).is_none() || is_available(new, min_ready, now) {
            todo.delete.push((name(old), None));
        }
    }
    todo
}
