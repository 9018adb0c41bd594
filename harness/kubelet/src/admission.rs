//! Whether a Pod fits this node. Source: k/k pkg/kubelet/lifecycle/predicate.go.

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::core::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};
use podlab_lifecycle::{
    eviction::critical,
    resources::{pod_requests, quantity},
    spec,
    status::Verdict,
};

use crate::{agent::Agent, eviction, pods::EndRequest, preemption, sysctls};

/// Lets a Pod in beside those that are there, or says why not.
pub(crate) fn admit(agent: &Agent, pod: &Pod, active: &[Arc<Pod>], node: &Node) -> Result<(), Verdict> {
    eviction::admit(pod, &agent.pressure.borrow())?;
    sysctls::admit(pod, &agent.config.allowed_unsafe_sysctls)?;
    if agent.leaving.load(std::sync::atomic::Ordering::Acquire) {
        return Err(verdict("NodeShutdown".to_owned(), "Pod was rejected as the node is shutting down.".to_owned()));
    }
    if let Err(verdict) = fits(pod, active, &agent.capacity_for_pods()) {
        make_room(agent, pod, active).ok_or(verdict)?;
    }
    matches_node(pod, node)?;
    ports(pod, active)?;
    taints(pod, node)
}

/// Whether a Pod tolerates a taint of this key and no value that keeps Pods from being scheduled.
pub(crate) fn tolerates_no_schedule(pod: &Pod, key: &str) -> bool {
    let taint = Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    spec::pod_spec(pod).tolerations.iter().flatten().any(|t| tolerates(t, &taint))
}

/// Ends others for a critical Pod; `None` when that does not help. They may still be ending while it starts.
fn make_room(agent: &Agent, pod: &Pod, active: &[Arc<Pod>]) -> Option<()> {
    if !critical(pod) {
        return None;
    }
    let missing = preemption::missing(pod, active, &agent.capacity_for_pods());
    for victim in preemption::victims(pod, active, &missing)? {
        agent.say.warn(&victim, preemption::REASON, preemption::MESSAGE);
        let uid = victim.metadata.uid.clone().unwrap_or_default();
        agent.workers.end(&uid, EndRequest { grace: None, verdict: Some(preemption::verdict()) });
    }
    Some(())
}

fn verdict(reason: String, message: String) -> Verdict {
    Verdict { reason, message, disruption: None }
}

/// Resources, in the order upstream reports them: Pods, CPU, memory, ephemeral storage, the others.
pub(crate) fn fits(pod: &Pod, active: &[Arc<Pod>], capacity: &BTreeMap<String, i64>) -> Result<(), Verdict> {
    let limit = |key: &str| capacity.get(key).copied().unwrap_or(0);
    let short = |key: &str, requested: i64, used: i64| {
        let message = format!(
            "Node didn't have enough resource: {key}, requested: {requested}, used: {used}, capacity: {}",
            limit(key)
        );
        Err(verdict(format!("OutOf{key}"), message))
    };
    let count = i64::try_from(active.len()).unwrap_or(i64::MAX);
    if count + 1 > limit("pods") {
        return short("pods", 1, count);
    }
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for p in active {
        for (k, v) in pod_requests(p) {
            *used.entry(k).or_default() += v;
        }
    }
    let wanted = pod_requests(pod);
    let first = ["cpu", "memory", "ephemeral-storage"];
    // A resource that the node does not know of does not keep a Pod that was sent to it away.
    // Source: k/k pkg/kubelet/lifecycle/predicate.go removeMissingExtendedResources.
    let others = wanted.keys().map(String::as_str).filter(|k| !first.contains(k) && capacity.contains_key(*k));
    for key in first.into_iter().chain(others.collect::<Vec<_>>()) {
        let requested = wanted.get(key).copied().unwrap_or(0);
        let taken = used.get(key).copied().unwrap_or(0);
        if requested > 0 && taken + requested > limit(key) {
            return short(key, requested, taken);
        }
    }
    Ok(())
}

fn matches_node(pod: &Pod, node: &Node) -> Result<(), Verdict> {
    let s = spec::pod_spec(pod);
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let selector_ok = s.node_selector.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let required = s
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let affinity_ok = required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t, labels, name)));
    if selector_ok && affinity_ok {
        return Ok(());
    }
    Err(verdict(
        "NodeAffinity".to_owned(),
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".to_owned(),
    ))
}

fn term(t: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = t.match_expressions.as_deref().unwrap_or_default();
    let fields = t.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let field_value = |key: &str| (key == "metadata.name").then(|| name.to_owned());
    expressions.iter().all(|r| requirement(r, labels.get(&r.key).cloned()))
        && fields.iter().all(|r| requirement(r, field_value(&r.key)))
}

fn requirement(r: &NodeSelectorRequirement, value: Option<String>) -> bool {
    let values = r.values.as_deref().unwrap_or_default();
    let number = |s: &str| s.parse::<i64>().ok();
    let bound = values.first().and_then(|v| number(v));
    match r.operator.as_str() {
        "In" => value.is_some_and(|v| values.contains(&v)),
        "NotIn" => value.is_none_or(|v| !values.contains(&v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(|v| number(&v)).zip(bound).is_some_and(|(v, b)| v > b),
        "Lt" => value.and_then(|v| number(&v)).zip(bound).is_some_and(|(v, b)| v < b),
        _ => false,
    }
}

/// (address, protocol, port) of every host port.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let sidecars = spec::init_containers(pod).iter().filter(|c| spec::is_sidecar(c));
    let all = spec::containers(pod).iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    all.filter_map(|p| {
        let port = p.host_port.filter(|n| *n > 0)?;
        let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
        Some((ip, p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port))
    })
    .collect()
}

fn ports(pod: &Pod, active: &[Arc<Pod>]) -> Result<(), Verdict> {
    let taken: Vec<_> = active.iter().flat_map(|p| host_ports(p)).collect();
    let clash = |(ip, protocol, port): &(String, String, i32)| {
        taken.iter().any(|(i, pr, po)| pr == protocol && po == port && (i == ip || i == "0.0.0.0" || ip == "0.0.0.0"))
    };
    if host_ports(pod).iter().any(clash) {
        return Err(verdict(
            "NodePorts".to_owned(),
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned(),
        ));
    }
    Ok(())
}

fn taints(pod: &Pod, node: &Node) -> Result<(), Verdict> {
    if spec::is_static(pod) {
        return Ok(());
    }
    let tolerations = spec::pod_spec(pod).tolerations.as_deref().unwrap_or_default();
    let all = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let bad = all.iter().filter(|t| t.effect == "NoExecute").any(|t| !tolerations.iter().any(|o| tolerates(o, t)));
    if bad {
        return Err(verdict(
            "TaintToleration".to_owned(),
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".to_owned(),
        ));
    }
    Ok(())
}

fn tolerates(o: &Toleration, t: &Taint) -> bool {
    let effect = o.effect.as_deref().unwrap_or_default();
    let key = o.key.as_deref().unwrap_or_default();
    let exists = o.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == t.effect)
        && (key == t.key || (key.is_empty() && exists))
        && (exists || o.value.as_deref().unwrap_or_default() == t.value.as_deref().unwrap_or_default())
}

/// Quantities of a node's map as [`fits`] counts them.
pub(crate) fn amounts(
    map: Option<&BTreeMap<String, podlab_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> BTreeMap<String, i64> {
    map.into_iter().flatten().map(|(k, q)| (k.clone(), quantity(k, q))).collect()
}

#[cfg(test)]
mod tests {
    use podlab_api::{
        core::{Container, PodSpec, ResourceRequirements},
        k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    };

    use super::*;

    fn pod(cpu: &str) -> Pod {
        let requests = [("cpu".to_owned(), Quantity(cpu.to_owned()))].into();
        let c = Container {
            name: "c".into(),
            resources: Some(ResourceRequirements { requests: Some(requests), ..Default::default() }),
            ..Container::default()
        };
        Pod { spec: Some(PodSpec { containers: vec![c], ..PodSpec::default() }), ..Pod::default() }
    }

    #[test]
    fn a_pod_that_does_not_fit_is_refused_in_upstreams_words() {
        let capacity: BTreeMap<String, i64> = [("cpu".to_owned(), 2000), ("pods".to_owned(), 110)].into();
        let active = [Arc::new(pod("500m"))];
        assert!(fits(&pod("1500m"), &active, &capacity).is_ok());
        let v = fits(&pod("64"), &active, &capacity).unwrap_err();
        assert_eq!(v.reason, "OutOfcpu");
        assert_eq!(v.message, "Node didn't have enough resource: cpu, requested: 64000, used: 500, capacity: 2000");
        let one: BTreeMap<String, i64> = [("pods".to_owned(), 1)].into();
        assert_eq!(fits(&pod("0"), &active, &one).unwrap_err().reason, "OutOfpods");
    }

    #[test]
    fn selectors_and_taints_are_checked_again_on_the_node() {
        let mut p = pod("0");
        p.spec.as_mut().unwrap().node_selector = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(matches_node(&p, &Node::default()).unwrap_err().reason, "NodeAffinity");
        let mut n = Node::default();
        n.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert!(matches_node(&p, &n).is_ok());
        n.spec = Some(podlab_api::core::NodeSpec {
            taints: Some(vec![Taint { key: "k".into(), effect: "NoExecute".into(), ..Taint::default() }]),
            ..Default::default()
        });
        assert_eq!(taints(&p, &n).unwrap_err().reason, "TaintToleration");
    }
}
