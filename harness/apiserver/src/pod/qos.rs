//! QoS class. Source: k/k pkg/apis/core/helper/qos/qos.go.

use podlab_api::parse_milli;
use serde_json::Value;

use crate::tree::{at, entries, list};

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub(crate) fn class(pod: &Value) -> &'static str {
    let spec = at(pod, "spec");
    let pod_level = at(spec, "resources");
    if counted(pod_level, "requests").next().is_some() || counted(pod_level, "limits").next().is_some() {
        return if guaranteed(pod_level) { "Guaranteed" } else { "Burstable" };
    }
    let containers = || list(spec, "containers").iter().chain(list(spec, "initContainers")).map(|c| at(c, "resources"));
    if containers().all(|r| counted(r, "requests").next().is_none() && counted(r, "limits").next().is_none()) {
        return "BestEffort";
    }
    if containers().all(guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// The cpu and memory quantities above zero.
fn counted<'a>(resources: &'a Value, which: &str) -> impl Iterator<Item = (&'a str, i128)> + use<'a> {
    entries(resources, which).filter_map(|(name, q)| {
        let amount = parse_milli(q.as_str()?).ok()?;
        (matches!(name.as_str(), "cpu" | "memory") && amount > 0).then_some((name.as_str(), amount))
    })
}

fn guaranteed(resources: &Value) -> bool {
    let limits: Vec<_> = counted(resources, "limits").collect();
    let requests: Vec<_> = counted(resources, "requests").collect();
    limits.len() == 2 && requests.iter().all(|r| limits.contains(r))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn qos_follows_requests_and_limits_of_cpu_and_memory() {
        let pod = |r: Value| json!({"spec": {"containers": [{"name": "c", "resources": r}]}});
        for (resources, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
            (json!({"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}),
                "Burstable",
            ),
        ] {
            assert_eq!(class(&pod(resources.clone())), expected, "{resources}");
        }
    }
}
