//! Monitors at the end of every run: whatever a scenario demands, nothing of a Pod that is gone may stay. Each has a name;
//! what one finds must go away by itself soon, or the trial has failed.
//!
//! - `sandboxes`, `containers`, `cgroups`, `mounts`: held for a Pod that is gone.
//! - `ips`, `netns`, `links`: more of them than there are Pods for them.
//! - `running-once`: two running containers of one name in one Pod.
//! - `add-del`: a CNI ADD whose Pod is gone without a DEL that succeeded.
//! - `attachments`, `finalizers`, `leases`: objects of the API that wait for nobody.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podlab_api::{
    Object, ResourceRef,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
};
use podlab_client::{Client, Collection, ListOptions};
use podlab_testbed::{Held, Holding};
use podlab_timeline::{Entry, Event, Lane, Outcome};

use crate::{
    backend::Backend,
    steps::{StepError, chain},
};

/// How long leavings may take to go, on real nodes and in the virtual world.
const PATIENCE: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(150)];

const ATTACHMENTS: ResourceRef = ResourceRef {
    group: "storage.k8s.io",
    version: "v1",
    plural: "volumeattachments",
    kind: "VolumeAttachment",
    namespaced: false,
};
const LEASES: ResourceRef =
    ResourceRef { group: "coordination.k8s.io", version: "v1", plural: "leases", kind: "Lease", namespaced: true };

/// A monitor's finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Broken {
    /// Which monitor.
    pub(crate) monitor: &'static str,
    /// What it saw.
    pub(crate) what: String,
}

/// What the API says at the end.
#[derive(Debug, Default)]
pub(crate) struct Living {
    pub(crate) pods: Vec<Object>,
    pub(crate) claims: Vec<Object>,
    pub(crate) volumes: Vec<Object>,
    pub(crate) attachments: Vec<Object>,
    pub(crate) leases: Vec<Object>,
    pub(crate) nodes: BTreeSet<String>,
}

/// Looks until nothing is found or patience is at its end; what is left then. Nodes in `down` cannot clean up.
pub(crate) async fn at_end(
    backend: &dyn Backend,
    client: &Client,
    down: &BTreeSet<String>,
) -> Result<Vec<Broken>, StepError> {
    let clock = backend.clock();
    let patience = if backend.world() == "virtual" { PATIENCE[1] } else { PATIENCE[0] };
    let deadline = clock.now().after(patience);
    loop {
        let found = look(backend, client, down).await?;
        if found.is_empty() || clock.now() >= deadline {
            return Ok(found);
        }
        // Neither the kernel's leavings nor a runtime's have a watch.
        clock.sleep(Duration::from_millis(100)).await;
    }
}

async fn look(backend: &dyn Backend, client: &Client, down: &BTreeSet<String>) -> Result<Vec<Broken>, StepError> {
    let living = living(client).await?;
    let mut found = Vec::new();
    for node in backend.nodes().into_iter().filter(|n| backend.sees_nodes() && !down.contains(n)) {
        let all = backend.holdings(&node).await?;
        found.extend(of_node(&node, &all, &living));
    }
    if down.is_empty() {
        found.extend(undone(&backend.entries()?, &living));
    }
    found.extend(of_api(&living, down));
    found.sort();
    found.dedup();
    Ok(found)
}

async fn living(client: &Client) -> Result<Living, StepError> {
    let all = async |resource: ResourceRef| -> Result<Vec<Object>, StepError> {
        let collection = Collection { resource, namespace: None };
        let list = client.raw().list(&collection, &ListOptions::default()).await;
        let list = list.map_err(|e| StepError::Broken(format!("list {}: {}", resource.plural, chain(&e))))?;
        Ok(list.items.iter().map(|o| (**o).clone()).collect())
    };
    Ok(Living {
        pods: all(ResourceRef::of::<Pod>()).await?,
        claims: all(ResourceRef::of::<PersistentVolumeClaim>()).await?,
        volumes: all(ResourceRef::of::<PersistentVolume>()).await?,
        attachments: all(ATTACHMENTS).await?,
        leases: all(LEASES).await?,
        nodes: all(ResourceRef::of::<Node>()).await?.iter().map(|o| o.name().to_owned()).collect(),
    })
}

impl Living {
    /// UIDs under which nodes may hold something: a mirror Pod's node knows it by the hash of its manifest.
    fn uids(&self) -> BTreeSet<&str> {
        self.pods
            .iter()
            .flat_map(|p| [Some(p.uid()), p.str_at(&["metadata", "annotations", "kubernetes.io/config.hash"])])
            .flatten()
            .collect()
    }

    /// Pods of a node that may have a network of their own.
    fn networked(&self, node: &str) -> impl Iterator<Item = &Object> {
        let host = |p: &Object| p.at(&["spec", "hostNetwork"]).and_then(|v| v.as_bool()) == Some(true);
        self.pods.iter().filter(move |p| p.str_at(&["spec", "nodeName"]) == Some(node) && !host(p))
    }
}

/// What a node holds and must not.
pub(crate) fn of_node(node: &str, held: &[Holding], living: &Living) -> Vec<Broken> {
    let uids = living.uids();
    let mut out = Vec::new();
    let mut say = |monitor, what: String| out.push(Broken { monitor, what: format!("{node}: {what}") });
    let mut running: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for h in held {
        let monitor = match h.kind {
            Held::Sandbox => "sandboxes",
            Held::Container => "containers",
            Held::Cgroup => "cgroups",
            Held::Mount => "mounts",
            Held::Running => {
                *running.entry((h.pod.as_deref().unwrap_or_default(), &h.what)).or_default() += 1;
                continue;
            }
            Held::Ip | Held::Netns | Held::Link => continue,
        };
        if !h.pod.as_deref().is_some_and(|uid| uids.contains(uid)) {
            say(monitor, format!("{} of a Pod that is gone", h.what));
        }
    }
    for ((_, name), n) in running.into_iter().filter(|(_, n)| *n > 1) {
        say("running-once", format!("{n} running containers {name}"));
    }
    let pods: Vec<&Object> = living.networked(node).collect();
    let ips: BTreeSet<&str> = pods.iter().filter_map(|p| p.str_at(&["status", "podIP"])).collect();
    let pending = pods.iter().filter(|p| p.str_at(&["status", "podIP"]).is_none()).count();
    let strange: Vec<&str> =
        held.iter().filter(|h| h.kind == Held::Ip && !ips.contains(h.what.as_str())).map(|h| h.what.as_str()).collect();
    if strange.len() > pending {
        say("ips", format!("addresses of no Pod: {}", strange.join(", ")));
    }
    for (kind, monitor) in [(Held::Netns, "netns"), (Held::Link, "links")] {
        let all: Vec<&str> = held.iter().filter(|h| h.kind == kind).map(|h| h.what.as_str()).collect();
        if all.len() > pods.len() {
            say(monitor, format!("{} for {} Pods: {}", all.len(), pods.len(), all.join(", ")));
        }
    }
    out
}

/// ADDs of Pods that are gone, without a DEL after them that succeeded.
pub(crate) fn undone(entries: &[Entry], living: &Living) -> Vec<Broken> {
    let here: BTreeSet<(&str, &str)> =
        living.pods.iter().map(|p| (p.namespace().unwrap_or_default(), p.name())).collect();
    let mut open: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for entry in entries.iter().filter(|e| e.lane == Lane::Cni) {
        let (Some(pod), Event::Call { method, outcome, .. }) = (&entry.pod, &entry.event) else { continue };
        let key = (pod.namespace.as_str(), pod.name.as_str());
        match (method.as_str(), outcome) {
            ("ADD", _) => drop(open.insert(key, true)),
            ("DEL", Outcome::Ok) => drop(open.insert(key, false)),
            _ => {}
        }
    }
    let left = open.into_iter().filter(|(key, open)| *open && !here.contains(key));
    left.map(|((_, name), _)| Broken { monitor: "add-del", what: format!("the last ADD of {name} has no DEL") })
        .collect()
}

/// Objects of the API that wait for nobody.
pub(crate) fn of_api(living: &Living, down: &BTreeSet<String>) -> Vec<Broken> {
    let mut out = Vec::new();
    let mut say = |monitor, what: String| out.push(Broken { monitor, what });
    let ended = |p: &Object| matches!(p.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"));
    let used: BTreeSet<String> = living
        .pods
        .iter()
        .filter(|p| !ended(p) || p.at(&["metadata", "deletionTimestamp"]).is_some())
        .flat_map(|p| {
            let volumes = p.at(&["spec", "volumes"]).and_then(|v| v.as_array()).cloned().unwrap_or_default();
            let of = move |v: serde_json::Value| {
                let claim = v["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
                let own = v["ephemeral"]
                    .is_object()
                    .then(|| format!("{}-{}", p.name(), v["name"].as_str().unwrap_or_default()));
                claim.or(own)
            };
            volumes.into_iter().filter_map(of).collect::<Vec<_>>()
        })
        .collect();
    let deleting = |o: &&Object| o.at(&["metadata", "deletionTimestamp"]).is_some();
    for claim in living.claims.iter().filter(deleting).filter(|c| !used.contains(c.name())) {
        say("finalizers", format!("claim {} is deleted, used by no Pod, and still there", claim.name()));
    }
    for volume in living.volumes.iter().filter(deleting) {
        let claim = volume.str_at(&["spec", "claimRef", "name"]).unwrap_or_default();
        if !living.claims.iter().any(|c| c.name() == claim) && down.is_empty() {
            say("finalizers", format!("volume {} is deleted, claimed by nobody, and still there", volume.name()));
        }
    }
    for attachment in &living.attachments {
        let node = attachment.str_at(&["spec", "nodeName"]).unwrap_or_default();
        let name = attachment.str_at(&["spec", "source", "persistentVolumeName"]).unwrap_or_default();
        let volume = living.volumes.iter().find(|v| v.name() == name);
        let claim = volume.and_then(|v| v.str_at(&["spec", "claimRef", "name"])).unwrap_or_default();
        if !down.contains(node) && !used.contains(claim) {
            say("attachments", format!("{name} is attached to {node}, and no Pod uses it"));
        }
    }
    for lease in living.leases.iter().filter(|l| l.namespace() == Some("kube-node-lease")) {
        if !living.nodes.contains(lease.name()) {
            say("leases", format!("a lease of {}, which is no node", lease.name()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use podlab_clock::Mono;
    use podlab_timeline::{PodKey, SCHEMA_VERSION};
    use serde_json::json;

    use super::*;

    fn living() -> Living {
        let pod =
            json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"nodeName": "n"}, "status": {"podIP": "10.0.0.1"}});
        Living { pods: vec![Object(pod)], nodes: BTreeSet::from(["n".to_owned()]), ..Living::default() }
    }

    fn held(kind: Held, what: &str, pod: &str) -> Holding {
        Holding { kind, what: what.into(), pod: (!pod.is_empty()).then(|| pod.to_owned()) }
    }

    fn monitors(found: &[Broken]) -> Vec<&str> {
        found.iter().map(|b| b.monitor).collect()
    }

    #[test]
    fn what_is_held_for_a_pod_that_is_there_is_no_finding_and_for_any_other_it_is() {
        let each = [
            (Held::Sandbox, "sandboxes"),
            (Held::Container, "containers"),
            (Held::Cgroup, "cgroups"),
            (Held::Mount, "mounts"),
        ];
        for (kind, monitor) in each {
            assert_eq!(of_node("n", &[held(kind, "x", "u")], &living()), []);
            assert_eq!(monitors(&of_node("n", &[held(kind, "x", "v")], &living())), [monitor]);
            assert_eq!(monitors(&of_node("n", &[held(kind, "x", "")], &living())), [monitor]);
        }
    }

    #[test]
    fn addresses_namespaces_and_links_are_for_the_pods_there_are() {
        let one = [held(Held::Ip, "10.0.0.1", ""), held(Held::Netns, "a", ""), held(Held::Link, "v", "")];
        assert_eq!(of_node("n", &one, &living()), []);
        assert_eq!(monitors(&of_node("n", &[held(Held::Ip, "10.0.0.2", "")], &living())), ["ips"]);
        assert_eq!(monitors(&of_node("m", &one, &living())), ["ips", "netns", "links"]);
        let mut host = living();
        host.pods[0].0["spec"]["hostNetwork"] = true.into();
        assert_eq!(monitors(&of_node("n", &one, &host)), ["ips", "netns", "links"]);
    }

    #[test]
    fn two_running_containers_of_a_name_are_one_too_many() {
        let once = [held(Held::Running, "a/c", "u"), held(Held::Running, "a/d", "u"), held(Held::Running, "a/c", "v")];
        assert_eq!(of_node("n", &once, &living()), []);
        let twice = [held(Held::Running, "a/c", "u"), held(Held::Running, "a/c", "u")];
        assert_eq!(monitors(&of_node("n", &twice, &living())), ["running-once"]);
    }

    #[test]
    fn an_add_needs_a_del_that_succeeded_once_its_pod_is_gone() {
        let log = |calls: &[(&str, &str, bool)]| -> Vec<Entry> {
            let entry = |(method, pod, ok): &(&str, &str, bool)| Entry {
                v: SCHEMA_VERSION,
                t: Mono(1),
                lane: Lane::Cni,
                pod: Some(PodKey { namespace: String::new(), name: (*pod).into(), uid: String::new() }),
                node: None,
                event: Event::Call {
                    method: (*method).into(),
                    start: Mono(0),
                    outcome: if *ok { Outcome::Ok } else { Outcome::Error("no".into()) },
                    subject: String::new(),
                },
            };
            calls.iter().map(entry).collect()
        };
        let bad = |calls: &[(&str, &str, bool)]| undone(&log(calls), &living()).len();
        assert_eq!(bad(&[("ADD", "a", true)]), 0, "its Pod is there");
        assert_eq!(bad(&[("ADD", "b", true), ("DEL", "b", true)]), 0);
        assert_eq!(bad(&[("ADD", "b", true)]), 1);
        assert_eq!(bad(&[("ADD", "b", false)]), 1, "a failed ADD may have done half of its work");
        assert_eq!(bad(&[("ADD", "b", true), ("DEL", "b", false)]), 1);
        assert_eq!(bad(&[("ADD", "b", true), ("DEL", "b", true), ("ADD", "b", true)]), 1);
    }

    #[test]
    fn objects_that_wait_for_nobody_are_found() {
        let object = |v: serde_json::Value| Object(v);
        let gone = json!({"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]});
        let mut l = living();
        l.claims = vec![object(json!({"metadata": gone.clone()}))];
        assert_eq!(monitors(&of_api(&l, &BTreeSet::new())), ["finalizers"]);
        l.pods[0].0["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        assert_eq!(of_api(&l, &BTreeSet::new()), [], "a Pod uses it");
        l.claims.clear();
        l.volumes = vec![object(json!({"metadata": gone, "spec": {"claimRef": {"name": "other"}}}))];
        l.attachments = vec![object(
            json!({"metadata": {"name": "at"}, "spec": {"nodeName": "n", "source": {"persistentVolumeName": "c"}}}),
        )];
        l.leases = vec![object(json!({"metadata": {"name": "lost", "namespace": "kube-node-lease"}}))];
        assert_eq!(monitors(&of_api(&l, &BTreeSet::new())), ["finalizers", "attachments", "leases"]);
        assert_eq!(monitors(&of_api(&l, &BTreeSet::from(["n".to_owned()]))), ["leases"]);
    }
}
