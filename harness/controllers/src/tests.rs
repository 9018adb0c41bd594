//! The parts that are pure.

use podlab_api::apps::DeploymentSpec;
use serde_json::json;

use crate::deployment::{hash, limits};

fn spec(tree: serde_json::Value) -> DeploymentSpec {
    serde_json::from_value(tree).unwrap()
}

#[test]
fn surge_rounds_up_and_unavailability_down() {
    let base = |replicas: i32, strategy: serde_json::Value| {
        spec(json!({"replicas": replicas, "selector": {}, "template": {}, "strategy": strategy}))
    };
    assert_eq!(limits(&base(2, json!({}))), (1, 0));
    assert_eq!(limits(&base(10, json!({}))), (3, 2));
    assert_eq!(limits(&base(4, json!({"type": "Recreate"}))), (0, 4));
    assert_eq!(limits(&base(4, json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}))), (0, 1));
}

#[test]
fn the_hash_ignores_its_own_label_and_changes_with_the_template() {
    let a = spec(json!({"selector": {}, "template": {"metadata": {"labels": {"a": "1"}}}})).template;
    let labelled =
        spec(json!({"selector": {}, "template": {"metadata": {"labels": {"a": "1", "pod-template-hash": "x"}}}}))
            .template;
    let other = spec(json!({"selector": {}, "template": {"metadata": {"labels": {"a": "2"}}}})).template;
    assert_eq!(hash(&a, 0), hash(&labelled, 0));
    assert_ne!(hash(&a, 0), hash(&other, 0));
    assert_ne!(hash(&a, 0), hash(&a, 1));
    assert_eq!(hash(&a, 0).len(), 10);
}

#[test]
fn the_shortest_toleration_counts_and_none_means_now() {
    use podlab_api::{
        core::{Pod, Taint},
        jiff::Timestamp,
    };
    let taint: Taint =
        serde_json::from_value(json!({"key": "k", "effect": "NoExecute", "timeAdded": "1970-01-01T00:00:10Z"}))
            .unwrap();
    let pod = |tolerations: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).unwrap()
    };
    let now = Timestamp::from_second(100).unwrap();
    let due = |p: &Pod| crate::taint_eviction::deadline(p, std::slice::from_ref(&taint), now).map(|t| t.as_second());
    assert_eq!(due(&pod(json!([]))), Some(100));
    assert_eq!(due(&pod(json!([{"key": "k", "operator": "Exists"}]))), None);
    let two = json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}, {"key": "k", "operator": "Exists", "tolerationSeconds": 5}]);
    assert_eq!(due(&pod(two)), Some(15));
}

#[test]
fn a_replication_controller_is_a_replica_set_with_a_plain_selector() {
    use podlab_api::{apps::ReplicaSetStatus, core::ReplicationController, matching::selects};

    use crate::replicated::Replicated;
    let elder: ReplicationController = serde_json::from_value(json!({
        "metadata": {"name": "rc"}, "spec": {"replicas": 3, "selector": {"a": "b"}, "template": {}},
        "status": {"replicas": 1, "readyReplicas": 1, "conditions": [{"type": "ReplicaFailure", "status": "True"}]}}))
    .unwrap();
    let set = elder.as_set();
    let spec = set.spec.unwrap();
    assert_eq!(spec.replicas, Some(3));
    assert!(selects(&spec.selector, &[("a".to_owned(), "b".to_owned())].into()));
    assert!(!selects(&spec.selector, &[("a".to_owned(), "c".to_owned())].into()));
    let status = set.status.unwrap();
    assert_eq!((status.ready_replicas, status.conditions.as_ref().map(Vec::len)), (Some(1), Some(1)));
    let next = elder.with_status(ReplicaSetStatus { replicas: 2, terminating_replicas: Some(1), ..status });
    assert_eq!(next.status.unwrap().replicas, 2);
}
