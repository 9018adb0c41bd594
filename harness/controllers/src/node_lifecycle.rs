//! Nodes that stop reporting: conditions become Unknown, taints follow the conditions, their Pods are marked.
//! Source: k/k pkg/controller/nodelifecycle/node_lifecycle_controller.go.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    coordination::Lease,
    core::{Node, NodeCondition, Pod, Taint},
    meta::Time,
};
use podlab_client::{
    Client, PatchKind,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};
use podlab_clock::{Clock, Mono};
use serde_json::json;

use crate::{
    work::{Again, Key, Reconcile, key_of},
    zones::{Turn, Zones, zone_of},
};

/// How long a node may be silent.
const GRACE: Duration = Duration::from_secs(50);
/// How long a node that has never told of itself may be.
const STARTUP: Duration = Duration::from_secs(60);
/// How often a silent node is looked at.
const PERIOD: Duration = Duration::from_secs(5);
const LEASES: &str = "kube-node-lease";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What was last heard of a node, and when this controller heard it.
#[derive(Debug, Clone, PartialEq)]
struct Heard {
    words: String,
    at: Mono,
    registered: bool,
    ready: String,
    /// Its Pods are to be marked as not Ready. Once for each time it goes: a node that comes back says itself how they are.
    to_mark: bool,
}

/// The controller. Keys are node names.
pub(crate) struct NodeLifecycle {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) nodes: Cache<Node>,
    pub(crate) leases: Cache<Lease>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) clock: Clock,
    heard: Mutex<BTreeMap<String, Heard>>,
    zones: Mutex<Zones>,
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

fn status_of(node: &Node, kind: &str) -> String {
    condition(node, kind).map_or_else(|| "Unknown".to_owned(), |c| c.status.clone())
}

/// The taints the conditions of a node ask for, by key and effect.
pub(crate) fn wanted_taints(node: &Node) -> Vec<(&'static str, &'static str)> {
    let mut out = Vec::new();
    match status_of(node, "Ready").as_str() {
        "True" => {}
        "False" => out.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        _ => out.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
    }
    for (kind, key) in [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
        ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
    ] {
        if condition(node, kind).is_some_and(|c| c.status == "True") {
            out.push((key, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        out.push(("node.kubernetes.io/unschedulable", "NoSchedule"));
    }
    out
}

/// Whether a taint is one this controller puts and takes.
fn is_ours(taint: &Taint) -> bool {
    let suffixes = [
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "unschedulable",
    ];
    taint.key.strip_prefix("node.kubernetes.io/").is_some_and(|k| suffixes.contains(&k))
}

impl NodeLifecycle {
    pub(crate) fn new(
        client: Client,
        events: EventRecorder,
        (nodes, leases, pods): (Cache<Node>, Cache<Lease>, Cache<Pod>),
        clock: Clock,
    ) -> Self {
        Self { client, events, nodes, leases, pods, clock, heard: Mutex::default(), zones: Mutex::default() }
    }

    /// Takes note of a sign of life; how long the node has been silent, and its readiness before.
    fn listen(&self, node: &Node, name: &str) -> (Duration, Heard) {
        let lease = self.leases.get(LEASES, name).and_then(|l| l.spec.as_ref()?.renew_time.clone());
        let beat = condition(node, "Ready").and_then(|c| c.last_heartbeat_time.clone());
        let words = format!("{:?} {:?}", lease.map(|t| t.0), beat.map(|t| t.0));
        let now = self.clock.now();
        let ready = status_of(node, "Ready");
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh =
            Heard { words: words.clone(), at: now, registered: false, ready: ready.clone(), to_mark: ready != "True" };
        let entry = heard.entry(name.to_owned()).or_insert(fresh);
        if entry.words != words {
            entry.words = words;
            entry.at = now;
        }
        let before = entry.clone();
        entry.registered = true;
        entry.ready = ready;
        (now.since(entry.at), before)
    }
}

#[async_trait]
impl Reconcile for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let Some(node) = self.nodes.get("", name) else {
            self.heard.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
            return Ok(Again::OnChange);
        };
        let (silent, before) = self.listen(&node, name);
        if !before.registered {
            let text = format!("Node {name} event: Registered Node {name} in Controller");
            self.events.event(reference(&*node), EventType::Normal, "RegisteredNode", text);
        }
        let mut node = node;
        let (grace, shown) = match condition(&node, "Ready") {
            Some(c) => (GRACE, c.status.as_str()),
            None => (STARTUP, ""),
        };
        if silent >= grace && shown != "Unknown" {
            node = Arc::new(self.declare_unknown(&node).await?);
        }
        let ready = status_of(&node, "Ready");
        self.settle(name, &before, &ready);
        if ready != "True" && before.registered && before.ready == "True" {
            let text = format!("Node {name} status is now: NodeNotReady");
            self.events.event(reference(&*node), EventType::Normal, "NodeNotReady", text);
        }
        self.look_at_zones(&node);
        let turn = self.set_taints(&node).await?;
        if self.is_to_mark(name, None) {
            self.mark_pods(name).await?;
            self.is_to_mark(name, Some(false));
        }
        // Signs of life wake this key; silence must be noticed by itself.
        let next = if ready == "True" { GRACE.saturating_sub(silent).max(PERIOD) } else { PERIOD };
        Ok(Again::After(turn.map_or(next, |t| t.min(next))))
    }
}

impl NodeLifecycle {
    /// Notes what a node is after this look: the cache may still show it as it was when its key comes next.
    fn settle(&self, name: &str, before: &Heard, ready: &str) {
        if let Some(heard) = self.heard.lock().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
            heard.to_mark = ready != "True" && (heard.to_mark || before.ready == "True");
            ready.clone_into(&mut heard.ready);
        }
    }

    /// Whether the Pods of a node are to be marked, and from now on whether they are.
    fn is_to_mark(&self, name: &str, next: Option<bool>) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heard) = heard.get_mut(name) else { return false };
        let now = heard.to_mark;
        heard.to_mark = next.unwrap_or(now);
        now
    }

    async fn declare_unknown(&self, node: &Node) -> Result<Node, ApiError> {
        let now = self.clock.wall_secs().to_string();
        let unknown = |kind: &str| {
            let seen = condition(node, kind);
            let heartbeat = seen.and_then(|c| c.last_heartbeat_time.clone()).map_or(now.clone(), |t| t.0.to_string());
            json!({"type": kind, "status": "Unknown", "reason": if seen.is_some() { "NodeStatusUnknown" } else { "NodeStatusNeverUpdated" },
                "message": if seen.is_some() { "Kubelet stopped posting node status." } else { "Kubelet never posted node status." },
                "lastHeartbeatTime": heartbeat, "lastTransitionTime": now})
        };
        let conditions: Vec<_> = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(unknown).to_vec();
        let body = json!({"status": {"conditions": conditions}});
        self.client.all::<Node>().patch_status(&key_of(node).1, &PatchKind::Strategic, &body).await
    }

    /// Takes note of how the zones are; `this` node's newest form may not be in the cache yet.
    fn look_at_zones(&self, this: &Node) {
        let one = |n: &Node| (zone_of(n), status_of(n, "Ready") == "True");
        let others = self.nodes.list().into_iter().filter(|n| n.metadata.name != this.metadata.name);
        let all: Vec<(String, bool)> = others.map(|n| one(&n)).chain([one(this)]).collect();
        let now = self.clock.now();
        if self.zones.lock().unwrap_or_else(PoisonError::into_inner).observe(all.into_iter(), now) {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.values_mut().for_each(|h| h.at = now);
        }
    }

    /// The taints a node gets now, and when to look again if its Pods may not be driven off yet.
    fn due_taints(&self, node: &Node, have: &[Taint]) -> (Vec<(&'static str, &'static str)>, Option<Duration>) {
        let mut wanted = wanted_taints(node);
        let drives_off = |effect: &str| effect == "NoExecute";
        if !wanted.iter().any(|(_, effect)| drives_off(effect)) {
            return (wanted, None);
        }
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = if zones.all_down() {
            Turn::Never
        } else if have.iter().any(|t| is_ours(t) && drives_off(&t.effect)) {
            // One taint takes the place of the other whenever the condition changes.
            Turn::Now
        } else {
            zones.take(&zone_of(node), self.clock.now())
        };
        match turn {
            Turn::Now => (wanted, None),
            Turn::After(_) | Turn::Never => {
                wanted.retain(|(_, effect)| !drives_off(effect));
                (wanted, if let Turn::After(wait) = turn { Some(wait) } else { None })
            }
        }
    }

    async fn set_taints(&self, node: &Node) -> Result<Option<Duration>, ApiError> {
        let have = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        let (wanted, again) = self.due_taints(node, &have);
        let mut next: Vec<Taint> = have
            .iter()
            .filter(|t| !is_ours(t) || wanted.contains(&(t.key.as_str(), t.effect.as_str())))
            .cloned()
            .collect();
        for (key, effect) in wanted {
            if !next.iter().any(|t| t.key == key && t.effect == effect) {
                let time_added = Some(Time(self.clock.wall_secs()));
                next.push(Taint { key: key.into(), effect: effect.into(), value: None, time_added });
            }
        }
        if next == have {
            return Ok(again);
        }
        let body = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": next}});
        match self.client.all::<Node>().patch(&key_of(node).1, &PatchKind::Merge, &body).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(again),
        }
    }

    /// Pods of a node that is not Ready are not Ready either.
    async fn mark_pods(&self, node: &str) -> Result<(), ApiError> {
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
            conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        };
        for pod in self.pods.list() {
            let here = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
            if !here || !is_ready(&pod) {
                continue;
            }
            let (namespace, name) = key_of(&*pod);
            // The cache may be behind the mark of a moment ago; the API knows.
            let now = self.client.namespaced::<Pod>(&namespace).get_opt(&name).await?;
            let Some(pod) = now.filter(|p| p.metadata.uid == pod.metadata.uid && is_ready(p)) else { continue };
            let body = json!({"status": {"conditions": [{
                "type": "Ready", "status": "False", "reason": null, "message": null, "observedGeneration": pod.metadata.generation,
                "lastTransitionTime": self.clock.wall_secs().to_string()}]}});
            match self.client.namespaced::<Pod>(&namespace).patch_status(&name, &PatchKind::Strategic, &body).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => self.events.event(reference(&pod), EventType::Warning, "NodeNotReady", "Node is not ready"),
            }
        }
        Ok(())
    }
}
