//! The strategic merge patch between two statuses. Source: k/k pkg/util/pod/pod.go PatchPodStatus.

use podlab_api::core::PodStatus;
use serde_json::{Map, Value, json};

/// Lists that strategic merge treats as maps, and their keys.
const KEYED: [(&str, &str); 3] = [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];

/// The body that turns `from` into `to`; `None` when they are the same.
pub(super) fn between(uid: &str, from: &PodStatus, to: &PodStatus) -> Option<Value> {
    let as_map = |s: &PodStatus| match serde_json::to_value(s) {
        Ok(Value::Object(m)) => m,
        Ok(_) | Err(_) => Map::new(),
    };
    let (from, to) = (as_map(from), as_map(to));
    let mut status = Map::new();
    for (key, new) in &to {
        let old = from.get(key);
        if old == Some(new) {
            continue;
        }
        match KEYED.iter().find(|(k, _)| k == key) {
            Some((_, merge_key)) => keyed(key, merge_key, old, new, &mut status),
            None => {
                status.insert(key.clone(), new.clone());
            }
        }
    }
    for key in from.keys().filter(|k| !to.contains_key(*k)) {
        status.insert(key.clone(), Value::Null);
    }
    (!status.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

fn keyed(key: &str, merge_key: &str, old: Option<&Value>, new: &Value, out: &mut Map<String, Value>) {
    let items = |v: Option<&Value>| v.and_then(Value::as_array).cloned().unwrap_or_default();
    let (old, new) = (items(old), items(Some(new)));
    let id = |v: &Value| v.get(merge_key).cloned().unwrap_or(Value::Null);
    let mut changes: Vec<Value> = Vec::new();
    for item in &new {
        match old.iter().find(|o| id(o) == id(item)) {
            Some(o) if o == item => {}
            Some(o) => {
                let mut change = item.clone();
                if let (Some(change), Some(o)) = (change.as_object_mut(), o.as_object()) {
                    for gone in o.keys().filter(|k| item.get(k.as_str()).is_none()) {
                        change.insert(gone.clone(), Value::Null);
                    }
                }
                changes.push(change);
            }
            None => changes.push(item.clone()),
        }
    }
    for o in old.iter().filter(|o| !new.iter().any(|n| id(n) == id(o))) {
        changes.push(json!({"$patch": "delete", merge_key: id(o)}));
    }
    let order: Vec<Value> = new.iter().map(|i| json!({merge_key: id(i)})).collect();
    out.insert(format!("$setElementOrder/{key}"), Value::Array(order));
    out.insert(key.to_owned(), Value::Array(changes));
}

#[cfg(test)]
mod tests {
    use podlab_lifecycle::conditions::condition_of;

    use super::*;

    #[test]
    fn only_what_changed_is_sent_and_what_went_is_deleted() {
        let c = |kind: &str, on: bool, reason: Option<&str>| condition_of(kind, on, reason, None);
        let from = PodStatus {
            phase: Some("Running".into()),
            reason: Some("x".into()),
            conditions: Some(vec![c("Ready", true, Some("r")), c("Initialized", true, None), c("Gone", true, None)]),
            ..PodStatus::default()
        };
        let to = PodStatus {
            phase: Some("Running".into()),
            conditions: Some(vec![c("Ready", false, None), c("Initialized", true, None)]),
            ..PodStatus::default()
        };
        let body = between("u", &from, &to).unwrap();
        assert_eq!(body["metadata"]["uid"], "u");
        let conditions = body["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions[0], json!({"type": "Ready", "status": "False", "reason": null}));
        assert_eq!(conditions[1], json!({"$patch": "delete", "type": "Gone"}));
        assert_eq!(body["status"]["reason"], Value::Null);
        assert!(body["status"].get("phase").is_none());
        assert!(between("u", &to, &to).is_none());
    }
}
