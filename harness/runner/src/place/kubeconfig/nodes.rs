//! The nodes of a foreign cluster: which of them take Pods.

use std::time::Duration;

use podlab_api::{ApiError, Object, ResourceRef, core::Node, parse_milli};
use podlab_client::{Api, Collection, ListOptions, http::HttpApi};
use podlab_clock::Clock;

/// How long the cluster's first nodes are waited for.
const LIMIT: Duration = Duration::from_secs(30);
/// What a node has until the node lifecycle controller has seen that it is Ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The nodes that take Pods, with their CPU. A node that has just become Ready takes none until a controller has seen it.
pub(super) async fn that_take_pods(api: &HttpApi, clock: Clock) -> Result<Vec<(String, u64)>, ApiError> {
    let nodes = Collection { resource: ResourceRef::of::<Node>(), namespace: None };
    let deadline = clock.now().after(LIMIT);
    loop {
        let list = api.list(&nodes, &ListOptions::default()).await?;
        let found: Vec<(String, u64)> =
            list.items.iter().filter(|n| schedulable(n)).map(|n| (n.name().to_owned(), cpu(n))).collect();
        let coming = list.items.iter().any(|n| ready(n) && tainted(n, Some(NOT_READY)));
        if !coming && !found.is_empty() || clock.now() >= deadline {
            return Ok(found);
        }
        clock.sleep(Duration::from_millis(200)).await;
    }
}

fn ready(node: &Object) -> bool {
    let conditions = node.at(&["status", "conditions"]).and_then(|c| c.as_array());
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Whether a taint, of this key if one is given, keeps ordinary Pods away.
fn tainted(node: &Object, key: Option<&str>) -> bool {
    let taints = node.at(&["spec", "taints"]).and_then(|t| t.as_array());
    let keeps_away = |t: &serde_json::Value| matches!(t["effect"].as_str(), Some("NoSchedule" | "NoExecute"));
    taints.into_iter().flatten().any(|t| keeps_away(t) && key.is_none_or(|k| t["key"] == k))
}

fn schedulable(node: &Object) -> bool {
    let off = node.at(&["spec", "unschedulable"]).and_then(|v| v.as_bool()) == Some(true);
    ready(node) && !off && !tainted(node, None)
}

fn cpu(node: &Object) -> u64 {
    let text = node.str_at(&["status", "allocatable", "cpu"]).unwrap_or_default();
    parse_milli(text).ok().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_takes_pods_when_it_is_ready_and_nothing_keeps_them_away() {
        let node = |ready: &str, spec: serde_json::Value| {
            Object(
                json!({"spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"cpu": "1500m"}}}),
            )
        };
        let taint = |effect: &str| json!({"taints": [{"key": NOT_READY, "effect": effect}]});
        assert!(schedulable(&node("True", json!({}))));
        assert!(schedulable(&node("True", taint("PreferNoSchedule"))));
        for (ready, spec) in [
            ("False", json!({})),
            ("True", json!({"unschedulable": true})),
            ("True", taint("NoSchedule")),
            ("True", taint("NoExecute")),
        ] {
            assert!(!schedulable(&node(ready, spec.clone())), "{ready} {spec}");
        }
        assert!(tainted(&node("True", taint("NoSchedule")), Some(NOT_READY)));
        assert!(!tainted(&node("True", taint("NoSchedule")), Some("other")));
        assert_eq!(cpu(&node("True", json!({}))), 1500);
    }
}
