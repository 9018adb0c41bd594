//! Workloads on a whole cluster of the virtual world: what their controllers make of nodes that come and go, of updates and
//! of time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::{collections::BTreeSet, time::Duration};

use podlab_api::{
    apps::{ControllerRevision, DaemonSet, ReplicaSet, StatefulSet},
    core::{Event, PersistentVolumeClaim, Pod},
    k8s_openapi::api::batch::v1::{CronJob, Job},
};
use podlab_client::DeleteOptions;
use serde_json::{Value, json};
use world::{World, in_world, is_ready, name, phase};

const IMAGE: &str = "registry.test/testimage:1";
const MINUTE: Duration = Duration::from_secs(60);

fn template(labels: Value, command: Value) -> Value {
    json!({"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": IMAGE, "command": command}]}})
}

fn daemon_set(image_command: Value) -> DaemonSet {
    serde_json::from_value(json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"a": "d"}},
        "template": template(json!({"a": "d"}), image_command)}}))
    .unwrap()
}

fn nodes_of(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|p| p.spec.as_ref()?.node_name.clone()).collect()
}

#[test]
fn a_daemon_set_has_one_pod_on_each_node_through_updates_and_node_loss() {
    in_world(2, |w: World| async move {
        w.create(&daemon_set(json!(["sleep", "100000"]))).await;
        let both = |p: &[Pod]| p.len() == 2 && p.iter().all(is_ready) && nodes_of(p).len() == 2;
        let first = w.until::<Pod>("a Pod on each node", MINUTE, both).await;
        let ds = w.until_one::<DaemonSet>("agent", "its status", MINUTE, |d| {
            d.status.as_ref().is_some_and(|s| s.number_ready == 2 && s.number_available == Some(2))
        });
        let ds = ds.await;
        let status = ds.status.clone().unwrap();
        assert_eq!((status.desired_number_scheduled, status.current_number_scheduled), (2, 2));
        assert_eq!((status.number_misscheduled, status.updated_number_scheduled), (0, Some(2)));
        assert_eq!(ds.metadata.annotations.unwrap()["deprecated.daemonset.template.generation"], "1");
        let events = w.list::<Event>().await;
        let created = events.iter().filter(|e| e.reason.as_deref() == Some("SuccessfulCreate"));
        assert!(created.clone().all(|e| e.message.as_deref().unwrap().starts_with("Created pod: agent-")));
        assert_eq!(created.count(), 2);

        // One node after the other gets the new template.
        let patch = json!({"spec": {"template": template(json!({"a": "d"}), json!(["sleep", "200000"]))}});
        w.patch::<DaemonSet>("agent", &patch).await;
        let old: BTreeSet<String> = first.iter().map(name).collect();
        let renewed = |p: &[Pod]| both(p) && p.iter().all(|p| !old.contains(&name(p)));
        w.until::<Pod>("new Pods", 2 * MINUTE, renewed).await;
        assert_eq!(w.list::<ControllerRevision>().await.len(), 2);

        // A lost node keeps its Pod: it tolerates what drives others out.
        w.cluster.crash_node("node-2").unwrap();
        w.pass(Duration::from_secs(600)).await;
        let pods = w.list::<Pod>().await;
        assert_eq!((pods.len(), nodes_of(&pods).len()), (2, 2));
        assert!(pods.iter().all(|p| p.metadata.deletion_timestamp.is_none()));
        w.cluster.boot_node("node-2").unwrap();
        w.until::<Pod>("all Ready again", 5 * MINUTE, both).await;
    });
}

fn stateful_set(replicas: i32) -> StatefulSet {
    let mut template = template(json!({"a": "s"}), json!(["sh", "-c", "echo x >> /d/n; cat /d/n; sleep 100000"]));
    template["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]);
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas, "serviceName": "web",
        "selector": {"matchLabels": {"a": "s"}}, "template": template, "volumeClaimTemplates": [{"metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}]}}))
    .unwrap()
}

#[test]
fn a_stateful_set_makes_scales_and_renews_its_pods_in_order_and_keeps_their_claims() {
    in_world(1, |w: World| async move {
        w.create(&stateful_set(3)).await;
        let three = |p: &[Pod]| p.len() == 3 && p.iter().all(is_ready);
        let pods = w.until::<Pod>("three Pods", 3 * MINUTE, three).await;
        assert_eq!(pods.iter().map(name).collect::<Vec<_>>(), ["web-0", "web-1", "web-2"]);
        let ready_at = |p: &Pod| p.status.as_ref().unwrap().start_time.as_ref().unwrap().0;
        assert!(pods.windows(2).all(|p| ready_at(&p[0]) <= ready_at(&p[1])));
        let claims: Vec<String> = w.list::<PersistentVolumeClaim>().await.iter().map(name).collect();
        assert_eq!(claims, ["data-web-0", "data-web-1", "data-web-2"]);
        let said: BTreeSet<String> = w.list::<Event>().await.into_iter().filter_map(|e| e.message).collect();
        for text in [
            "Create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "Create Pod web-2 in StatefulSet web successful",
        ] {
            assert!(said.contains(text), "{text}: {said:?}");
        }

        // The last goes first; its claim stays.
        w.patch::<StatefulSet>("web", &json!({"spec": {"replicas": 1}})).await;
        let one = |p: &[Pod]| p.len() == 1 && name(&p[0]) == "web-0";
        w.until::<Pod>("one Pod", 2 * MINUTE, one).await;
        assert_eq!(w.list::<PersistentVolumeClaim>().await.len(), 3);
        w.patch::<StatefulSet>("web", &json!({"spec": {"replicas": 3}})).await;
        w.until::<Pod>("three Pods again", 2 * MINUTE, three).await;
        assert_eq!(w.log("web-2").await, "x\nx\n", "the claim is the one it had");
        assert_eq!(w.log("web-0").await, "x\n");

        // An update begins with the last and stops at the partition.
        let rolling = json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}},
            "template": {"metadata": {"annotations": {"v": "2"}}}}});
        let before: Vec<_> = w.list::<Pod>().await.into_iter().map(|p| p.metadata.uid).collect();
        w.patch::<StatefulSet>("web", &rolling).await;
        w.until::<Pod>("the last renewed", 2 * MINUTE, |p| three(p) && p[2].metadata.uid != before[2]).await;
        w.pass(MINUTE).await;
        let after: Vec<_> = w.list::<Pod>().await.into_iter().map(|p| p.metadata.uid).collect();
        assert_eq!(before[..2], after[..2]);
        let whole = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}});
        w.patch::<StatefulSet>("web", &whole).await;
        w.until::<Pod>("all renewed", 2 * MINUTE, |p| three(p) && p[0].metadata.uid != before[0]).await;
        let set = w.until_one::<StatefulSet>("web", "its update complete", MINUTE, |s| {
            s.status.as_ref().is_some_and(|s| s.current_revision == s.update_revision && s.updated_replicas == Some(3))
        });
        set.await;
    });
}

#[test]
fn a_stateful_pod_of_a_lost_node_is_not_doubled_and_comes_back_with_the_node() {
    // Two nodes: when all are silent, nobody is evicted.
    in_world(2, |w: World| async move {
        w.create(&stateful_set(1)).await;
        let pods = w.until::<Pod>("its Pod", MINUTE, |p| p.len() == 1 && is_ready(&p[0])).await;
        let uid = pods[0].metadata.uid.clone();
        let node = pods[0].spec.as_ref().and_then(|s| s.node_name.clone()).unwrap();
        w.cluster.crash_node(&node).unwrap();
        w.until::<Pod>("evicted", 8 * MINUTE, |p| p.iter().any(|p| p.metadata.deletion_timestamp.is_some())).await;
        w.pass(5 * MINUTE).await;
        let pods = w.list::<Pod>().await;
        assert_eq!((pods.len(), pods[0].metadata.uid.clone()), (1, uid.clone()), "nobody knows that it has ended");
        w.cluster.boot_node(&node).unwrap();
        let anew = |p: &[Pod]| p.len() == 1 && is_ready(&p[0]) && p[0].metadata.uid != uid;
        w.until::<Pod>("another with its name", 5 * MINUTE, anew).await;
        assert_eq!(w.log("web-0").await, "x\nx\n");
    });
}

fn job(spec: Value) -> Job {
    let mut spec = spec;
    let command = spec.as_object_mut().unwrap().remove("command").unwrap();
    spec["template"] = json!({"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": IMAGE, "command": command}]}});
    serde_json::from_value(json!({"metadata": {"name": "job"}, "spec": spec})).unwrap()
}

fn ended(job: &Job) -> Option<(String, String, String)> {
    let all = job.status.as_ref()?.conditions.as_ref()?;
    let end = all.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")?;
    Some((end.type_.clone(), end.reason.clone()?, end.message.clone()?))
}

async fn end_of(w: &World) -> (Job, (String, String, String)) {
    let job = w.until_one::<Job>("job", "its end", 30 * MINUTE, |j| ended(j).is_some()).await;
    let end = ended(&job).unwrap();
    (job, end)
}

#[test]
fn a_success_policy_ends_an_indexed_job_early() {
    in_world(1, |w: World| async move {
        w.create(&job(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed",
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "command": ["sh", "-c", "test $JOB_COMPLETION_INDEX = 0 || sleep 100000"]})))
            .await;
        let (job, (kind, reason, message)) = end_of(&w).await;
        assert_eq!(
            (kind.as_str(), reason.as_str(), message.as_str()),
            ("Complete", "SuccessPolicy", "Matched rules at index 0")
        );
        let status = job.status.unwrap();
        assert_eq!((status.completed_indexes.as_deref(), status.succeeded), (Some("0"), Some(1)));
    });
}

#[test]
fn each_index_has_its_own_back_off_limit() {
    in_world(1, |w: World| async move {
        w.create(&job(
            json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
            "command": ["sh", "-c", "test $JOB_COMPLETION_INDEX = 1"]}),
        ))
        .await;
        let (job, (kind, reason, message)) = end_of(&w).await;
        assert_eq!(
            (kind.as_str(), reason.as_str(), message.as_str()),
            ("Failed", "FailedIndexes", "Job has failed indexes")
        );
        let status = job.status.unwrap();
        assert_eq!((status.failed_indexes.as_deref(), status.completed_indexes.as_deref()), (Some("0"), Some("1")));
        assert_eq!((status.failed, status.succeeded), (Some(2), Some(1)));
        let counts: BTreeSet<String> = w
            .list::<Pod>()
            .await
            .into_iter()
            .filter(|p| phase(p) == "Failed")
            .filter_map(|p| p.metadata.annotations?.remove("batch.kubernetes.io/job-index-failure-count"))
            .collect();
        assert_eq!(counts, ["0".to_owned(), "1".to_owned()].into());
    });
}

#[test]
fn a_failure_policy_fails_the_job_at_once_for_an_exit_code() {
    in_world(1, |w: World| async move {
        w.create(&job(json!({"backoffLimit": 6, "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}}]},
            "command": ["sh", "-c", "exit 42"]})))
            .await;
        let (job, (kind, reason, message)) = end_of(&w).await;
        assert_eq!((kind.as_str(), reason.as_str()), ("Failed", "PodFailurePolicy"));
        assert!(message.ends_with("failed with exit code 42 matching FailJob rule at index 0"), "{message}");
        assert_eq!(job.status.unwrap().failed, Some(1));
    });
}

#[test]
fn a_suspended_job_lets_its_pods_go_and_counts_no_failure() {
    in_world(1, |w: World| async move {
        w.create(&job(json!({"parallelism": 2, "completions": 2, "backoffLimit": 0, "command": ["sleep", "20"]})))
            .await;
        w.until::<Pod>("both run", MINUTE, |p| p.len() == 2 && p.iter().all(is_ready)).await;
        w.patch::<Job>("job", &json!({"spec": {"suspend": true}})).await;
        w.until::<Pod>("none left", MINUTE, <[Pod]>::is_empty).await;
        w.patch::<Job>("job", &json!({"spec": {"suspend": false}})).await;
        let (job, (kind, ..)) = end_of(&w).await;
        let status = job.status.unwrap();
        assert_eq!((kind.as_str(), status.failed, status.succeeded), ("Complete", None, Some(2)));
    });
}

#[test]
fn a_cron_job_makes_a_job_each_minute_and_keeps_three() {
    in_world(1, |w: World| async move {
        let cron: CronJob =
            serde_json::from_value(json!({"metadata": {"name": "tick"}, "spec": {"schedule": "* * * * *",
            "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "command": ["true"]}]}}}}}}))
            .unwrap();
        w.create(&cron).await;
        let made = |n: usize| move |jobs: &[Job]| jobs.iter().filter(|j| ended(j).is_some()).count() == n;
        let jobs = w.until::<Job>("two Jobs", 3 * MINUTE, made(2)).await;
        let minutes: Vec<i64> = jobs.iter().map(|j| name(j).rsplit_once('-').unwrap().1.parse().unwrap()).collect();
        assert_eq!(minutes[1] - minutes[0], 1);
        w.pass(5 * MINUTE).await;
        let jobs = w.list::<Job>().await;
        assert_eq!(jobs.iter().filter(|j| ended(j).is_some()).count(), 3, "older ones are deleted");
        w.patch::<CronJob>("tick", &json!({"spec": {"suspend": true}})).await;
        w.pass(3 * MINUTE).await;
        assert_eq!(w.list::<Job>().await.iter().map(name).max(), jobs.iter().map(name).max());
        let said: BTreeSet<String> = w.list::<Event>().await.into_iter().filter_map(|e| e.reason).collect();
        for reason in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"] {
            assert!(said.contains(reason), "{reason}: {said:?}");
        }
        w.client.namespaced::<CronJob>("default").delete("tick", &DeleteOptions::default()).await.unwrap();
        w.until::<Pod>("all gone with it", MINUTE, <[Pod]>::is_empty).await;
    });
}

#[test]
fn an_orphaned_pod_outlives_its_owner() {
    in_world(1, |w: World| async move {
        let set: ReplicaSet = serde_json::from_value(json!({"metadata": {"name": "rs"}, "spec": {"replicas": 1,
            "selector": {"matchLabels": {"a": "r"}}, "template": template(json!({"a": "r"}), json!(["sleep", "100000"]))}}))
        .unwrap();
        w.create(&set).await;
        let first = w.until::<Pod>("a Pod", MINUTE, |p| p.len() == 1 && p.iter().all(is_ready)).await;
        let orphan = DeleteOptions { propagation: Some("Orphan"), ..DeleteOptions::default() };
        w.client.namespaced::<ReplicaSet>("default").delete("rs", &orphan).await.unwrap();
        w.until::<ReplicaSet>("no set", MINUTE, <[_]>::is_empty).await;
        w.pass(MINUTE).await;
        let left = w.list::<Pod>().await;
        assert_eq!(left.iter().map(name).collect::<Vec<_>>(), first.iter().map(name).collect::<Vec<_>>());
        assert!(left[0].metadata.owner_references.is_none() && left[0].metadata.deletion_timestamp.is_none());
    });
}
