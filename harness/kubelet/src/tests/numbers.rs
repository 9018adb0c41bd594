//! The node agent's own numbers, to the millisecond. `suites/tests/world/table.rs` lists all numbers and where they are shown.

use std::path::Path;

use podlab_api::core::Pod;
use podlab_client::{DeleteOptions, PatchKind};
use podlab_clock::Mono;
use serde_json::json;

use super::{World, follow, is_ready, one, phase, run, secs, state};
use crate::{
    fake::{ImageScript, Script},
    host::{CgroupStats, DiskStats, Host},
};

/// When the world and its first agent began.
const BEGIN: Mono = Mono(0);

fn ms(n: u64) -> std::time::Duration {
    std::time::Duration::from_millis(n)
}

/// Something is not so a millisecond before `t` (counted from `from`), and is so right after it.
async fn turns(w: &World, from: Mono, t: std::time::Duration, what: &str, so: impl Fn(&World) -> bool) {
    w.clock.sleep_until(from.after(t - ms(1))).await;
    assert!(!so(w), "{what} earlier than {t:?}");
    // Everything of this instant happens before the next millisecond.
    w.clock.sleep_until(from.after(t + ms(1))).await;
    assert!(so(w), "{what} later than {t:?}");
}

fn condition(w: &World, kind: &str) -> String {
    let nodes = w.api.all("nodes");
    let all = nodes[0].0["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter()
        .find(|c| c["type"] == kind)
        .map(|c| c["status"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

fn memory_used(bytes: u64) -> CgroupStats {
    CgroupStats { working_set: bytes, memory_usage: bytes, ..CgroupStats::default() }
}

fn starts(w: &World) -> usize {
    w.runtime.calls().iter().filter(|c| c.starts_with("StartContainer")).count()
}

/// 2 s. Source: k/k pkg/kubelet/kubelet.go housekeepingPeriod.
#[test]
fn what_an_agent_finds_and_nobody_knows_is_stopped_at_the_first_housekeeping_after_two_seconds() {
    run(async {
        let mut w = World::new().await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.crash().await;
        let now = DeleteOptions { grace_period: Some(std::time::Duration::ZERO), ..Default::default() };
        w.client.namespaced::<Pod>("ns").delete("a", &now).await.unwrap();
        let began = w.clock.now();
        w.boot();
        turns(&w, began, secs(2), "the orphan is stopped", |w| {
            w.runtime.calls().iter().any(|c| c.starts_with("StopContainer") || c.starts_with("StopPodSandbox"))
        })
        .await;
        w.end().await;
    });
}

/// 60 s. Source: k/k pkg/kubelet/kubelet.go ContainerGCPeriod.
#[test]
fn garbage_is_collected_each_minute() {
    run(async {
        let w = World::new().await;
        let dir = Path::new("/var/log/pods/ns_gone_uid-of-nobody");
        w.host.create_dir_all(dir, 0o755).unwrap();
        turns(&w, BEGIN, secs(60), "the stray log is gone", |w| w.host.stat(dir).is_err()).await;
        w.host.create_dir_all(dir, 0o755).unwrap();
        turns(&w, BEGIN, secs(120), "the second one is gone", |w| w.host.stat(dir).is_err()).await;
        w.end().await;
    });
}

/// 5 m, from 85 % on, down to 80 %, nothing younger than 2 m. Source: k/k pkg/kubelet/kubelet.go ImageGCPeriod,
/// pkg/kubelet/apis/config/v1beta1/defaults.go ImageGCHighThresholdPercent, ImageGCLowThresholdPercent, ImageMinimumGCAge.
#[test]
fn unused_images_go_each_five_minutes_from_eighty_five_percent_on_down_to_eighty() {
    // Images of a mebibyte each on a disk of twenty; the tenths are of a mebibyte.
    for (used, left) in [(168, 3), (170, 2), (172, 1)] {
        run(async {
            let w = World::configured(None, |c| c.eviction.thresholds.clear()).await;
            for name in ["old:1", "old:2"] {
                w.runtime.image(name, ImageScript { present: true, ..ImageScript::default() });
            }
            let tenth = (1 << 20) / 10;
            let disk = |used: u64| DiskStats {
                id: 1,
                capacity: 200 * tenth,
                available: (200 - used) * tenth,
                used: used * tenth,
                inodes: 9,
                inodes_free: 9,
            };
            w.host.set_disk(disk(180));
            let there = |w: &World| w.runtime.images_present().len();
            // The agent has known one of them from its start, the others it sees at five minutes for the first time.
            turns(&w, BEGIN, secs(300), "the one that is old enough is gone", |w| there(w) == 2).await;
            w.host.set_disk(disk(used));
            w.runtime.image("old:3", ImageScript { present: true, ..ImageScript::default() });
            w.clock.sleep_until(BEGIN.after(secs(600) - ms(1))).await;
            assert_eq!(there(&w), 3, "{used}");
            w.clock.sleep_until(BEGIN.after(secs(600) + ms(1))).await;
            assert_eq!(there(&w), left, "{used}");
            w.end().await;
        });
    }
}

/// Looks each 10 s, the condition held for 5 m. Source: k/k pkg/kubelet/kubelet.go evictionMonitoringPeriod,
/// pkg/kubelet/apis/config/v1beta1/defaults.go EvictionPressureTransitionPeriod.
#[test]
fn pressure_is_looked_for_each_ten_seconds_and_shown_for_five_minutes_after_the_last_look_that_saw_it() {
    run(async {
        let w = World::new().await;
        w.clock.sleep_until(BEGIN.after(secs(12))).await;
        w.host.set_cgroup("/", memory_used((4 << 30) - (50 << 20)));
        turns(&w, BEGIN, secs(20), "pressure shows", |w| condition(w, "MemoryPressure") == "True").await;
        w.host.set_cgroup("/", memory_used(1 << 30));
        turns(&w, BEGIN, secs(320), "pressure is over", |w| condition(w, "MemoryPressure") == "False").await;
        w.end().await;
    });
}

/// A soft threshold waits for its own grace period, and its Pods get at most evictionMaxPodGracePeriod.
/// Source: k/k pkg/kubelet/eviction/eviction_manager.go synchronize, helpers.go thresholdsMetGracePeriod.
#[test]
fn a_soft_threshold_acts_after_its_grace_period_and_gives_the_pod_its_own() {
    run(async {
        let w = World::configured(None, |c| {
            let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionSoft: {memory.available: 500Mi}\n\
                        evictionSoftGracePeriod: {memory.available: 1m30s}\nevictionMaxPodGracePeriod: 7";
            assert!(c.apply_file(text).unwrap().is_empty());
        })
        .await;
        w.runtime.script("c", vec![Script::forever().stubborn()]);
        let mut spec = one("sleep", json!({}));
        spec["terminationGracePeriodSeconds"] = 600.into();
        w.create("a", spec).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.clock.sleep_until(BEGIN.after(secs(12))).await;
        w.host.set_cgroup("/", memory_used((4 << 30) - (200 << 20)));
        let evicted = |w: &World| w.events().iter().any(|e| e.starts_with("Evicted: "));
        // Seen first at 20 s.
        turns(&w, BEGIN, secs(110), "evicted", evicted).await;
        turns(&w, BEGIN, secs(117), "killed", |w| phase(w, "a") == "Failed").await;
        w.end().await;
    });
}

/// A hard threshold acts at the look that meets it, and gives 1 s, which is 2 s for a process: the least there is.
/// Source: k/k pkg/kubelet/eviction/eviction_manager.go immediateEvictionGracePeriodSeconds,
/// pkg/kubelet/kuberuntime/kuberuntime_container.go minimumGracePeriodInSeconds.
#[test]
fn a_hard_threshold_acts_at_once_and_gives_two_seconds() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::forever().stubborn()]);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.clock.sleep_until(BEGIN.after(secs(12))).await;
        w.host.set_cgroup("/", memory_used((4 << 30) - (50 << 20)));
        let evicted = |w: &World| w.events().iter().any(|e| e.starts_with("Evicted: "));
        turns(&w, BEGIN, secs(20), "evicted", evicted).await;
        turns(&w, BEGIN, secs(22), "killed", |w| phase(w, "a") == "Failed").await;
        w.end().await;
    });
}

/// One Pod a pass, and the next pass 30 s later at most while the first one is not gone.
/// Source: k/k pkg/kubelet/eviction/eviction_manager.go podCleanupTimeout.
#[test]
fn the_next_pod_is_evicted_when_the_first_is_gone_or_after_thirty_seconds() {
    run(async {
        let w = World::configured(None, |c| {
            let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionSoft: {memory.available: 500Mi}\n\
                        evictionSoftGracePeriod: {memory.available: 1s}\nevictionMaxPodGracePeriod: 600";
            assert!(c.apply_file(text).unwrap().is_empty());
        })
        .await;
        w.runtime.script("c", vec![Script::forever().stubborn()]);
        for name in ["a", "b"] {
            let mut spec = one("sleep", json!({}));
            spec["terminationGracePeriodSeconds"] = 600.into();
            w.create(name, spec).await;
        }
        w.until("Ready", |w| is_ready(w, "a") && is_ready(w, "b")).await;
        w.clock.sleep_until(BEGIN.after(secs(12))).await;
        w.host.set_cgroup("/", memory_used((4 << 30) - (200 << 20)));
        let evicted =
            |w: &World| w.api.all("events").iter().filter(|e| e.str_at(&["reason"]) == Some("Evicted")).count();
        turns(&w, BEGIN, secs(30), "the first", |w| evicted(w) == 1).await;
        turns(&w, BEGIN, secs(60), "the second", |w| evicted(w) == 2).await;
        w.end().await;
    });
}

/// 20 s, where the file system does not tell of changes. Source: k/k pkg/kubelet/apis/config/v1beta1/defaults.go
/// FileCheckFrequency, pkg/kubelet/config/file_linux.go.
#[test]
fn manifests_are_looked_for_each_twenty_seconds() {
    run(async {
        let w = World::configured(None, |c| c.static_pod_path = Some("/manifests".into())).await;
        // Whoever begins to watch now, at the next look, is told of nothing.
        w.host.tell_no_changes();
        w.host.create_dir_all(Path::new("/manifests"), 0o755).unwrap();
        w.clock.sleep_until(BEGIN.after(secs(23))).await;
        let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: s, namespace: ns}\nspec:\n  containers: [{name: c, image: 'img:1'}]\n";
        w.host.write(Path::new("/manifests/a.yaml"), manifest.as_bytes(), 0o644).unwrap();
        turns(&w, BEGIN, secs(40), "the static Pod starts", |w| starts(w) == 1).await;
        w.end().await;
    });
}

/// 10 s. Source: k/k pkg/kubelet/status/status_manager.go syncPeriod.
#[test]
fn a_status_that_somebody_else_wrote_over_is_put_right_each_ten_seconds() {
    run(async {
        let w = World::new().await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.clock.sleep_until(BEGIN.after(secs(33))).await;
        let body = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        w.client.namespaced::<Pod>("ns").patch_status("a", &PatchKind::Strategic, &body).await.unwrap();
        assert!(!is_ready(&w, "a"));
        turns(&w, BEGIN, secs(40), "Ready again", |w| is_ready(w, "a")).await;
        w.end().await;
    });
}

/// crashLoopBackOff.maxContainerRestartPeriod is the cap, and the first delay too when it is below 10 s; a worker comes
/// up to half as late again. Source: k/k pkg/kubelet/kubelet.go newCrashLoopBackOff, pkg/kubelet/pod_workers.go.
#[test]
fn a_crash_loop_waits_no_longer_than_the_node_is_told() {
    run(async {
        let w = World::configured(None, |c| {
            let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncrashLoopBackOff: {maxContainerRestartPeriod: 4s}";
            c.apply_file(text).unwrap();
        })
        .await;
        w.runtime.script("c", vec![Script::exits(ms(0), 1)]);
        let states = follow(&w, state);
        let mut at = Vec::new();
        w.create("a", one("sh", json!({}))).await;
        for n in 1..=5 {
            w.until("a start", |w| starts(w) >= n).await;
            at.push(w.clock.now());
        }
        assert!(at[1].since(at[0]) < secs(1), "the first one at once");
        for pair in at[1..].windows(2) {
            let waited = pair[1].since(pair[0]);
            assert!(waited >= ms(3990) && waited <= ms(6010), "{waited:?}");
        }
        states.abort();
        w.end().await;
    });
}

/// The runtime's log monitor: each 10 s. Source: k/k pkg/kubelet/apis/config/v1beta1/defaults.go ContainerLogMonitorInterval.
#[test]
fn logs_are_looked_at_each_ten_seconds() {
    run(async {
        let w = World::configured(None, |c| c.container_log_max_size = 10).await;
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.clock.sleep_until(BEGIN.after(secs(22))).await;
        let uid = w.pod("a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let dir = format!("/var/log/pods/ns_a_{uid}/c");
        w.host.create_dir_all(Path::new(&dir), 0o755).unwrap();
        w.host.write(Path::new(&format!("{dir}/0.log")), b"more than ten bytes", 0o640).unwrap();
        let rotated = |w: &World| w.host.list(Path::new(&dir)).unwrap().iter().any(|f| f.starts_with("0.log."));
        turns(&w, BEGIN, secs(30), "rotated", rotated).await;
        w.end().await;
    });
}
