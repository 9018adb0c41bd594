//! The whole agent on a machine, a runtime and an API in memory, under a paused clock.

mod api;
mod lifecycle;
mod node;
mod numbers;
mod restart;
mod sequences;
mod storage;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use podlab_api::{Object, core::Pod};
use podlab_client::{Client, DeleteOptions, WatchType};
use podlab_clock::{Clock, Rng};
use podlab_timeline::Recorder;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::api::MemoryApi;
use crate::{
    Deps, Kubelet, KubeletConfig, Machine,
    fake::{ImageScript, MemoryHost, MemoryRuntime},
};

/// A node with its agent.
pub(super) struct World {
    api: Arc<MemoryApi>,
    client: Client,
    clock: Clock,
    runtime: Arc<MemoryRuntime>,
    host: Arc<MemoryHost>,
    plugins: Option<Arc<dyn crate::Plugins>>,
    config: KubeletConfig,
    stop: CancellationToken,
    agent: tokio::task::JoinHandle<()>,
}

pub(super) fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(None).await
    }

    pub(super) async fn with(plugins: Option<Arc<dyn crate::Plugins>>) -> Self {
        Self::configured(plugins, |_| {}).await
    }

    pub(super) async fn configured(
        plugins: Option<Arc<dyn crate::Plugins>>,
        change: impl FnOnce(&mut KubeletConfig),
    ) -> Self {
        let mut config = KubeletConfig::new("node-1", vec!["172.18.0.11".into()]);
        change(&mut config);
        let clock = Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap());
        let api = MemoryApi::new();
        let runtime = MemoryRuntime::new(clock);
        runtime.image("img:1", ImageScript { present: true, ..ImageScript::default() });
        let host = MemoryHost::new(clock, Machine { cpu_milli: 2000, memory: 4 << 30, ..Machine::default() });
        let mut world = Self {
            client: Client::new(api.clone()),
            api,
            clock,
            runtime,
            host,
            plugins,
            config,
            stop: CancellationToken::new(),
            agent: tokio::task::spawn_local(async {}),
        };
        world.boot();
        world.until("node Ready", |w| w.api.all("nodes").iter().any(|n| ready(n))).await;
        world
    }

    /// Starts an agent on what there is.
    pub(super) fn boot(&mut self) {
        self.stop = CancellationToken::new();
        let deps = Deps {
            client: self.client.clone(),
            clock: self.clock,
            rng: Rng::seeded(7),
            recorder: Recorder::disabled(self.clock),
            host: self.host.clone(),
            runtime: self.runtime.clone(),
            images: self.runtime.clone(),
            plugins: self.plugins.clone(),
        };
        let kubelet = Kubelet::new(self.config.clone(), deps);
        let stop = self.stop.clone();
        self.agent = tokio::task::spawn_local(async move { kubelet.run(stop).await.unwrap() });
    }

    /// Ends the agent as a crash does.
    pub(super) async fn crash(&mut self) {
        self.agent.abort();
        self.stop.cancel();
        // Tasks of the dead agent see the cancelled token and drop what they were at.
        self.clock.sleep(Duration::from_millis(1)).await;
    }

    pub(super) async fn create(&self, name: &str, spec: Value) {
        let tree = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "generation": 1}, "spec": spec, "status": {"phase": "Pending"}});
        let mut pod: Pod = Object(tree).to_typed().unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("node-1".into());
        self.client.namespaced::<Pod>("ns").create(&pod).await.unwrap();
    }

    pub(super) async fn delete(&self, name: &str) {
        self.client.namespaced::<Pod>("ns").delete(name, &DeleteOptions::default()).await.unwrap();
    }

    /// Waits for a state, at most ten virtual minutes.
    pub(super) async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..60_000 {
            if done(self) {
                return;
            }
            self.clock.sleep(Duration::from_millis(10)).await;
        }
        panic!("waited in vain for {what}; pods: {:?}", self.api.all("pods"));
    }

    pub(super) fn pod(&self, name: &str) -> Option<Value> {
        self.api.all("pods").iter().find(|p| p.name() == name).map(|p| p.0.clone())
    }

    /// Reasons and messages of the events so far, in order, without repeats.
    pub(super) fn events(&self) -> Vec<String> {
        let mut all = self.api.all("events");
        all.sort_by_key(|e| e.0["metadata"]["creation"].as_u64().unwrap_or(0));
        all.iter()
            .filter(|e| e.str_at(&["involvedObject", "kind"]) == Some("Pod"))
            .map(|e| format!("{}: {}", e.str_at(&["reason"]).unwrap(), e.str_at(&["message"]).unwrap()))
            .collect()
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        let _ = self.agent.await;
    }
}

fn ready(o: &Object) -> bool {
    o.at(&["status", "conditions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Ready" && c["status"] == "True")
}

pub(super) fn is_ready(w: &World, name: &str) -> bool {
    w.pod(name).is_some_and(|p| ready(&Object(p)))
}

pub(super) fn phase(w: &World, name: &str) -> String {
    w.pod(name).and_then(|p| p["status"]["phase"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// Collects the distinct values one field of a Pod takes, as a watcher sees them.
pub(super) fn follow(w: &World, field: fn(&Value) -> String) -> tokio::task::JoinHandle<Vec<String>> {
    let mut changes = w.api.changes("pods");
    tokio::task::spawn_local(async move {
        let mut seen: Vec<String> = Vec::new();
        while let Some(e) = changes.next().await {
            if e.kind == WatchType::Deleted {
                break;
            }
            let v = field(&e.object.0);
            if seen.last() != Some(&v) {
                seen.push(v);
            }
        }
        seen
    })
}

/// `running`, `waiting:R` or `terminated:R:code` of the first container.
pub(super) fn state(p: &Value) -> String {
    let s = &p["status"]["containerStatuses"][0]["state"];
    if s.get("running").is_some() {
        "running".into()
    } else if let Some(t) = s.get("terminated") {
        format!("terminated:{}:{}", t["reason"].as_str().unwrap_or_default(), t["exitCode"])
    } else if let Some(w) = s.get("waiting") {
        format!("waiting:{}", w["reason"].as_str().unwrap_or_default())
    } else {
        "none".into()
    }
}

pub(super) fn one(command: &str, extra: Value) -> Value {
    let mut c = json!({"name": "c", "image": "img:1", "command": [command]});
    for (k, v) in extra.as_object().into_iter().flatten() {
        c[k] = v.clone();
    }
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [c]})
}

/// Runs a test on one thread under a paused clock.
pub(super) fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
