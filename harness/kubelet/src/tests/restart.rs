//! What an agent that starts finds, and must leave alone.
use std::time::Duration;

use serde_json::json;

use super::{World, follow, is_ready, one, phase, run, secs};
use crate::{fake::Script, host::Host};

fn ready_condition(p: &serde_json::Value) -> String {
    let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter()
        .find(|c| c["type"] == "Ready")
        .map(|c| c["status"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

#[test]
fn an_agent_that_comes_back_adopts_what_runs_without_a_flap() {
    run(async {
        let mut w = World::new().await;
        let probe = json!({"exec": {"command": ["ok"]}, "periodSeconds": 5});
        w.create("a", one("sleep", json!({"readinessProbe": probe}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let before = w.runtime.calls();
        let flaps = follow(&w, ready_condition);
        w.crash().await;
        w.clock.sleep(secs(3)).await;
        w.boot();
        w.clock.sleep(secs(120)).await;
        assert_eq!(w.runtime.calls(), before, "something was started or stopped");
        assert!(is_ready(&w, "a"));
        w.delete("a").await;
        w.until("gone", |w| w.pod("a").is_none()).await;
        let seen = flaps.await.unwrap();
        assert!(!seen[..seen.len().saturating_sub(1)].contains(&"False".to_owned()), "{seen:?}");
        w.end().await;
    });
}

#[test]
fn an_exit_that_nobody_saw_is_not_lost() {
    run(async {
        let mut w = World::new().await;
        w.runtime.script("c", vec![Script::exits(secs(5), 3)]);
        let mut spec = one("sleep", json!({}));
        spec["restartPolicy"] = "Never".into();
        w.create("a", spec).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        w.clock.sleep(secs(60)).await;
        w.boot();
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        assert_eq!(w.pod("a").unwrap()["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
        w.end().await;
    });
}

#[test]
fn what_a_container_said_at_its_end_outlives_an_agent_that_could_not_report_it() {
    run(async {
        let mut w = World::new().await;
        w.runtime.script("c", vec![Script::exits(secs(5), 0)]);
        let mut spec = one("sleep", json!({}));
        spec["restartPolicy"] = "Never".into();
        w.create("a", spec).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let uid = w.pod("a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let dir = w.config.pod_dir(&uid).join("containers/c");
        let file = w.host.list(&dir).unwrap().pop().unwrap();
        w.host.write(&dir.join(file), b"all done", 0o666).unwrap();
        // The Pod ends and is cleaned up, and nobody hears of it.
        w.api.refuse_statuses(true);
        w.clock.sleep(secs(30)).await;
        assert_eq!(phase(&w, "a"), "Running");
        w.crash().await;
        w.api.refuse_statuses(false);
        w.boot();
        w.until("Succeeded", |w| phase(w, "a") == "Succeeded").await;
        let ended = &w.pod("a").unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(ended["message"], "all done");
        w.delete("a").await;
        let left = |w: &World| w.host.list(&w.config.pod_dir(&uid)).unwrap_or_default();
        w.until("gone with all it had", |w| w.pod("a").is_none() && left(w).is_empty()).await;
        w.end().await;
    });
}

#[test]
fn what_was_deleted_meanwhile_is_stopped_and_removed() {
    run(async {
        let mut w = World::new().await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        let pods = w.client.namespaced::<podlab_api::core::Pod>("ns");
        let force = podlab_client::DeleteOptions { grace_period: Some(Duration::ZERO), ..Default::default() };
        pods.delete("a", &force).await.unwrap();
        w.boot();
        w.until("nothing left", |w| w.runtime.counts() == (0, 0)).await;
        w.end().await;
    });
}

#[test]
fn removing_an_orphan_takes_nothing_from_a_pod_that_comes_meanwhile() {
    run(async {
        let mut w = World::new().await;
        w.runtime.script("c", vec![Script::forever().stubborn(), Script::forever()]);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        let pods = w.client.namespaced::<podlab_api::core::Pod>("ns");
        let force = podlab_client::DeleteOptions { grace_period: Some(Duration::ZERO), ..Default::default() };
        pods.delete("a", &force).await.unwrap();
        w.boot();
        // The orphan takes its whole grace period to end; a Pod comes in the middle of that.
        w.clock.sleep(secs(5)).await;
        assert_eq!(w.runtime.counts().1, 1, "the orphan still runs");
        let mut spec = one("sleep", json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
        spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        w.create("b", spec).await;
        w.until("Ready", |w| is_ready(w, "b")).await;
        let uid = w.pod("b").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let volume = w.config.volume_dir(&uid, "kubernetes.io~empty-dir", "v");
        w.host.write(&volume.join("file"), b"mine", 0o644).unwrap();
        w.clock.sleep(secs(60)).await;
        assert_eq!(w.runtime.counts().1, 1, "the orphan is gone");
        assert_eq!(w.host.read_at(&volume.join("file"), 0, 10).unwrap(), b"mine");
        let cgroups: Vec<String> = w.host.cgroup_children("/kubepods/besteffort").unwrap();
        assert!(cgroups.contains(&format!("pod{uid}")), "{cgroups:?}");
        w.end().await;
    });
}

#[test]
fn a_cgroup_that_a_dead_agent_did_not_come_to_is_removed() {
    run(async {
        let mut w = World::new().await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        for path in ["/kubepods/podgone", "/kubepods/besteffort/podgone"] {
            w.host.cgroup_apply(path, &podlab_lifecycle::resources::PodCgroupLimits::default()).unwrap();
        }
        w.boot();
        let left = |w: &World| -> Vec<String> {
            let of = |class: &str| w.host.cgroup_children(class).unwrap();
            ["/kubepods", "/kubepods/besteffort"].into_iter().flat_map(of).filter(|c| c.starts_with("pod")).collect()
        };
        let uid = w.pod("a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        w.until("the orphans gone", |w| !left(w).contains(&"podgone".to_owned())).await;
        assert_eq!(left(&w), [format!("pod{uid}")], "the cgroup of a Pod that is there stays");
        w.end().await;
    });
}

/// Two init containers and a regular one.
fn in_order() -> serde_json::Value {
    let mut spec = one("sleep", json!({}));
    spec["initContainers"] = json!([{"name": "i1", "image": "img:1"}, {"name": "i2", "image": "img:1"}]);
    spec
}

fn starts(w: &World) -> Vec<String> {
    w.runtime.calls().into_iter().filter(|c| c.starts_with("StartContainer")).collect()
}

#[test]
fn a_crash_in_the_init_phase_neither_repeats_nor_skips_a_step() {
    for crash_at in [1, 3, 5, 7] {
        run(async {
            let mut w = World::new().await;
            w.runtime.script("i1", vec![Script::exits(secs(2), 0)]);
            w.runtime.script("i2", vec![Script::exits(secs(4), 0)]);
            w.create("a", in_order()).await;
            w.clock.sleep(secs(crash_at)).await;
            w.crash().await;
            w.clock.sleep(secs(2)).await;
            w.boot();
            w.until("Ready", |w| is_ready(w, "a")).await;
            assert_eq!(
                starts(&w),
                ["StartContainer i1", "StartContainer i2", "StartContainer c"],
                "crash at {crash_at}"
            );
            let status = w.pod("a").unwrap()["status"]["containerStatuses"][0].clone();
            assert_eq!(status["restartCount"], 0);
            w.end().await;
        });
    }
}

#[test]
fn a_node_that_lost_everything_starts_its_pods_anew_in_order() {
    run(async {
        let mut w = World::new().await;
        w.runtime.script("i1", vec![Script::exits(secs(1), 0)]);
        w.runtime.script("i2", vec![Script::exits(secs(1), 0)]);
        w.create("a", in_order()).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        w.runtime.lose_everything();
        w.clock.sleep(secs(30)).await;
        w.boot();
        w.until("started anew", |w| starts(w).len() == 6).await;
        w.until("Ready", |w| {
            is_ready(w, "a") && w.pod("a").unwrap()["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
        assert_eq!(starts(&w)[3..], ["StartContainer i1", "StartContainer i2", "StartContainer c"]);
        w.end().await;
    });
}

#[test]
fn a_crash_while_a_pod_ends_does_not_keep_it_from_ending() {
    for crash_at in [0, 2, 4] {
        run(async {
            let mut w = World::new().await;
            w.runtime.script("c", vec![Script::forever().stubborn()]);
            w.create("a", one("sleep", json!({}))).await;
            w.until("Ready", |w| is_ready(w, "a")).await;
            w.delete("a").await;
            w.clock.sleep(secs(crash_at)).await;
            w.crash().await;
            w.clock.sleep(secs(1)).await;
            w.boot();
            w.until("gone", |w| w.pod("a").is_none()).await;
            assert_eq!(w.runtime.counts(), (0, 0), "crash at {crash_at}");
            assert_eq!(starts(&w), ["StartContainer c"]);
            w.end().await;
        });
    }
}
