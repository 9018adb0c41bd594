//! A Pod as a list of named values: everything a client can rely on, in words that do not change from run to run.

use podlab_api::Object;
use serde_json::Value;

/// `running`, `waiting:REASON`, `terminated:REASON:CODE[:signalN]` or `none`.
pub(crate) fn container_state(state: Option<&Value>) -> String {
    let Some(state) = state else { return "none".into() };
    let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if state.get("running").is_some() {
        return "running".into();
    }
    if let Some(t) = state.get("terminated") {
        let code = t.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
        let signal = t
            .get("signal")
            .and_then(Value::as_i64)
            .filter(|s| *s > 0)
            .map(|s| format!(":signal{s}"))
            .unwrap_or_default();
        return format!("terminated:{}:{code}{signal}", text(t, "reason"));
    }
    state.get("waiting").map_or_else(|| "none".into(), |w| format!("waiting:{}", text(w, "reason")))
}

/// All container statuses of a Pod, init containers first.
pub(crate) fn container_statuses(pod: &Object) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .into_iter()
        .filter_map(|list| pod.at(&["status", list])?.as_array())
        .flatten()
}

/// The values, in a fixed order.
pub(crate) fn fields(pod: &Object) -> Vec<(String, String)> {
    let mut out = vec![("phase".to_owned(), pod.str_at(&["status", "phase"]).unwrap_or_default().to_owned())];
    for key in ["reason", "message"] {
        if let Some(text) = pod.str_at(&["status", key]) {
            out.push((format!("status.{key}"), text.to_owned()));
        }
    }
    if let Some(grace) = pod
        .at(&["metadata", "deletionGracePeriodSeconds"])
        .filter(|_| pod.at(&["metadata", "deletionTimestamp"]).is_some())
    {
        out.push(("deleting".into(), format!("grace={grace}")));
    }
    for c in pod.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default();
        let reason = if text("reason").is_empty() { String::new() } else { format!(" {}", text("reason")) };
        out.push((format!("condition/{}", text("type")), format!("{}{reason}", text("status"))));
    }
    for status in container_statuses(pod) {
        let name = status.get("name").and_then(Value::as_str).unwrap_or_default();
        out.push((format!("container/{name}/state"), container_state(status.get("state"))));
        for key in ["ready", "restartCount"] {
            if let Some(v) = status.get(key) {
                out.push((format!("container/{name}/{key}"), v.to_string()));
            }
        }
    }
    out
}
