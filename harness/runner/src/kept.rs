//! Whether the API kept what a scenario gave it. A field that the API server does not know is left out without a word unless
//! the client asks to be told (`fieldValidation`), which not every server understands; so the answer is looked at instead. A
//! scenario with a misspelled field would else play something it does not say.

use serde_json::Value;

/// Fields that no server keeps where they are written: they become others, or are somebody else's to write.
const ELSEWHERE: [&str; 4] = ["apiVersion", "kind", "stringData", "managedFields"];

/// The first field of `sent` that is not in `kept`, e.g. `spec.containers[0].comand`. Values are not compared: servers write
/// quantities and durations their own way, and leave out what is nothing. `status` counts only when it is what was written.
pub(crate) fn dropped(sent: &Value, kept: &Value, status: bool) -> Option<String> {
    let mut sent = sent.clone();
    if let Some(map) = sent.as_object_mut() {
        map.retain(|key, _| status || key != "status");
    }
    missing(&sent, kept, "")
}

fn is_nothing(v: &Value) -> bool {
    match v {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_nothing),
        Value::Bool(true) => false,
    }
}

fn missing(sent: &Value, kept: &Value, at: &str) -> Option<String> {
    match (sent, kept) {
        (Value::Object(sent), Value::Object(kept)) => sent.iter().find_map(|(key, value)| {
            // `$patch` and its like say how, not what.
            if is_nothing(value) || key.starts_with('$') || ELSEWHERE.contains(&key.as_str()) {
                return None;
            }
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            match kept.get(key) {
                Some(kept) => missing(value, kept, &at),
                None => Some(at),
            }
        }),
        // A server may merge lists, so an item is looked for in all of it; what its closest lacks is told.
        (Value::Array(sent), Value::Array(kept)) => sent.iter().enumerate().find_map(|(i, item)| {
            let at = format!("{at}[{i}]");
            let found = kept.iter().any(|k| missing(item, k, &at).is_none());
            let told = || kept.get(i).and_then(|k| missing(item, k, &at)).unwrap_or_else(|| at.clone());
            (!found && !is_nothing(item)).then(told)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_the_server_left_out_is_named_and_one_it_wrote_its_own_way_is_not() {
        let kept = json!({"kind": "Pod", "metadata": {"name": "a", "uid": "u"}, "spec": {"nodeName": "n",
            "containers": [{"name": "side"}, {"name": "c", "image": "x", "resources": {"limits": {"cpu": "500m"}}}]}});
        let of = |sent: Value| dropped(&sent, &kept, false);
        for fine in [
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}),
            json!({"spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "0.5"}}}]}}),
            json!({"spec": {"hostNetwork": false, "containers": [{"name": "c", "stdin": false, "env": []}]}}),
            json!({"spec": {"$patch": "merge", "priority": null}, "status": {"phase": "Failed"}, "stringData": {"a": "b"}}),
        ] {
            assert_eq!(of(fine.clone()), None, "{fine}");
        }
        for (sent, at) in [
            (json!({"specc": {"x": 1}}), "specc"),
            (json!({"spec": {"nodename": "n"}}), "spec.nodename"),
            (
                json!({"spec": {"containers": [{"name": "side"}, {"name": "c", "comand": ["x"]}]}}),
                "spec.containers[1].comand",
            ),
            (
                json!({"spec": {"containers": [{"name": "c", "resources": {"limit": {"cpu": 1}}}]}}),
                "spec.containers[0].resources",
            ),
        ] {
            assert_eq!(of(sent.clone()).as_deref(), Some(at), "{sent}");
        }
        assert_eq!(dropped(&json!({"status": {"phase": "Failed"}}), &kept, true).as_deref(), Some("status"));
    }
}
