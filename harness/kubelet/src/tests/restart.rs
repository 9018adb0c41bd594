//! What an agent that starts finds, and must leave alone.
use std::time::Duration;

use serde_json::json;

use super::{World, follow, is_ready, one, phase, run, secs};
use crate::fake::Script;

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
