//! Strategic merge patch, including its `$` directives.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go.

use podlab_api::ApiError;
use serde_json::{Map, Value};

use super::merge_keys::{ListMerge, list_merge};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Merges `patch` into `target`, an object of `kind`.
///
/// # Errors
/// 400 for directives that cannot be followed.
pub(crate) fn merge(kind: &str, target: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Object(fields) = patch else {
        return Err(ApiError::bad_request("a strategic merge patch must be an object"));
    };
    merge_map(kind, "", crate::tree::map(target), fields)
}

fn bad(why: &str) -> ApiError {
    ApiError::bad_request(format!("invalid strategic merge patch: {why}"))
}

fn merge_map(
    kind: &str,
    parent: &str,
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), ApiError> {
    match patch.get(PATCH).and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            *target = without_directives(patch);
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some(other) => return Err(bad(&format!("unknown patch type: {other}"))),
    }
    if let Some(kept) = patch.get(RETAIN) {
        let kept = kept.as_array().ok_or_else(|| bad("$retainKeys must be a list"))?;
        target.retain(|key, _| kept.iter().any(|k| k.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            let gone = value.as_array().ok_or_else(|| bad("a list of values to delete is expected"))?;
            if let Some(Value::Array(items)) = target.get_mut(field) {
                items.retain(|i| !gone.contains(i));
            }
        }
    }
    for (key, value) in patch {
        if key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(fields) => {
                let slot = target.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                let deleted = fields.get(PATCH).and_then(Value::as_str) == Some("delete");
                merge_map(kind, key, crate::tree::map(slot), fields)?;
                if deleted {
                    target.remove(key);
                }
            }
            Value::Array(items) => {
                let order = patch.get(&format!("{ORDER}{key}")).and_then(Value::as_array);
                let slot = target.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
                if !slot.is_array() {
                    *slot = Value::Array(Vec::new());
                }
                let existing = slot.as_array_mut().ok_or_else(|| bad("a list is expected"))?;
                merge_list(kind, parent, key, existing, items, order)?;
            }
            scalar => {
                target.insert(key.clone(), scalar.clone());
            }
        }
    }
    // An order without items of its own only sorts what is there.
    for (key, value) in patch {
        if let (Some(field), Value::Array(order)) = (key.strip_prefix(ORDER).filter(|f| !patch.contains_key(*f)), value)
            && let Some(Value::Array(items)) = target.get_mut(field)
        {
            let keys = key_fields(kind, parent, field);
            sort_by_order(items, order, keys);
        }
    }
    Ok(())
}

fn key_fields(kind: &str, parent: &str, field: &str) -> Option<&'static str> {
    match list_merge(kind, parent, field) {
        ListMerge::Map(keys) => keys.first().copied(),
        ListMerge::Set | ListMerge::Atomic => None,
    }
}

fn merge_list(
    kind: &str,
    parent: &str,
    field: &str,
    target: &mut Vec<Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
) -> Result<(), ApiError> {
    let key = match list_merge(kind, parent, field) {
        ListMerge::Atomic => {
            *target = patch.to_vec();
            return Ok(());
        }
        ListMerge::Set => {
            let added = patch.iter().filter(|p| !target.contains(p)).cloned().collect::<Vec<_>>();
            target.extend(added);
            if let Some(order) = order {
                sort_by_order(target, order, None);
            }
            return Ok(());
        }
        ListMerge::Map(keys) => *keys.first().ok_or_else(|| bad("a list without a key"))?,
    };
    if patch.iter().any(|p| p.get(PATCH).and_then(Value::as_str) == Some("replace")) {
        *target = patch.iter().filter(|p| p.get(PATCH).is_none()).cloned().collect();
        return Ok(());
    }
    let before: Vec<Value> = target.iter().filter_map(|i| i.get(key).cloned()).collect();
    let mut patched = Vec::new();
    for item in patch {
        let fields = item.as_object().ok_or_else(|| bad(&format!("an item of {field} is not an object")))?;
        let id = fields.get(key).ok_or_else(|| {
            let shown = Value::Object(fields.clone());
            bad(&format!("map: {shown} does not contain declared merge key: {key}"))
        })?;
        let found = target.iter_mut().find(|i| i.get(key) == Some(id));
        match (fields.get(PATCH).and_then(Value::as_str), found) {
            (Some("delete"), _) => {
                target.retain(|i| i.get(key) != Some(id));
                continue;
            }
            (_, Some(existing)) => merge_map(kind, field, crate::tree::map(existing), fields)?,
            (_, None) => {
                let mut fresh = Map::new();
                merge_map(kind, field, &mut fresh, fields)?;
                target.push(Value::Object(fresh));
            }
        }
        patched.push(id.clone());
    }
    match order {
        Some(order) => sort_by_order(target, order, Some(key)),
        None => patched_first(target, &before, &patched, key),
    }
    Ok(())
}

/// Without an order, an item that is new comes before those the patch does not name; the rest keeps its order.
fn patched_first(target: &mut Vec<Value>, before: &[Value], patched: &[Value], key: &str) {
    let position = |v: &Value| v.get(key).and_then(|id| before.iter().position(|b| b == id));
    let (mut named, server_only): (Vec<Value>, Vec<Value>) =
        target.drain(..).partition(|i| i.get(key).is_some_and(|id| patched.contains(id)));
    named.sort_by_key(|i| i.get(key).and_then(|id| patched.iter().position(|p| p == id)));
    let (mut left, mut right) = (server_only.into_iter().peekable(), named.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => matches!((position(l), position(r)), (Some(a), Some(b)) if a < b),
        };
        target.extend(if take_left { left.next() } else { right.next() });
    }
}

/// Puts items in the given order; those it does not name keep their place relative to their neighbours at the end.
fn sort_by_order(items: &mut [Value], order: &[Value], key: Option<&str>) {
    let id = |v: &Value| key.map_or_else(|| Some(v.clone()), |k| v.get(k).cloned());
    items.sort_by_key(|item| {
        let id = id(item);
        order.iter().position(|o| self_id(o, key) == id).unwrap_or(usize::MAX)
    });
}

fn self_id(value: &Value, key: Option<&str>) -> Option<Value> {
    match key {
        Some(k) if value.is_object() => value.get(k).cloned(),
        _ => Some(value.clone()),
    }
}

fn without_directives(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter().filter(|(k, _)| !k.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(target: Value, patch: Value, expected: Value) {
        let mut merged = target;
        merge("Pod", &mut merged, &patch).unwrap();
        assert_eq!(merged, expected, "{patch}");
    }

    #[test]
    fn lists_merge_by_their_key_and_new_items_come_first() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}]}]}});
        check(
            pod.clone(),
            json!({"spec": {"containers": [{"name": "a", "image": "y"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "y", "env": [{"name": "E", "value": "1"}]}]}}),
        );
        check(
            pod.clone(),
            json!({"spec": {"containers": [{"name": "b", "image": "z"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "z"},
                {"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}]}]}}),
        );
        check(
            pod,
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                "containers": [{"name": "b", "image": "z"}, {"name": "a", "env": null}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "z"}]}}),
        );
    }

    #[test]
    fn directives_delete_replace_and_retain() {
        let pod = json!({"metadata": {"finalizers": ["a/b", "c/d"]}, "spec": {"volumes": [
            {"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}], "tolerations": [{"key": "k"}]}});
        check(
            pod.clone(),
            json!({"spec": {"volumes": [{"$patch": "delete", "name": "v"}], "tolerations": []}}),
            json!({"metadata": {"finalizers": ["a/b", "c/d"]}, "spec": {"volumes": [{"name": "w", "emptyDir": {}}],
                "tolerations": []}}),
        );
        check(
            pod.clone(),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}, "spec": {"volumes": [
                {"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]}}),
            json!({"metadata": {"finalizers": ["c/d"]}, "spec": {"volumes": [
                {"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}],
                "tolerations": [{"key": "k"}]}}),
        );
        check(
            pod,
            json!({"spec": {"$patch": "replace", "nodeName": "n"}, "metadata": null}),
            json!({"spec": {"nodeName": "n"}}),
        );
    }
}
