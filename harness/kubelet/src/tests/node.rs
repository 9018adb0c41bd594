//! What the agent does for the node: pressure, static Pods, shutdown, garbage.
use std::{path::Path, time::Duration};

use podlab_api::core::Pod;
use serde_json::{Value, json};

use super::{World, is_ready, one, phase, run, secs};
use crate::{
    CgroupStats, DiskStats, Host,
    config::ShutdownGroup,
    fake::{ImageScript, Script, Usage},
};

fn condition(w: &World, kind: &str) -> (String, String) {
    let nodes = w.api.all("nodes");
    let all = nodes[0].0["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let c = all.iter().find(|c| c["type"] == kind).cloned().unwrap_or_default();
    let text = |k: &str| c[k].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn pod_condition(p: &Value, kind: &str) -> Value {
    let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

fn node_events(w: &World) -> Vec<String> {
    let of_node = |e: &&std::sync::Arc<podlab_api::Object>| e.str_at(&["involvedObject", "kind"]) == Some("Node");
    let all = w.api.all("events");
    all.iter()
        .filter(of_node)
        .map(|e| format!("{}: {}", e.str_at(&["reason"]).unwrap(), e.str_at(&["message"]).unwrap()))
        .collect()
}

fn memory(bytes: u64) -> CgroupStats {
    CgroupStats { working_set: bytes, memory_usage: bytes, ..CgroupStats::default() }
}

fn named(container: &str) -> Value {
    let mut spec = one("sleep", json!({}));
    spec["containers"][0]["name"] = container.into();
    spec
}

#[test]
fn memory_pressure_evicts_the_pod_furthest_over_its_request_and_holds_the_condition_for_five_minutes() {
    run(async {
        let w = World::new().await;
        w.runtime.set_usage("hungry", Usage { memory: 900 << 20, layer: 0 });
        w.runtime.set_usage("modest", Usage { memory: 10 << 20, layer: 0 });
        w.create("a", named("hungry")).await;
        w.create("b", named("modest")).await;
        w.until("Ready", |w| is_ready(w, "a") && is_ready(w, "b")).await;
        w.host.set_cgroup("/", memory((4 << 30) - (50 << 20)));
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        w.host.set_cgroup("/", memory(1 << 30));
        let p = w.pod("a").unwrap();
        assert_eq!(p["status"]["reason"], "Evicted");
        let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container hungry \
                       was using 900Mi, request is 0, has larger consumption of memory. ";
        assert_eq!(p["status"]["message"], message);
        let target = pod_condition(&p, "DisruptionTarget");
        assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
        assert_eq!(target["message"], message);
        let all = w.api.all("events");
        let evicted = all.iter().find(|e| e.str_at(&["reason"]) == Some("Evicted")).unwrap();
        assert_eq!(evicted.0["type"], "Warning");
        assert_eq!(
            evicted.0["metadata"]["annotations"],
            json!({"offending_containers": "hungry", "offending_containers_usage": "900Mi", "starved_resource": "memory"})
        );
        assert!(node_events(&w).contains(&"EvictionThresholdMet: Attempting to reclaim memory".to_owned()));
        w.until("pressure", |w| condition(w, "MemoryPressure").0 == "True").await;
        assert_eq!(condition(&w, "MemoryPressure").1, "KubeletHasInsufficientMemory");

        // While it lasts, only Pods that asked for memory get in.
        w.create("c", named("late")).await;
        w.until("rejected", |w| phase(w, "c") == "Failed").await;
        assert_eq!(
            w.pod("c").unwrap()["status"]["message"],
            "Pod was rejected: The node had condition: [MemoryPressure]. "
        );
        let mut burstable = named("asked");
        burstable["containers"][0]["resources"] = json!({"requests": {"memory": "1Mi"}});
        w.create("d", burstable).await;
        w.until("Ready", |w| is_ready(w, "d")).await;
        let began = w.clock.now();
        w.until("calm", |w| condition(w, "MemoryPressure").0 == "False").await;
        let held = w.clock.now().since(began).as_secs();
        assert!((280..=311).contains(&held), "{held}");
        assert!(is_ready(&w, "b"));
        w.end().await;
    });
}

#[test]
fn disk_pressure_removes_unused_images_first_and_evicts_nobody_when_that_is_enough() {
    run(async {
        let w = World::new().await;
        w.runtime.image("old:1", ImageScript { present: true, ..ImageScript::default() });
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        // Seen first at five minutes; nothing younger than two goes.
        w.clock.sleep(secs(430)).await;
        let full =
            DiskStats { id: 1, capacity: 100 << 30, available: 5 << 30, used: 95 << 30, inodes: 100, inodes_free: 50 };
        let runtime = w.runtime.clone();
        w.host.disk_by(move || {
            let available = if runtime.images_present().len() > 1 { full.available } else { 90 << 30 };
            DiskStats { available, ..full }
        });
        w.until("pressure", |w| condition(w, "DiskPressure").0 == "True").await;
        w.until("image gone", |w| !w.runtime.images_present().contains(&"old:1".to_owned())).await;
        assert!(w.runtime.images_present().contains(&"img:1".to_owned()), "the image in use stays");
        w.until("calm", |w| condition(w, "DiskPressure") == ("False".into(), "KubeletHasNoDiskPressure".into())).await;
        assert!(is_ready(&w, "a"));
        w.end().await;
    });
}

#[test]
fn an_empty_dir_over_its_limit_ends_its_pod_and_a_critical_pod_is_never_evicted() {
    run(async {
        let w = World::new().await;
        let mut spec = one("sleep", json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
        spec["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "4"}}]);
        w.create("a", spec.clone()).await;
        spec["priority"] = 2_000_000_000.into();
        w.create("b", spec).await;
        w.until("Ready", |w| is_ready(w, "a") && is_ready(w, "b")).await;
        for name in ["a", "b"] {
            let uid = w.pod(name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
            let file = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/v/big");
            w.host.write(Path::new(&file), b"12345", 0o644).unwrap();
        }
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        let p = w.pod("a").unwrap();
        assert_eq!(p["status"]["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"4\". ");
        assert_eq!(pod_condition(&p, "DisruptionTarget"), Value::Null);
        w.clock.sleep(secs(60)).await;
        assert!(is_ready(&w, "b"));
        w.end().await;
    });
}

#[test]
fn pid_pressure_shows_and_evicts_by_priority() {
    run(async {
        let w = World::configured(None, |c| {
            let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {pid.available: 10%}";
            assert!(c.apply_file(text).unwrap().is_empty());
        })
        .await;
        let mut dear = named("dear");
        dear["priority"] = 10.into();
        w.create("a", dear).await;
        w.create("b", named("cheap")).await;
        w.until("Ready", |w| is_ready(w, "a") && is_ready(w, "b")).await;
        w.host.set_pids(1000, 950);
        w.until("Failed", |w| phase(w, "b") == "Failed").await;
        w.host.set_pids(1000, 10);
        assert!(
            w.pod("b").unwrap()["status"]["message"]
                .as_str()
                .unwrap()
                .starts_with("The node was low on resource: pids. Threshold quantity: 100, available: 50. ")
        );
        assert!(is_ready(&w, "a"));
        assert_eq!(condition(&w, "PIDPressure"), ("True".into(), "KubeletHasInsufficientPID".into()));
        w.end().await;
    });
}

const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: static, namespace: ns}\nspec:\n  containers: [{name: c, image: 'img:1'}]\n";

async fn with_manifest() -> World {
    let w = World::configured(None, |c| c.static_pod_path = Some("/manifests".into())).await;
    w.host.create_dir_all(Path::new("/manifests"), 0o755).unwrap();
    w.host.write(Path::new("/manifests/a.yaml"), MANIFEST.as_bytes(), 0o644).unwrap();
    w
}

#[test]
fn a_static_pod_runs_and_the_api_shows_it_as_a_mirror_that_cannot_be_got_rid_of() {
    run(async {
        let w = with_manifest().await;
        w.until("Ready", |w| is_ready(w, "static-node-1")).await;
        let mirror = w.pod("static-node-1").unwrap();
        let notes = &mirror["metadata"]["annotations"];
        assert_eq!(notes["kubernetes.io/config.source"], "file");
        assert_eq!(notes["kubernetes.io/config.mirror"], notes["kubernetes.io/config.hash"]);
        assert_eq!(mirror["metadata"]["ownerReferences"][0]["kind"], "Node");
        assert_ne!(mirror["metadata"]["uid"], notes["kubernetes.io/config.hash"]);
        let calls = w.runtime.calls();
        w.delete("static-node-1").await;
        let old = mirror["metadata"]["uid"].clone();
        w.until("made anew", |w| {
            is_ready(w, "static-node-1") && w.pod("static-node-1").unwrap()["metadata"]["uid"] != old
        })
        .await;
        assert_eq!(w.runtime.calls(), calls, "its containers do not notice");
        w.end().await;
    });
}

#[test]
fn a_changed_manifest_replaces_the_pod_and_a_removed_one_ends_it() {
    run(async {
        let w = with_manifest().await;
        w.until("Ready", |w| is_ready(w, "static-node-1")).await;
        let hash = |w: &World| {
            w.pod("static-node-1").map(|p| p["metadata"]["annotations"]["kubernetes.io/config.hash"].clone())
        };
        let before = hash(&w);
        let changed = MANIFEST.replace("name: c,", "name: c, args: [x],");
        w.host.write(Path::new("/manifests/a.yaml"), changed.as_bytes(), 0o644).unwrap();
        w.until("replaced", |w| hash(w) != before && is_ready(w, "static-node-1")).await;
        assert_eq!(w.runtime.counts(), (1, 1), "never two of a name");
        w.host.remove_file(Path::new("/manifests/a.yaml")).unwrap();
        w.until("gone", |w| w.pod("static-node-1").is_none() && w.runtime.counts() == (0, 0)).await;
        w.end().await;
    });
}

#[test]
fn an_agent_that_comes_back_leaves_static_pods_alone_and_removes_mirrors_nobody_stands_behind() {
    run(async {
        let mut w = with_manifest().await;
        w.until("Ready", |w| is_ready(w, "static-node-1")).await;
        let calls = w.runtime.calls();
        let started = w.pod("static-node-1").unwrap()["status"]["startTime"].clone();
        w.crash().await;
        w.clock.sleep(secs(5)).await;
        w.boot();
        w.clock.sleep(secs(60)).await;
        assert_eq!(w.runtime.calls(), calls);
        assert_eq!(w.pod("static-node-1").unwrap()["status"]["startTime"], started);
        assert!(is_ready(&w, "static-node-1"));
        w.crash().await;
        w.host.remove_file(Path::new("/manifests/a.yaml")).unwrap();
        w.boot();
        w.until("gone", |w| w.pod("static-node-1").is_none() && w.runtime.counts() == (0, 0)).await;
        w.end().await;
    });
}

#[test]
fn a_shutdown_ends_pods_by_priority_and_rejects_new_ones() {
    run(async {
        let group = |priority, s| ShutdownGroup { priority, grace: secs(s) };
        let w = World::configured(None, |c| c.shutdown = vec![group(0, 20), group(1000, 10)]).await;
        w.runtime.script("slow", vec![Script::forever().stubborn()]);
        let mut slow = named("slow");
        slow["terminationGracePeriodSeconds"] = 300.into();
        w.create("ordinary", slow).await;
        let mut dear = named("dear");
        dear["priority"] = 1000.into();
        w.create("critical", dear).await;
        w.until("Ready", |w| is_ready(w, "ordinary") && is_ready(w, "critical")).await;
        let at = Path::new(crate::shutdown::SCHEDULED);
        w.host.create_dir_all(at.parent().unwrap(), 0o755).unwrap();
        w.host.write(at, b"MODE=poweroff\n", 0o644).unwrap();
        let began = w.clock.now();
        w.clock.sleep(secs(18)).await;
        assert!(is_ready(&w, "critical") && phase(&w, "ordinary") == "Running", "the higher group waits its turn");
        w.until("first group", |w| phase(w, "ordinary") == "Failed").await;
        let took = w.clock.now().since(began).as_secs();
        assert!((19..=22).contains(&took), "the group's grace caps the Pod's own: {took}");
        let p = w.pod("ordinary").unwrap();
        assert_eq!(p["status"]["reason"], "Terminated");
        assert_eq!(p["status"]["message"], "Pod was terminated in response to imminent node shutdown.");
        assert_eq!(pod_condition(&p, "DisruptionTarget")["reason"], "TerminationByKubelet");
        w.until("second group", |w| phase(w, "critical") == "Failed").await;
        assert_eq!(condition(&w, "Ready"), ("False".into(), "KubeletNotReady".into()));
        w.create("late", named("late")).await;
        w.until("rejected", |w| phase(w, "late") == "Failed").await;
        assert_eq!(w.pod("late").unwrap()["status"]["reason"], "NodeShutdown");
        w.host.remove_file(at).unwrap();
        w.until("taken back", |w| condition(w, "Ready").0 == "True").await;
        w.end().await;
    });
}

#[test]
fn images_go_when_their_disk_is_full_the_longest_unused_first_and_not_before_their_time() {
    run(async {
        let w = World::configured(None, |c| c.eviction.thresholds.clear()).await;
        for name in ["one:1", "two:1"] {
            w.runtime.image(name, ImageScript { present: true, ..ImageScript::default() });
        }
        w.clock.sleep(secs(301)).await;
        assert_eq!(w.runtime.images_present().len(), 3, "the disk is not full");
        // A mebibyte too much is used: one image of that size goes, and no more.
        let mib = 1 << 20;
        w.host.set_disk(DiskStats {
            id: 1,
            capacity: 100 * mib,
            available: 15 * mib,
            used: 85 * mib,
            inodes: 9,
            inodes_free: 9,
        });
        w.clock.sleep(secs(300)).await;
        let left = w.runtime.images_present();
        assert!(left.is_empty(), "five were wanted, three there were: {left:?}");
        let said = node_events(&w);
        let message = format!(
            "FreeDiskSpaceFailed: Failed to garbage collect required amount of images. Attempted to free {} bytes, but only found {} bytes eligible to free.",
            5 * mib,
            3 * mib
        );
        assert!(said.contains(&message), "{said:?}");
        w.end().await;
    });
}

#[test]
fn of_dead_containers_the_newest_of_a_name_stays_with_its_log() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::exits(Duration::from_millis(100), 1)]);
        w.create("a", one("false", json!({}))).await;
        w.until("restarts", |w| w.pod("a").unwrap()["status"]["containerStatuses"][0]["restartCount"] == 3).await;
        w.clock.sleep(secs(61)).await;
        assert!(w.runtime.counts().1 <= 2, "{:?}", w.runtime.counts());
        w.end().await;
    });
}

#[test]
fn a_pod_with_a_sysctl_the_node_does_not_allow_is_refused() {
    run(async {
        let w = World::new().await;
        let mut spec = one("sleep", json!({}));
        spec["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "10000000000"}]});
        w.create("a", spec).await;
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        assert_eq!(w.pod("a").unwrap()["status"]["reason"], "SysctlForbidden");
        assert!(
            w.events().contains(&"SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted".to_owned())
        );
        w.end().await;
    });
}

#[test]
fn allocatable_is_capacity_less_reservations_and_hard_thresholds() {
    run(async {
        let w = World::configured(None, |c| {
            c.reserved = [("cpu".to_owned(), 250), ("memory".to_owned(), 1 << 30)].into();
        })
        .await;
        let node = &w.api.all("nodes")[0].0;
        assert_eq!(node["status"]["capacity"]["cpu"], "2");
        assert_eq!(node["status"]["allocatable"]["cpu"], "1750m");
        assert_eq!(node["status"]["capacity"]["memory"], "4194304Ki");
        assert_eq!(node["status"]["allocatable"]["memory"], format!("{}Ki", (3 << 20) - 100 * 1024));
        w.end().await;
    });
}

#[test]
fn a_mirror_in_the_api_is_never_run_as_a_pod() {
    run(async {
        let w = World::new().await;
        let tree = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m", "namespace": "ns",
            "annotations": {"kubernetes.io/config.mirror": "abc"}}, "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "img:1"}]}});
        let pod: Pod = podlab_api::Object(tree).to_typed().unwrap();
        w.client.namespaced::<Pod>("ns").create(&pod).await.unwrap();
        w.until("gone", |w| w.pod("m").is_none()).await;
        assert_eq!(w.runtime.counts(), (0, 0));
        w.end().await;
    });
}

#[test]
fn a_log_that_grew_too_large_is_rotated_and_of_the_older_ones_four_are_kept_compressed() {
    run(async {
        let w = World::configured(None, |c| c.container_log_max_size = 8).await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let uid = w.pod("a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let dir = std::path::PathBuf::from(format!("/var/log/pods/ns_a_{uid}/c"));
        w.host.create_dir_all(&dir, 0o755).unwrap();
        for n in 0..7 {
            w.host.write(&dir.join("0.log"), format!("line {n} and more").as_bytes(), 0o640).unwrap();
            w.clock.sleep(secs(10)).await;
        }
        let files = w.host.list(&dir).unwrap();
        let rotated: Vec<&String> = files.iter().filter(|f| f.starts_with("0.log.")).collect();
        assert_eq!(rotated.len(), 4, "{files:?}");
        let plain: Vec<_> = rotated.iter().filter(|f| !f.ends_with(".gz")).collect();
        assert_eq!(plain.len(), 1, "only the newest is not compressed: {files:?}");
        assert_eq!(w.host.text(&dir.join(plain[0])).unwrap(), "line 6 and more");
        let bytes = w.host.read_at(&dir.join(rotated[0]), 0, 1 << 20).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
        assert_eq!(text, "line 3 and more");
        w.end().await;
    });
}

#[test]
fn a_bound_on_processes_is_set_on_the_pods_cgroup() {
    run(async {
        let w = World::configured(None, |c| c.pod_pids_limit = 77).await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let pods: Vec<_> = w.host.cgroups().into_iter().filter(|(p, _)| p.contains("/pod")).collect();
        assert_eq!(pods.len(), 1);
        assert_eq!(pods[0].1.pids, Some(77));
        w.end().await;
    });
}

#[test]
fn a_critical_pod_that_does_not_fit_takes_the_place_of_another() {
    run(async {
        let w = World::new().await;
        let asks = |cpu: &str, priority: i32| {
            let mut spec = one("sleep", json!({"resources": {"requests": {"cpu": cpu}}}));
            spec["priority"] = priority.into();
            spec
        };
        w.create("victim", asks("1500m", 0)).await;
        w.until("Ready", |w| is_ready(w, "victim")).await;
        w.create("ordinary", asks("1", 1000)).await;
        w.until("rejected", |w| phase(w, "ordinary") == "Failed").await;
        assert!(is_ready(&w, "victim"), "priority alone takes nothing on the node");
        w.create("system", asks("1", 2_000_000_000)).await;
        w.until("Ready", |w| is_ready(w, "system")).await;
        w.until("preempted", |w| phase(w, "victim") == "Failed").await;
        let p = w.pod("victim").unwrap();
        assert_eq!(p["status"]["reason"], "Preempting");
        let target = pod_condition(&p, "DisruptionTarget");
        assert_eq!(target["reason"], "TerminationByKubelet");
        assert_eq!(target["message"], "Pod was preempted by Kubelet to accommodate a critical pod.");
        assert!(w.events().contains(&"Preempting: Preempted in order to admit critical pod".to_owned()));
        w.end().await;
    });
}

#[test]
fn a_label_the_agent_has_not_heard_of_lets_a_pod_in_and_one_the_node_has_not_refuses_it() {
    run(async {
        let w = World::new().await;
        w.api.label_unheard("node-1", "disk", "fast");
        let selecting = |value: &str| {
            let mut spec = one("sleep", json!({}));
            spec["nodeSelector"] = json!({"disk": value});
            spec
        };
        w.create("a", selecting("fast")).await;
        w.create("b", selecting("slow")).await;
        w.until("Failed", |w| phase(w, "b") == "Failed").await;
        assert_eq!(w.pod("b").unwrap()["status"]["reason"], "NodeAffinity");
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.end().await;
    });
}
