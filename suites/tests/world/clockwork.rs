//! Numbers of nodes and controllers that no scenario can say, to the millisecond: what a client of the API sees of leases,
//! node statuses, taints, collected Pods and detached volumes. [`super::table`] lists all numbers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use futures::StreamExt;
use podlab_api::{
    KubeType,
    coordination::Lease,
    core::{Event, Node, Pod},
    storage::VolumeAttachment,
};
use podlab_client::{Client, DeleteOptions, WatchOptions, WatchType};
use podlab_clock::{Clock, Mono};
use podlab_testbed::{
    ClusterSpec,
    world::{self, Disturbance, VirtualCluster, WorldSpec},
};
use serde_json::{Value, json};

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Plays with a virtual cluster whose nodes are Ready.
fn on_cluster<F: Future<Output = ()>>(nodes: u8, test: impl FnOnce(Rc<VirtualCluster>) -> F) {
    let played = world::run(|| async {
        let cluster = ClusterSpec { nodes, seed: 3, ..ClusterSpec::named("virtual") };
        let spec = WorldSpec { cluster, disturbance: Disturbance::default() };
        let cluster = Rc::new(VirtualCluster::boot(spec).await.unwrap());
        cluster.wait_ready(secs(60)).await.unwrap();
        test(cluster.clone()).await;
        if let Some(cluster) = Rc::into_inner(cluster) {
            cluster.end().await;
        }
    });
    played.unwrap();
}

/// What a watcher has seen of a kind so far: when, what, and whether it was gone.
type Seen<K> = Rc<RefCell<Vec<(Mono, K, bool)>>>;

/// Watches a kind in all namespaces while `body` runs.
async fn watching<K: KubeType, F: Future<Output = ()>>(client: Client, clock: Clock, body: impl FnOnce(Seen<K>) -> F) {
    let seen: Seen<K> = Rc::default();
    let (log, all) = (seen.clone(), client.all::<K>());
    let watch = async move {
        let mut stream = all.watch(&WatchOptions::default()).await.unwrap().boxed();
        while let Some(Ok(event)) = stream.next().await {
            if event.kind != WatchType::Bookmark {
                log.borrow_mut().push((clock.now(), event.object, event.kind == WatchType::Deleted));
            }
        }
    };
    tokio::select! {
        biased;
        () = body(seen) => {}
        () = watch => panic!("the watch ended"),
    }
}

fn tree<K: KubeType>(object: &K) -> Value {
    serde_json::to_value(object).unwrap()
}

fn made<K: KubeType>(tree: Value) -> K {
    serde_json::from_value(tree).unwrap()
}

async fn pod(client: &Client, name: &str, node: &str, claim: Option<&str>) {
    let volumes = claim.map(|c| json!([{"name": "d", "persistentVolumeClaim": {"claimName": c}}]));
    let mounts = claim.map(|_| json!([{"name": "d", "mountPath": "/d"}]));
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1, "volumes": volumes, "containers": [{"name": "c", "image": "registry.test/testimage:1",
        "command": ["sleep", "100000"], "volumeMounts": mounts}]}});
    client.namespaced::<Pod>("default").create(&made(pod)).await.unwrap();
}

/// Waits for what a watcher sees; the moment it was first so.
async fn first<K>(seen: &Seen<K>, clock: Clock, within: Duration, so: impl Fn(&K, bool) -> bool) -> Mono {
    let end = clock.now().after(within);
    loop {
        if let Some((at, ..)) = seen.borrow().iter().find(|(_, o, gone)| so(o, *gone)) {
            return *at;
        }
        assert!(clock.now() < end, "not within {within:?}");
        clock.sleep(Duration::from_millis(100)).await;
    }
}

fn has_taint(node: &Node, key: &str, effect: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|t| t.key == key && t.effect == effect)
}

fn ready_is(node: &Node, status: &str) -> bool {
    let all = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    all.iter().any(|c| c.type_ == "Ready" && c.status == status)
}

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// 40 s, renewed each 10 s and up to 4 % later. Source: k/k pkg/kubelet/apis/config/v1beta1/defaults.go
/// NodeLeaseDurationSeconds, pkg/kubelet/kubelet.go nodeLeaseRenewIntervalFraction,
/// staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go Run.
#[test]
fn a_lease_of_forty_seconds_is_renewed_each_ten() {
    on_cluster(1, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        watching::<Lease, _>(client, clock, |seen| async move {
            clock.sleep(secs(121)).await;
            let seen = seen.borrow();
            let leases: Vec<_> = seen.iter().filter(|(_, l, _)| l.metadata.name.as_deref() == Some("node-1")).collect();
            assert!(leases.len() >= 11, "{}", leases.len());
            assert!(leases.iter().all(|(_, l, _)| l.spec.as_ref().unwrap().lease_duration_seconds == Some(40)));
            for pair in leases[1..].windows(2) {
                let waited = pair[1].0.since(pair[0].0);
                assert!(waited >= secs(10) && waited <= Duration::from_millis(10_401), "{waited:?}");
            }
        })
        .await;
    });
}

/// Looked at each 10 s, written each 5 m when nothing changed, the first time anywhere from half to one and a half of that.
/// Source: k/k pkg/kubelet/apis/config/v1beta1/defaults.go NodeStatusUpdateFrequency, NodeStatusReportFrequency,
/// pkg/kubelet/kubelet_node_status.go calculateDelay.
#[test]
fn a_node_status_is_written_each_five_minutes_when_nothing_changes() {
    on_cluster(1, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        clock.sleep(secs(30)).await;
        watching::<Node, _>(client, clock, |seen| async move {
            clock.sleep(secs(2400)).await;
            let seen = seen.borrow();
            let mut beats: Vec<Mono> = Vec::new();
            let mut last = String::new();
            for (at, node, _) in seen.iter() {
                let beat =
                    tree(node)["status"]["conditions"][0]["lastHeartbeatTime"].as_str().unwrap_or_default().to_owned();
                if beat != last && !last.is_empty() {
                    beats.push(*at);
                }
                last = beat;
            }
            assert!(beats.len() >= 5, "{beats:?}");
            assert!(beats[0].since(Mono(0)) >= secs(150) && beats[0].since(Mono(0)) <= secs(461), "{beats:?}");
            for pair in beats.windows(2) {
                let waited = pair[1].since(pair[0]);
                assert!(waited >= secs(300) && waited <= Duration::from_millis(310_401), "{waited:?}");
            }
        })
        .await;
    });
}

/// 50 s. Source: k/k pkg/controller/nodelifecycle/config/v1alpha1/defaults.go NodeMonitorGracePeriod.
#[test]
fn a_node_is_given_up_fifty_seconds_after_its_last_sign_of_life() {
    on_cluster(2, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        watching::<Lease, _>(client.clone(), clock, |leases| async move {
            watching::<Node, _>(client, clock, |nodes| async move {
                clock.sleep(secs(33)).await;
                cluster.crash_node("node-1").unwrap();
                let is = |n: &Node| n.metadata.name.as_deref() == Some("node-1");
                let lost = first(&nodes, clock, secs(120), |n, _| is(n) && ready_is(n, "Unknown")).await;
                let renewed = leases
                    .borrow()
                    .iter()
                    .filter(|(_, l, _)| l.metadata.name.as_deref() == Some("node-1"))
                    .map(|(at, ..)| *at)
                    .max();
                let told =
                    nodes.borrow().iter().filter(|(_, n, _)| is(n) && ready_is(n, "True")).map(|(at, ..)| *at).max();
                assert_eq!(lost.since(renewed.max(told).unwrap()), secs(50));
                let nodes = nodes.borrow();
                let (_, node, _) = nodes.iter().find(|(at, n, _)| *at == lost && is(n)).unwrap();
                let ready = tree(node)["status"]["conditions"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|c| c["type"] == "Ready")
                    .cloned()
                    .unwrap();
                assert_eq!(ready["reason"], "NodeStatusUnknown");
                assert_eq!(ready["message"], "Kubelet stopped posting node status.");
            })
            .await;
        })
        .await;
    });
}

/// 60 s. Source: k/k pkg/controller/nodelifecycle/config/v1alpha1/defaults.go NodeStartupGracePeriod.
#[test]
fn a_node_that_never_told_of_itself_is_given_up_after_sixty_seconds() {
    on_cluster(1, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        watching::<Node, _>(client.clone(), clock, |nodes| async move {
            clock.sleep(secs(7)).await;
            let made_at = clock.now();
            client.all::<Node>().create(&made(json!({"metadata": {"name": "ghost"}}))).await.unwrap();
            let is = |n: &Node| n.metadata.name.as_deref() == Some("ghost");
            let lost = first(&nodes, clock, secs(120), |n, _| is(n) && ready_is(n, "Unknown")).await;
            assert_eq!(lost.since(made_at), secs(60));
            let nodes = nodes.borrow();
            let (_, node, _) = nodes.iter().find(|(at, n, _)| *at == lost && is(n)).unwrap();
            assert_eq!(tree(node)["status"]["conditions"][0]["reason"], "NodeStatusNeverUpdated");
        })
        .await;
    });
}

/// 0.1 a second and zone, the first at once. Source: k/k pkg/controller/nodelifecycle/config/v1alpha1/defaults.go
/// NodeEvictionRate; node_lifecycle_controller.go doNoExecuteTaintingPass.
#[test]
fn of_nodes_lost_together_one_each_ten_seconds_has_its_pods_driven_off() {
    on_cluster(5, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        watching::<Node, _>(client, clock, |nodes| async move {
            clock.sleep(secs(25)).await;
            cluster.crash_node("node-1").unwrap();
            cluster.crash_node("node-2").unwrap();
            clock.sleep(secs(120)).await;
            let mut tainted: BTreeMap<String, Mono> = BTreeMap::new();
            let mut lost: BTreeMap<String, Mono> = BTreeMap::new();
            for (at, n, _) in nodes.borrow().iter() {
                let name = n.metadata.name.clone().unwrap();
                if has_taint(n, UNREACHABLE, "NoExecute") {
                    tainted.entry(name.clone()).or_insert(*at);
                }
                if has_taint(n, UNREACHABLE, "NoSchedule") {
                    lost.entry(name).or_insert(*at);
                }
            }
            assert_eq!(tainted.len(), 2, "{tainted:?}");
            let (a, b) = (tainted["node-1"], tainted["node-2"]);
            assert_eq!(a.max(b).since(a.min(b)), secs(10));
            let apart = lost["node-1"].max(lost["node-2"]).since(lost["node-1"].min(lost["node-2"]));
            assert!(apart < secs(2), "lost at nearly the same time: {apart:?}");
            assert_eq!(a.min(b), lost["node-1"].min(lost["node-2"]), "the first at once");
        })
        .await;
    });
}

/// Source: k/k pkg/controller/nodelifecycle/node_lifecycle_controller.go handleDisruption.
#[test]
fn when_every_node_is_silent_nobody_is_driven_off() {
    on_cluster(2, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        pod(&client, "a", "node-1", None).await;
        clock.sleep(secs(30)).await;
        for n in ["node-1", "node-2"] {
            cluster.crash_node(n).unwrap();
        }
        clock.sleep(secs(1200)).await;
        let nodes = client.all::<Node>();
        for name in ["node-1", "node-2"] {
            let node = nodes.get(name).await.unwrap();
            assert!(ready_is(&node, "Unknown") && !has_taint(&node, UNREACHABLE, "NoExecute"), "{name}");
            assert!(has_taint(&node, UNREACHABLE, "NoSchedule"), "{name}");
        }
        let a = client.namespaced::<Pod>("default").get("a").await.unwrap();
        assert!(a.metadata.deletion_timestamp.is_none());
        cluster.boot_node("node-2").unwrap();
        clock.sleep(secs(400)).await;
        let a = client.namespaced::<Pod>("default").get("a").await.unwrap();
        assert!(a.metadata.deletion_timestamp.is_some(), "one is back, so the other is really lost");
    });
}

/// Looked for each 20 s, gone after 40 s without a node. Source: k/k pkg/controller/podgc/gc_controller.go gcCheckPeriod,
/// quarantineTime.
#[test]
fn a_pod_whose_node_is_deleted_goes_forty_seconds_later() {
    on_cluster(2, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        pod(&client, "a", "node-1", None).await;
        clock.sleep(secs(13)).await;
        watching::<Pod, _>(client.clone(), clock, |pods| async move {
            cluster.crash_node("node-1").unwrap();
            let deleted = clock.now();
            client.all::<Node>().delete("node-1", &DeleteOptions::default()).await.unwrap();
            let gone = first(&pods, clock, secs(120), |p, gone| gone && p.metadata.name.as_deref() == Some("a")).await;
            // Missing since 13 s, looked at each 20 s: gone at the first look that is 40 s later.
            assert!(gone.since(deleted) >= secs(40));
            assert_eq!(gone, Mono(60_000_000_000));
            let pods = pods.borrow();
            let (_, last, _) = pods.iter().rev().find(|(_, p, _)| p.metadata.name.as_deref() == Some("a")).unwrap();
            let status = tree(last)["status"].clone();
            assert_eq!(status["phase"], "Failed");
            let target = status["conditions"]
                .as_array()
                .unwrap()
                .iter()
                .find(|c| c["type"] == "DisruptionTarget")
                .cloned()
                .unwrap();
            assert_eq!(
                (target["reason"].as_str(), target["message"].as_str()),
                (Some("DeletionByPodGC"), Some("PodGC: node no longer exists"))
            );
        })
        .await;
    });
}

/// A volume of ours that must be attached, on no node in particular.
async fn attachable(client: &Client) {
    let drivers = client.all::<podlab_api::storage::CSIDriver>();
    drivers.delete("csi.podlab.dev", &DeleteOptions::default()).await.unwrap();
    drivers
        .create(&made(json!({"metadata": {"name": "csi.podlab.dev"}, "spec": {"attachRequired": true}})))
        .await
        .unwrap();
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "", "csi": {"driver": "csi.podlab.dev", "volumeHandle": "h"}}});
    client.all::<podlab_api::core::PersistentVolume>().create(&made(volume)).await.unwrap();
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}});
    client.namespaced::<podlab_api::core::PersistentVolumeClaim>("default").create(&made(claim)).await.unwrap();
}

/// 6 m. Source: k/k pkg/controller/volume/attachdetach/config ReconcilerMaxWaitForUnmountDuration, reconciler.go.
/// With the events of D.3 14: Multi-Attach once, then AttachVolume.Attach succeeded when the volume is free.
#[test]
fn a_volume_of_a_lost_node_is_detached_by_force_six_minutes_after_its_pod_is_gone() {
    on_cluster(2, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        attachable(&client).await;
        pod(&client, "a", "node-1", Some("data")).await;
        clock.sleep(secs(30)).await;
        watching::<VolumeAttachment, _>(client.clone(), clock, |attachments| async move {
            let on = |a: &VolumeAttachment, node: &str| a.spec.node_name == node;
            let attached = |a: &VolumeAttachment| a.status.as_ref().is_some_and(|s| s.attached);
            first(&attachments, clock, secs(10), |a, _| on(a, "node-1") && attached(a)).await;
            // In use on the node, as the node itself says.
            let node = client.all::<Node>().get("node-1").await.unwrap();
            assert_eq!(tree(&node)["status"]["volumesInUse"], json!(["kubernetes.io/csi/csi.podlab.dev^h"]));
            cluster.crash_node("node-1").unwrap();
            clock.sleep(secs(100)).await;
            pod(&client, "b", "node-2", Some("data")).await;
            clock.sleep(secs(10)).await;
            let now = DeleteOptions { grace_period: Some(Duration::ZERO), ..DeleteOptions::default() };
            let removed = clock.now();
            client.namespaced::<Pod>("default").delete("a", &now).await.unwrap();
            let detached = first(&attachments, clock, secs(600), |a, gone| gone && on(a, "node-1")).await;
            assert_eq!(detached.since(removed), secs(360));
            first(&attachments, clock, secs(60), |a, _| on(a, "node-2") && attached(a)).await;
            clock.sleep(secs(6)).await;
            let (events, _) = client.namespaced::<Event>("default").list(&Default::default()).await.unwrap();
            let mut of_b: Vec<_> = events
                .iter()
                .map(tree)
                .filter(|e| e["involvedObject"]["name"] == "b" && e["source"]["component"] == "attachdetach-controller")
                .collect();
            of_b.sort_by_key(|e| e["firstTimestamp"].as_str().map(str::to_owned));
            let said: Vec<_> = of_b
                .iter()
                .map(|e| {
                    (
                        e["type"].as_str().unwrap(),
                        e["reason"].as_str().unwrap(),
                        e["message"].as_str().unwrap(),
                        e["count"].as_u64().unwrap(),
                    )
                })
                .collect();
            assert_eq!(
                said,
                [
                    (
                        "Warning",
                        "FailedAttachVolume",
                        "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) a",
                        1
                    ),
                    ("Normal", "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"pv\" ", 1),
                ]
            );
        })
        .await;
    });
}

/// D.3 13 (a): a Pod that is evicted by the API is told of by Killing alone; a condition says who it was.
/// Source: k/k pkg/registry/core/pod/storage/eviction.go.
#[test]
fn sequence_13_an_eviction_by_the_api_is_told_of_by_killing_alone() {
    on_cluster(1, |cluster| async move {
        let (client, clock) = (cluster.client(), cluster.clock());
        pod(&client, "a", "node-1", None).await;
        clock.sleep(secs(10)).await;
        let evictor = client.clone();
        watching::<Pod, _>(client.clone(), clock, |pods| async move {
            let client = evictor;
            let eviction = podlab_api::Object(json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "default"}}));
            let collection = podlab_client::Collection { resource: podlab_api::ResourceRef::of::<Pod>(), namespace: Some("default".into()) };
            client.raw().create(&collection, Some(("a", "eviction")), eviction).await.unwrap();
            first(&pods, clock, secs(30), |_, gone| gone).await;
            let target = pods.borrow().iter().find_map(|(_, p, _)| {
                tree(p)["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "DisruptionTarget").cloned()
            });
            let target = target.unwrap();
            assert_eq!((target["reason"].as_str(), target["message"].as_str()), (Some("EvictionByEvictionAPI"), Some("Eviction API: evicting")));
        })
        .await;
        let (events, _) = client.namespaced::<Event>("default").list(&Default::default()).await.unwrap();
        let of_a = events.iter().map(tree).filter(|e| e["involvedObject"]["name"] == "a");
        let mut said: Vec<_> = of_a.map(|e| format!("{} {}", e["reason"].as_str().unwrap(), e["count"])).collect();
        said.sort();
        assert_eq!(said, ["Created 1", "Killing 1", "Pulled 1", "Pulling 1", "Scheduled null", "Started 1"]);
    });
}
