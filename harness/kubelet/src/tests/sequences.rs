//! Sequences of events that no scenario can bring about: kubernetes-facts D.3 13 (b) and 19. The others are
//! `scenarios/sequences`.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use futures::StreamExt;
use serde_json::json;

use super::{World, is_ready, one, phase, run, secs};
use crate::{
    config::ShutdownGroup,
    fake::Usage,
    host::{CgroupStats, Host},
};

/// The events of a kind of object: type, reason, message, count. Written first, listed first.
type Told = Rc<RefCell<BTreeMap<(String, usize), String>>>;

/// Collects events as they are written, from now on.
fn listen(w: &World) -> (Told, tokio::task::JoinHandle<()>) {
    let (told, mut changes) = (Told::default(), w.api.changes("events"));
    let log = told.clone();
    let task = tokio::task::spawn_local(async move {
        let mut order: Vec<String> = Vec::new();
        while let Some(change) = changes.next().await {
            let e = &change.object;
            let place = order.iter().position(|n| n == e.name()).unwrap_or_else(|| {
                order.push(e.name().to_owned());
                order.len() - 1
            });
            let text = |key: &str| e.str_at(&[key]).unwrap_or_default().to_owned();
            let line = format!("{} {} ×{}: {}", text("type"), text("reason"), e.0["count"], text("message"));
            let kind = e.str_at(&["involvedObject", "kind"]).unwrap_or_default().to_owned();
            log.borrow_mut().insert((kind, place), line);
        }
    });
    (told, task)
}

fn about(told: &Told, kind: &str) -> Vec<String> {
    told.borrow().iter().filter(|((k, _), _)| k == kind).map(|(_, line)| line.clone()).collect()
}

const PRESENT: &str =
    "Normal Pulled ×1: Container image \"img:1\" already present on machine and can be accessed by the pod";

/// The node says what it is short of, the Pod that it goes for it, then its container is stopped; the condition follows.
/// Source: k/k pkg/kubelet/eviction/eviction_manager.go synchronize, evictPod.
#[test]
fn sequence_13_node_pressure_is_told_of_on_the_node_and_on_the_pod_that_goes() {
    run(async {
        let w = World::configured(None, |c| c.cluster_dns = vec!["10.96.0.10".into()]).await;
        let (told, task) = listen(&w);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.runtime.set_usage("c", Usage { memory: 900 << 20, layer: 0 });
        w.host.set_cgroup("/", CgroupStats { working_set: (4 << 30) - (50 << 20), ..CgroupStats::default() });
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        w.host.set_cgroup("/", CgroupStats { working_set: 1 << 30, ..CgroupStats::default() });
        w.clock.sleep(secs(400)).await;
        assert_eq!(
            about(&told, "Pod"),
            [
                PRESENT,
                "Normal Created ×1: Container created",
                "Normal Started ×1: Container started",
                "Warning Evicted ×1: The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c \
                 was using 900Mi, request is 0, has larger consumption of memory. ",
                "Normal Killing ×1: Stopping container c",
            ]
        );
        assert_eq!(
            about(&told, "Node"),
            [
                "Warning EvictionThresholdMet ×1: Attempting to reclaim memory",
                "Normal NodeHasInsufficientMemory ×1: Node node-1 status is now: NodeHasInsufficientMemory",
                "Normal NodeHasSufficientMemory ×2: Node node-1 status is now: NodeHasSufficientMemory",
            ]
        );
        assert_eq!(w.pod("a").unwrap()["status"]["reason"], "Evicted");
        task.abort();
        w.end().await;
    });
}

/// The node says that it goes down, its Pods that they are stopped, and their status why.
/// Source: k/k pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go.
#[test]
fn sequence_19_a_graceful_shutdown_is_told_of_on_the_node_and_by_killing() {
    run(async {
        let w = World::configured(None, |c| {
            c.cluster_dns = vec!["10.96.0.10".into()];
            c.shutdown = vec![ShutdownGroup { priority: 0, grace: secs(20) }];
        })
        .await;
        let (told, task) = listen(&w);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let scheduled = std::path::Path::new("/run/systemd/shutdown/scheduled");
        w.host.create_dir_all(scheduled.parent().unwrap(), 0o755).unwrap();
        w.host.write(scheduled, b"", 0o644).unwrap();
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        w.clock.sleep(secs(1)).await;
        assert_eq!(
            about(&told, "Pod"),
            [
                PRESENT,
                "Normal Created ×1: Container created",
                "Normal Started ×1: Container started",
                "Normal Killing ×1: Stopping container c",
            ]
        );
        assert_eq!(
            about(&told, "Node"),
            [
                "Normal Shutdown ×1: Shutdown manager detected shutdown event",
                "Normal NodeNotReady ×1: Node node-1 status is now: NodeNotReady",
            ]
        );
        task.abort();
        let status = w.pod("a").unwrap()["status"].clone();
        assert_eq!(status["reason"], "Terminated");
        assert_eq!(status["message"], "Pod was terminated in response to imminent node shutdown.");
        w.end().await;
    });
}
