//! What a DaemonSet does on one node and in an update.

use std::collections::BTreeMap;

use podlab_api::{
    apps::DaemonSet,
    core::{Node, Pod},
    jiff::Timestamp,
};
use serde_json::{Value, json};

use super::{
    node::{Finding, Fit, fit, node_of, pod_for, todo},
    rolling::{Moves, moves},
};

fn set(strategy: Value) -> DaemonSet {
    serde_json::from_value(json!({"metadata": {"name": "ds", "namespace": "default", "uid": "u",
        "annotations": {"deprecated.daemonset.template.generation": "3"}},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "updateStrategy": strategy,
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [], "nodeSelector": {"disk": "ssd"}}}}}))
    .unwrap()
}

fn node(name: &str, taints: Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"disk": "ssd"}}, "spec": {"taints": taints}}))
        .unwrap()
}

fn pod(name: &str, hash: &str, phase: &str, ready: bool) -> Pod {
    let ready = if ready { "True" } else { "False" };
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"controller-revision-hash": hash}},
        "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready,
            "lastTransitionTime": "1970-01-01T00:00:01Z"}]}}))
    .unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1000).unwrap()
}

#[test]
fn a_pod_is_meant_for_its_node_and_bears_the_nodes_troubles() {
    let made = pod_for(&set(json!({})), "n1", "h");
    assert_eq!(node_of(&made).as_deref(), Some("n1"));
    let labels = made.metadata.labels.unwrap();
    assert_eq!((labels["controller-revision-hash"].as_str(), labels["pod-template-generation"].as_str()), ("h", "3"));
    let keys: Vec<String> = made.spec.unwrap().tolerations.unwrap().into_iter().filter_map(|t| t.key).collect();
    let all = ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];
    assert_eq!(keys, all.map(|k| format!("node.kubernetes.io/{k}")));
}

#[test]
fn a_taint_keeps_new_pods_away_and_only_no_execute_drives_old_ones_out() {
    let ds = set(json!({}));
    let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
    assert_eq!(fit(&ds, &node("n", json!([]))), Fit::Runs);
    assert_eq!(fit(&ds, &node("n", taint("k", "NoSchedule"))), Fit::Stays);
    assert_eq!(fit(&ds, &node("n", taint("k", "NoExecute"))), Fit::No);
    assert_eq!(fit(&ds, &node("n", taint("node.kubernetes.io/unreachable", "NoExecute"))), Fit::Runs);
    assert_eq!(fit(&ds, &node("n", taint("node.kubernetes.io/unschedulable", "NoSchedule"))), Fit::Runs);
    let mut other = node("n", json!([]));
    other.metadata.labels = None;
    assert_eq!(fit(&ds, &other), Fit::No);
}

#[test]
fn a_node_gets_one_pod_and_an_ended_one_is_replaced() {
    let ds = set(json!({}));
    let todo = |fit, pods: Option<Vec<Pod>>, resting| todo(&ds, fit, pods.as_ref(), "h", now(), resting);
    assert!(todo(Fit::Runs, None, false).create);
    assert!(!todo(Fit::Stays, None, false).create);
    let failed = || Some(vec![pod("f", "h", "Failed", false)]);
    assert_eq!(todo(Fit::Runs, failed(), false).delete, [("f".to_owned(), Some(Finding::Failed))]);
    assert_eq!(todo(Fit::Runs, failed(), true).delete, []);
    assert!(!todo(Fit::Runs, failed(), false).create, "the next look makes the new one");
    let ended = Some(vec![pod("s", "h", "Succeeded", false)]);
    assert_eq!(todo(Fit::Runs, ended, false).delete, [("s".to_owned(), Some(Finding::Succeeded))]);
    let two = Some(vec![pod("a", "h", "Running", true), pod("b", "h", "Running", true)]);
    assert_eq!(todo(Fit::Runs, two, false).delete, [("b".to_owned(), None)]);
    assert_eq!(todo(Fit::No, Some(vec![pod("a", "h", "Running", true)]), false).delete, [("a".to_owned(), None)]);
}

fn by_node(all: &[(&str, Vec<Pod>)]) -> (BTreeMap<String, Fit>, BTreeMap<String, Vec<Pod>>) {
    let fits = all.iter().map(|(n, _)| ((*n).to_owned(), Fit::Runs)).collect();
    (fits, all.iter().map(|(n, p)| ((*n).to_owned(), p.clone())).collect())
}

#[test]
fn an_update_takes_as_many_old_pods_as_may_be_unavailable() {
    let ds = set(json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}));
    let run = |all: &[(&str, Vec<Pod>)]| {
        let (fits, pods) = by_node(all);
        moves(&ds, &fits, &pods, "new", now())
    };
    let old = |name: &str| vec![pod(name, "old", "Running", true)];
    let delete = |names: &[&str]| Moves { delete: names.iter().map(|n| (*n).to_owned()).collect(), create_on: vec![] };
    assert_eq!(run(&[("n1", old("a")), ("n2", old("b"))]), delete(&["a"]));
    assert_eq!(run(&[("n1", vec![pod("a2", "new", "Running", false)]), ("n2", old("b"))]), delete(&[]));
    assert_eq!(run(&[("n1", vec![pod("a2", "new", "Running", true)]), ("n2", old("b"))]), delete(&["b"]));
    let broken = vec![pod("x", "old", "Running", false)];
    assert_eq!(run(&[("n1", broken), ("n2", old("b"))]), delete(&["x"]), "an unavailable one goes whatever the limit");
}

#[test]
fn a_surging_update_puts_the_new_pod_first() {
    let ds = set(json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}));
    let old = pod("a", "old", "Running", true);
    let run = |all: &[(&str, Vec<Pod>)]| {
        let (fits, pods) = by_node(all);
        moves(&ds, &fits, &pods, "new", now())
    };
    let first = run(&[("n1", vec![old.clone()]), ("n2", vec![pod("b", "old", "Running", true)])]);
    assert_eq!((first.create_on.as_slice(), first.delete.len()), (["n1".to_owned()].as_slice(), 0));
    let coming = run(&[
        ("n1", vec![old.clone(), pod("a2", "new", "Running", false)]),
        ("n2", vec![pod("b", "old", "Running", true)]),
    ]);
    assert_eq!(coming, Moves::default());
    let there = run(&[("n1", vec![old, pod("a2", "new", "Running", true)])]);
    assert_eq!(there.delete, ["a"]);
}
