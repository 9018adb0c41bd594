//! The order in which a StatefulSet's Pods come, go and are renewed.

use podlab_api::{
    apps::StatefulSet,
    core::{PersistentVolumeClaim, Pod},
    jiff::Timestamp,
};
use serde_json::{Value, json};

use super::{
    claims::{is_stale, missing, with_owner},
    plan::{Act, plan},
    pod::{has_identity, identify, make, parent_and_ordinal},
};

fn set(replicas: i32, more: Value) -> StatefulSet {
    let mut tree = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": {"replicas": replicas,
        "serviceName": "svc", "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [], "volumes": [{"name": "www"}, {"name": "own"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]}});
    tree["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(tree).unwrap()
}

/// `state` is a phase, `Ready` or `Going`.
fn pod(ordinal: i32, revision: &str, state: &str) -> Pod {
    let set = set(9, json!({}));
    let mut pod = make(&set, &set.spec.as_ref().unwrap().template, revision, ordinal);
    pod.metadata.uid = Some(format!("uid-{ordinal}"));
    let phase = if matches!(state, "Ready" | "Going") { "Running" } else { state };
    let ready = if state == "Ready" { "True" } else { "False" };
    pod.status = serde_json::from_value(json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready,
        "lastTransitionTime": "1970-01-01T00:00:01Z"}]}))
    .unwrap();
    if state == "Going" {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("1970-01-01T00:00:02Z")).unwrap();
    }
    pod
}

fn acts(set: &StatefulSet, pods: &[Pod]) -> Vec<Act> {
    plan(set, pods, "new", Timestamp::from_second(10).unwrap()).acts
}

fn delete(name: &str) -> Act {
    Act::Delete(name.to_owned())
}

#[test]
fn pods_come_one_after_the_other_when_the_one_before_is_ready() {
    let three = set(3, json!({}));
    assert_eq!(acts(&three, &[]), [Act::Create(0)]);
    assert_eq!(acts(&three, &[pod(0, "new", "Running")]), []);
    assert_eq!(acts(&three, &[pod(0, "new", "Pending")]), [Act::Claims(0)]);
    assert_eq!(acts(&three, &[pod(0, "new", "Ready")]), [Act::Create(1)]);
    assert_eq!(acts(&three, &[pod(0, "new", "Going")]), []);
    assert_eq!(acts(&three, &[pod(0, "new", "Ready"), pod(1, "new", "Failed")]), [delete("web-1")]);
    let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
    assert_eq!(acts(&parallel, &[]), [Act::Create(0), Act::Create(1), Act::Create(2)]);
    let late = set(2, json!({"ordinals": {"start": 5}}));
    assert_eq!(acts(&late, &[]), [Act::Create(5)]);
}

#[test]
fn the_last_goes_first_and_alone() {
    let one = set(1, json!({}));
    let ready = |n| pod(n, "new", "Ready");
    assert_eq!(acts(&one, &[ready(0), ready(1), ready(2)]), [delete("web-2")]);
    assert_eq!(acts(&one, &[ready(0), ready(1), pod(2, "new", "Going")]), []);
    assert_eq!(acts(&one, &[pod(0, "new", "Running"), ready(1)]), [], "the wanted ones have to be well first");
    assert_eq!(acts(&one, &[ready(0), pod(1, "new", "Running")]), [delete("web-1")], "a sick one may go itself");
    let parallel = set(0, json!({"podManagementPolicy": "Parallel"}));
    assert_eq!(acts(&parallel, &[ready(0), ready(1)]), [delete("web-1"), delete("web-0")]);
}

#[test]
fn an_update_renews_from_the_last_down_to_its_partition() {
    let old = |n| pod(n, "old", "Ready");
    let all = [old(0), old(1), old(2)];
    assert_eq!(acts(&set(3, json!({})), &all), [delete("web-2")]);
    assert_eq!(acts(&set(3, json!({})), &[old(0), old(1), pod(2, "new", "Going")]), []);
    assert_eq!(acts(&set(3, json!({})), &[old(0), old(1), pod(2, "new", "Ready")]), [delete("web-1")]);
    let rolling = |r: Value| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": r}});
    assert_eq!(acts(&set(3, rolling(json!({"partition": 2}))), &[old(0), old(1), pod(2, "new", "Ready")]), []);
    let two = set(3, rolling(json!({"maxUnavailable": 2})));
    assert_eq!(acts(&two, &all), [delete("web-2"), delete("web-1")]);
    assert_eq!(acts(&set(3, json!({"updateStrategy": {"type": "OnDelete"}})), &all), []);
}

#[test]
fn a_pod_has_its_name_its_place_and_its_claim() {
    assert_eq!(parent_and_ordinal("a-b-12"), Some(("a-b", 12)));
    assert_eq!(
        (parent_and_ordinal("web"), parent_and_ordinal("web-x"), parent_and_ordinal("web-")),
        (None, None, None)
    );
    let mut made = pod(1, "rev", "Ready");
    let spec = made.spec.clone().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("web-1"), Some("svc")));
    let volumes: Vec<_> =
        spec.volumes.unwrap().into_iter().map(|v| (v.name, v.persistent_volume_claim.map(|c| c.claim_name))).collect();
    assert_eq!(volumes, [("www".into(), Some("www-web-1".into())), ("own".into(), None)]);
    assert!(has_identity(&made));
    made.metadata.labels = None;
    assert!(!has_identity(&made));
    identify(&mut made);
    assert!(has_identity(&made));
}

#[test]
fn claims_go_with_set_or_pod_as_the_policy_says() {
    let policy = |deleted: &str, scaled: &str| {
        set(1, json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled}}))
    };
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "www-web-1"}})).unwrap();
    let owner = |set: &StatefulSet, ordinal: i32| {
        let pod = pod(ordinal, "new", "Ready");
        let changed = with_owner(set, &claim, ordinal, Some(&pod))?;
        assert_eq!(with_owner(set, &changed, ordinal, Some(&pod)), None, "twice is once");
        changed.metadata.owner_references?.first().map(|o| o.kind.clone())
    };
    assert_eq!(owner(&policy("Retain", "Retain"), 0), None);
    assert_eq!(owner(&policy("Delete", "Retain"), 1).as_deref(), Some("StatefulSet"));
    assert_eq!(owner(&policy("Retain", "Delete"), 1).as_deref(), Some("Pod"), "one too many");
    assert_eq!(owner(&policy("Retain", "Delete"), 0), None);
    let mut taken = claim.clone();
    taken.metadata.owner_references = serde_json::from_value(
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "x", "controller": true}]),
    )
    .unwrap();
    assert!(is_stale(&taken, "web-0") && !is_stale(&claim, "web-0"));
    assert_eq!(with_owner(&policy("Delete", "Delete"), &taken, 0, Some(&pod(0, "new", "Ready"))), None);
    let (wanted, verdict) = missing(&policy("Delete", "Retain"), 1, &[]);
    assert_eq!((wanted.len(), verdict.is_ok()), (1, true));
    let going: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": {"name": "www-web-1", "deletionTimestamp": "1970-01-01T00:00:02Z"}}))
            .unwrap();
    let (wanted, verdict) = missing(&policy("Retain", "Retain"), 1, &[going]);
    assert_eq!((wanted.len(), verdict.unwrap_err().message.as_str()), (0, "pvc www-web-1 is being deleted"));
}
