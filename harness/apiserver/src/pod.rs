//! Everything the server knows about Pods: defaulting, validation, update rules, QoS and subresources.

pub(crate) mod binding;
pub(crate) mod container;
pub(crate) mod container_parts;
pub(crate) mod defaults;
pub(crate) mod eviction;
pub(crate) mod qos;
pub(crate) mod spec;
pub(crate) mod subresource;
pub(crate) mod update;
pub(crate) mod volumes;

use serde_json::{Value, json};

use crate::tree::{at, list, map_at, text};

/// Whether condition Ready is True.
pub(crate) fn is_ready(pod: &Value) -> bool {
    list(pod, "status.conditions").iter().any(|c| text(c, "type") == "Ready" && text(c, "status") == "True")
}

/// Sets a condition; the transition time moves only when the status changes.
pub(crate) fn set_condition(pod: &mut Value, condition: Value, now: &str) {
    let conditions = crate::tree::list_at(pod, "status.conditions");
    let mut condition = condition;
    let kind = text(&condition, "type").to_owned();
    match conditions.iter_mut().find(|c| text(c, "type") == kind) {
        Some(existing) => {
            let same = text(existing, "status") == text(&condition, "status");
            let since = if same { at(existing, "lastTransitionTime").clone() } else { now.into() };
            condition["lastTransitionTime"] = since;
            *existing = condition;
        }
        None => {
            condition["lastTransitionTime"] = now.into();
            conditions.push(condition);
        }
    }
}

/// The status a Pod is created with.
pub(crate) fn prepare_create(pod: &mut Value) {
    let class = qos::class(pod);
    let created = at(pod, "metadata.creationTimestamp").clone();
    let gated = !list(pod, "spec.schedulingGates").is_empty();
    let status = map_at(pod, "status");
    status.clear();
    status.insert("phase".into(), "Pending".into());
    status.insert("qosClass".into(), class.into());
    if gated {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
            "message": "Scheduling is blocked due to non-empty scheduling gates", "lastTransitionTime": created,
        });
        status.insert("conditions".into(), json!([condition]));
    }
}
