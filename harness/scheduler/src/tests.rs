//! Decisions on small clusters, and the queue's timing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podlab_api::core::{Node, Pod};
use podlab_clock::{Mono, Rng};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    cycle::{Decision, schedule_one},
    filter::View,
    pod_info::PodInfo,
    queue::{ClusterEvent, Queue, backoff},
    volumes::VolumeState,
};

fn node(name: &str, cpu: &str, labels: Value, spec: Value) -> Arc<Node> {
    let tree = json!({"metadata": {"name": name, "labels": labels}, "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "110"}}});
    Arc::new(serde_json::from_value(tree).unwrap())
}

fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("containers").or_insert_with(|| json!([{"name": "c"}]));
    let tree = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": name}}, "spec": spec});
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value::<Pod>(tree).unwrap())))
}

fn cpu(amount: &str) -> Value {
    json!([{"name": "c", "resources": {"requests": {"cpu": amount}}}])
}

fn decide(cache: &Cache, pod: &PodInfo) -> Decision {
    let (namespaces, volumes) = (BTreeMap::new(), VolumeState::default());
    schedule_one(pod, &View { cache, namespaces: &namespaces, volumes: &volumes }, &[], &Rng::seeded(1))
}

fn message(cache: &Cache, pod: &PodInfo) -> String {
    match decide(cache, pod) {
        Decision::Unschedulable { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn two_nodes() -> Cache {
    let mut cache = Cache::default();
    cache.set_node(node("node-1", "2", json!({"kubernetes.io/hostname": "node-1"}), json!({})));
    cache.set_node(node("node-2", "2", json!({"kubernetes.io/hostname": "node-2"}), json!({})));
    cache
}

#[test]
fn messages_are_composed_as_recorded_from_a_real_cluster() {
    let cache = two_nodes();
    for (spec, expected) in [
        (
            json!({"containers": cpu("64")}),
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"nodeSelector": {"x": "1"}}),
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}),
            "0/2 nodes are available: persistentvolumeclaim \"data\" not found. not found",
        ),
    ] {
        assert_eq!(message(&cache, &pod("a", spec)), expected);
    }
    assert_eq!(message(&Cache::default(), &pod("a", json!({}))), "no nodes available to schedule pods");
}

#[test]
fn anti_affinity_spreads_and_the_third_finds_nobody_to_evict() {
    let mut cache = two_nodes();
    let spec = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "topologyKey": "kubernetes.io/hostname"}]}}});
    let mut used = BTreeSet::new();
    for name in ["a", "b"] {
        let p = pod(name, spec.clone());
        let Decision::Bind { node, .. } = decide(&cache, &p) else { panic!("{name} fits") };
        cache.assume(p, &node);
        used.insert(node);
    }
    assert_eq!(used.len(), 2);
    assert_eq!(
        message(&cache, &pod("c", spec)),
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, \
         preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
    );
}

#[test]
fn a_higher_priority_evicts_the_least_and_says_nothing_of_preemption() {
    let mut cache = two_nodes();
    cache.assume(pod("low", json!({"containers": cpu("1200m")})), "node-2");
    let spec =
        json!({"containers": cpu("1200m"), "priority": 1000, "nodeSelector": {"kubernetes.io/hostname": "node-2"}});
    let Decision::Unschedulable { message, preempt, .. } = decide(&cache, &pod("high", spec)) else {
        panic!("it does not fit yet")
    };
    assert_eq!(
        message,
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector."
    );
    let (node, victims) = preempt.unwrap();
    assert_eq!((node.as_str(), victims.len(), victims[0].key.1.as_str()), ("node-2", 1, "low"));
}

#[test]
fn the_emptier_node_wins() {
    let mut cache = two_nodes();
    cache.assume(pod("busy", json!({"containers": cpu("1500m")})), "node-1");
    assert!(
        matches!(decide(&cache, &pod("a", json!({"containers": cpu("100m")}))), Decision::Bind { node, .. } if node == "node-2")
    );
}

#[test]
fn taints_ports_and_cordons_refuse_in_upstreams_words() {
    let mut cache = Cache::default();
    cache.set_node(node("a", "2", json!({}), json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})));
    cache.set_node(node("b", "2", json!({}), json!({"unschedulable": true})));
    cache.set_node(node("c", "2", json!({}), json!({})));
    let ports = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    cache.assume(pod("first", ports.clone()), "c");
    assert!(message(&cache, &pod("second", ports)).starts_with(
        "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, \
         1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."
    ));
}

#[test]
fn back_off_doubles_from_one_second_to_ten() {
    let seconds: Vec<u64> = (1..=6).map(|n| backoff(n).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn a_parked_pod_comes_back_only_for_what_it_waits_for_and_not_before_its_back_off() {
    let mut queue = Queue::default();
    let key = ("ns".to_owned(), "a".to_owned());
    let at = |ms: u64| Mono(ms * 1_000_000);
    queue.add(&key, 0, false, true, at(0));
    assert_eq!(queue.pop(at(0)), Some(key.clone()));
    queue.park(&key, BTreeSet::from([ClusterEvent::NodeLabel]), at(0));
    queue.event(ClusterEvent::PodDelete, at(10));
    assert_eq!(queue.pop(at(5000)), None);
    queue.event(ClusterEvent::NodeLabel, at(100));
    assert_eq!(queue.pop(at(999)), None);
    assert_eq!(queue.next_deadline(), Some(at(0).after(Duration::from_secs(1))));
    assert_eq!(queue.pop(at(1000)), Some(key.clone()));
    // An event during the attempt is not lost.
    queue.event(ClusterEvent::NodeLabel, at(1001));
    queue.park(&key, BTreeSet::from([ClusterEvent::NodeLabel]), at(1001));
    assert_eq!(queue.pop(at(3001)), Some(key));
}

#[test]
fn priority_goes_first_and_gates_hold() {
    let mut queue = Queue::default();
    let key = |n: &str| ("ns".to_owned(), n.to_owned());
    queue.add(&key("low"), 0, false, true, Mono(0));
    queue.add(&key("gated"), 99, true, true, Mono(1));
    queue.add(&key("high"), 10, false, true, Mono(2));
    assert_eq!(queue.pop(Mono(3)), Some(key("high")));
    assert_eq!(queue.pop(Mono(3)), Some(key("low")));
    assert_eq!(queue.pop(Mono(3)), None);
    queue.add(&key("gated"), 99, false, true, Mono(4));
    assert_eq!(queue.pop(Mono(4)), Some(key("gated")));
}
