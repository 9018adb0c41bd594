//! Pods from admission to their end, on the runtime in memory.
use std::time::Duration;

use podlab_api::core::Pod;
use podlab_client::DeleteOptions;
use serde_json::json;

use super::{World, follow, is_ready, one, phase, run, secs, state};
use crate::fake::{ExecScript, ImageScript, Script};

#[test]
fn a_simple_pod_becomes_ready_and_leaves_nothing_behind() {
    run(async {
        let w = World::new().await;
        let states = follow(&w, state);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.delete("a").await;
        w.until("gone", |w| w.pod("a").is_none()).await;
        assert_eq!(states.await.unwrap(), ["none", "waiting:ContainerCreating", "running", "terminated:Completed:0"]);
        assert_eq!(w.runtime.counts(), (0, 0));
        assert!(w.host.mounts().is_empty());
        assert!(w.host.cgroups().keys().all(|c| !c.contains("/pod")), "{:?}", w.host.cgroups());
        w.end().await;
    });
}

#[test]
fn a_container_that_ends_at_once_is_seen_running_first_and_the_phase_waits_for_the_sandbox() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::exits(Duration::ZERO, 7)]);
        let (states, phases) =
            (follow(&w, state), follow(&w, |p| p["status"]["phase"].as_str().unwrap_or_default().to_owned()));
        let mut spec = one("false", json!({}));
        spec["restartPolicy"] = "Never".into();
        w.create("a", spec).await;
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        w.delete("a").await;
        assert_eq!(states.await.unwrap(), ["none", "waiting:ContainerCreating", "running", "terminated:Error:7"]);
        assert_eq!(phases.await.unwrap(), ["Pending", "Running", "Failed"]);
        w.end().await;
    });
}

#[test]
fn a_crash_loop_waits_ten_seconds_then_twice_as_long_each_time() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::exits(Duration::from_millis(100), 1)]);
        let states = follow(&w, state);
        w.create("a", one("false", json!({}))).await;
        let mut at = Vec::new();
        for n in 1..=5 {
            w.until("restart", |w| w.pod("a").unwrap()["status"]["containerStatuses"][0]["restartCount"] == n).await;
            at.push(w.clock.now());
        }
        let gaps: Vec<u64> = at.windows(2).map(|p| p[1].since(p[0]).as_secs()).collect();
        for (gap, base) in gaps.iter().zip([10, 20, 40, 80]) {
            assert!((base..=base * 3 / 2 + 1).contains(gap), "{gaps:?}");
        }
        w.delete("a").await;
        let seen = states.await.unwrap();
        assert_eq!(
            seen[..9],
            [
                "none",
                "waiting:ContainerCreating",
                "running",
                "terminated:Error:1",
                "running",
                "terminated:Error:1",
                "waiting:CrashLoopBackOff",
                "running",
                "terminated:Error:1"
            ]
        );
        assert!(
            w.events().iter().any(|e| e.starts_with("BackOff: Back-off restarting failed container c in pod a_ns("))
        );
        w.end().await;
    });
}

#[test]
fn a_missing_image_backs_off_and_a_pull_that_works_ends_it() {
    run(async {
        let w = World::new().await;
        let states = follow(&w, state);
        w.create("a", one("sleep", json!({"image": "r.test/app:1"}))).await;
        w.until("ImagePullBackOff", |w| state(&w.pod("a").unwrap()) == "waiting:ImagePullBackOff").await;
        w.runtime.image("r.test/app:1", ImageScript { takes: secs(1), ..ImageScript::default() });
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.delete("a").await;
        let seen = states.await.unwrap();
        assert_eq!(
            seen[..4],
            ["none", "waiting:ContainerCreating", "waiting:ErrImagePull", "waiting:ImagePullBackOff"]
        );
        w.end().await;
    });
}

#[test]
fn readiness_follows_the_probe_and_liveness_restarts() {
    run(async {
        let w = World::new().await;
        w.runtime
            .exec_script(ExecScript { succeeds_after: [("ok".to_owned(), secs(3))].into(), ..ExecScript::default() });
        let probe = json!({"exec": {"command": ["ok"]}, "periodSeconds": 1, "failureThreshold": 2});
        w.create("a", one("sleep", json!({"readinessProbe": probe}))).await;
        let began = w.clock.now();
        w.until("Ready", |w| is_ready(w, "a")).await;
        let took = w.clock.now().since(began);
        assert!(took >= secs(3) && took <= secs(5), "{took:?}");
        assert!(w.events().contains(&"Unhealthy: Readiness probe failed: ".to_owned()));

        let probe = json!({"exec": {"command": ["never"]}, "periodSeconds": 1, "failureThreshold": 2});
        w.runtime.exec_script(ExecScript {
            succeeds_after: [("never".to_owned(), secs(9999))].into(),
            ..ExecScript::default()
        });
        w.create("b", one("sleep", json!({"livenessProbe": probe}))).await;
        w.until("restart", |w| w.pod("b").unwrap()["status"]["containerStatuses"][0]["restartCount"] == 1).await;
        assert!(w.events().contains(&"Killing: Container c failed liveness probe, will be restarted".to_owned()));
        w.end().await;
    });
}

#[test]
fn a_process_that_ignores_term_is_killed_when_the_grace_period_ends() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::forever().stubborn()]);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let began = w.clock.now();
        w.delete("a").await;
        w.until("gone", |w| w.pod("a").is_none()).await;
        assert_eq!(w.clock.now().since(began).as_secs(), 5);
        assert!(w.runtime.calls().contains(&"StopContainer 5s".to_owned()));
        w.end().await;
    });
}

#[test]
fn a_sandbox_that_fails_is_made_again() {
    run(async {
        let w = World::new().await;
        w.runtime.fail_sandboxes(vec!["failed to setup network".into(), "failed to setup network".into()]);
        w.create("a", one("sleep", json!({}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let message = "FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network";
        assert!(w.events().contains(&message.to_owned()), "{:?}", w.events());
        w.end().await;
    });
}

#[test]
fn the_active_deadline_ends_the_pod() {
    run(async {
        let w = World::new().await;
        let mut spec = one("sleep", json!({}));
        spec["activeDeadlineSeconds"] = 30.into();
        w.create("a", spec).await;
        let began = w.clock.now();
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        assert_eq!(w.clock.now().since(began).as_secs(), 30);
        assert_eq!(w.pod("a").unwrap()["status"]["reason"], "DeadlineExceeded");
        w.end().await;
    });
}

#[test]
fn what_does_not_fit_the_node_is_refused_without_a_sandbox() {
    run(async {
        let w = World::new().await;
        w.create("a", one("sleep", json!({"resources": {"requests": {"cpu": "64"}}}))).await;
        w.until("Failed", |w| phase(w, "a") == "Failed").await;
        let p = w.pod("a").unwrap();
        assert_eq!(p["status"]["reason"], "OutOfcpu");
        assert_eq!(
            p["status"]["message"],
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 64000, used: 0, capacity: 2000"
        );
        assert_eq!(w.runtime.counts(), (0, 0));
        w.end().await;
    });
}

#[test]
fn a_pod_deleted_by_force_takes_no_room_while_its_containers_are_still_ending() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::forever().stubborn(), Script::forever()]);
        let all_of_it = || one("sleep", json!({"resources": {"requests": {"cpu": "2"}}}));
        w.create("a", all_of_it()).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let now = DeleteOptions { grace_period: Some(Duration::ZERO), ..DeleteOptions::default() };
        w.client.namespaced::<Pod>("ns").delete("a", &now).await.unwrap();
        assert!(w.pod("a").is_none() && w.runtime.counts() == (1, 1), "gone from the API, not from the node");
        w.create("b", all_of_it()).await;
        w.until("Ready", |w| is_ready(w, "b")).await;
        w.end().await;
    });
}

#[test]
fn a_restart_rule_makes_every_container_start_over() {
    run(async {
        let w = World::new().await;
        w.runtime.script("c", vec![Script::exits(secs(2), 42), Script::forever()]);
        let mut spec = one(
            "work",
            json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}),
        );
        spec["containers"].as_array_mut().unwrap().push(json!({"name": "d", "image": "img:1"}));
        w.create("a", spec).await;
        let restarts =
            |w: &World, i: usize| w.pod("a").unwrap()["status"]["containerStatuses"][i]["restartCount"].as_u64();
        w.until("both restarted", |w| restarts(w, 0) == Some(1) && restarts(w, 1) == Some(1)).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        w.end().await;
    });
}

#[test]
fn a_pod_that_asks_for_a_user_namespace_does_not_run_without_one() {
    run(async {
        let w = World::new().await;
        let mut spec = one("sleep", json!({}));
        spec["hostUsers"] = false.into();
        w.create("a", spec).await;
        let message = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        w.until("refusal", |w| w.events().contains(&message.to_owned())).await;
        assert_eq!(w.runtime.counts(), (0, 0));
        w.end().await;
    });
}

#[test]
fn an_https_hook_that_meets_a_plain_server_is_asked_again_without_tls() {
    run(async {
        let w = World::new().await;
        let hook =
            json!({"postStart": {"httpGet": {"scheme": "HTTPS", "host": "hook.test", "port": 8443, "path": "/up"}}});
        w.host.set_http("https://hook.test:8443/up", Err("http: server gave HTTP response to HTTPS client".into()));
        let fine = crate::HttpAnswer { status: 200, location: None, body: Vec::new() };
        w.host.set_http("http://hook.test:8443/up", Ok(fine));
        w.create("a", one("sleep", json!({"lifecycle": hook}))).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let said = "LifecycleHTTPFallback: request to HTTPS lifecycle hook hook.test:8443 got HTTP response, retry with HTTP succeeded";
        assert!(w.events().contains(&said.to_owned()), "{:?}", w.events());
        w.end().await;
    });
}
