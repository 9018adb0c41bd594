//! Small helpers around Pods of a test cluster.

use std::time::Duration;

use futures::StreamExt;
use libtest_mimic::Failed;
use podlab_api::core::Pod;
use podlab_client::{Client, WatchOptions};
use podlab_clock::Clock;
use serde_json::{Value, json};

/// A Pod that runs a command of the test image.
pub fn make(name: &str, restart: &str, command: Value) -> Result<Pod, Failed> {
    let tree = json!({"metadata": {"name": name}, "spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "registry.test/testimage:1", "command": command}]}});
    Ok(serde_json::from_value(tree)?)
}

/// Waits until a Pod satisfies a condition; over restarts of the API server.
pub async fn wait(
    client: &Client,
    name: &str,
    what: &str,
    within: Duration,
    ok: impl Fn(&Pod) -> bool,
) -> Result<Pod, Failed> {
    let clock = Clock::real();
    let mut last = String::from("never seen");
    let wait = async {
        loop {
            let options =
                WatchOptions { field_selector: Some(format!("metadata.name={name}")), ..WatchOptions::default() };
            if let Ok(stream) = client.namespaced::<Pod>("default").watch(&options).await {
                let mut stream = stream.boxed();
                while let Some(Ok(event)) = stream.next().await {
                    last = serde_json::to_string(&event.object.status).unwrap_or_default();
                    if ok(&event.object) {
                        return event.object;
                    }
                }
            }
            clock.sleep(Duration::from_millis(50)).await;
        }
    };
    let found = clock.timeout(within, wait).await;
    found.ok_or_else(|| format!("{name}: {what}: not within {within:?}; last status {last}").into())
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Container id, start time and restarts: what a kill of the agent must not change.
pub fn identity(pod: &Pod) -> Option<(String, String, i32)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let started = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0.to_string();
    Some((status.container_id.clone()?, started, status.restart_count))
}

/// How long a call is repeated while the API server is away.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Waits until a Pod is gone; over restarts of the API server.
pub async fn gone(client: &Client, name: &str, within: Duration) -> Result<(), Failed> {
    let clock = Clock::real();
    let mut last = String::from("never seen");
    let wait = async {
        loop {
            let api = client.namespaced::<Pod>("default");
            match api.get_opt(name).await {
                Ok(None) => return,
                Ok(Some(pod)) => last = serde_json::to_string(&pod).unwrap_or_default(),
                Err(_) => {}
            }
            let options =
                WatchOptions { field_selector: Some(format!("metadata.name={name}")), ..WatchOptions::default() };
            // A Pod that goes between the two calls has no event: the watch is not waited for for long.
            let deleted = async {
                let mut stream = api.watch(&options).await.ok()?.boxed();
                while let Some(Ok(event)) = stream.next().await {
                    if event.kind == podlab_client::WatchType::Deleted {
                        return Some(());
                    }
                }
                None
            };
            match clock.timeout(Duration::from_secs(2), deleted).await {
                Some(Some(())) => return,
                Some(None) => clock.sleep(Duration::from_millis(50)).await,
                None => {}
            }
        }
    };
    let found = clock.timeout(within, wait).await;
    found.ok_or_else(|| format!("{name}: not gone within {within:?}; last {last}").into())
}
