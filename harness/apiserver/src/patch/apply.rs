//! Server-side apply: merging an applied configuration into an object, with ownership and conflicts.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/util/managedfields, sigs.k8s.io/structured-merge-diff merge.

use std::collections::{BTreeMap, BTreeSet};

use podlab_api::{ApiError, Reason};
use serde_json::{Value, json};

use super::{
    fields::{FieldSet, Path, display, item_element, lookup, prune},
    managed::{self, Entry},
    merge_keys::{ListMerge, list_merge},
};
use crate::{
    kinds::{Kind, SubKind},
    tree::{has, text},
};

/// Merges `config` into `old` for `manager` and records what it owns.
///
/// # Errors
/// 400 for a configuration that carries managedFields, 409 naming each field that another manager owns and has set
/// differently, unless `force` takes it over.
pub(crate) fn apply(
    kind: &Kind,
    old: &Value,
    config: &Value,
    manager: &str,
    force: bool,
    sub: Option<SubKind>,
    now: &str,
) -> Result<Value, ApiError> {
    if has(config, "metadata.managedFields") {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let kind_name = kind.resource.kind;
    let subresource = if sub == Some(SubKind::Status) { "status" } else { "" };
    let api_version = kind.resource.api_version();
    let mut entries = managed::read(old);
    if entries.is_empty() {
        let mut set = FieldSet::of(kind_name, old);
        set.0.retain(|path| path.first().is_none_or(|f| f != "f:status"));
        entries.push(Entry {
            manager: "before-first-apply".into(),
            operation: "Update".into(),
            api_version: api_version.clone(),
            subresource: String::new(),
            time: now.into(),
            set,
        });
    }
    let mut wanted = FieldSet::of(kind_name, config);
    if kind.strategy.status && sub != Some(SubKind::Status) {
        wanted.0.retain(|path| path.first().is_none_or(|f| f != "f:status"));
    }
    let mut merged = old.clone();
    merge(kind_name, "", "", &mut merged, config);
    let is_mine = |e: &Entry| e.manager == manager && e.operation == "Apply" && e.subresource == subresource;
    let changed: BTreeSet<&Path> = wanted.0.iter().filter(|path| lookup(old, path) != lookup(&merged, path)).collect();
    let mut conflicts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in entries.iter().filter(|e| !is_mine(e)) {
        let contested: Vec<String> =
            changed.iter().filter(|p| entry.set.covers(p)).filter(|p| !is_item(p)).map(|p| display(p)).collect();
        if !contested.is_empty() {
            let with = if entry.subresource.is_empty() {
                format!("{:?} using {}", entry.manager, entry.api_version)
            } else {
                format!("{:?} with subresource {:?} using {}", entry.manager, entry.subresource, entry.api_version)
            };
            conflicts.entry(with).or_default().extend(contested);
        }
    }
    if !conflicts.is_empty() && !force {
        return Err(conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|e| !is_mine(e)) {
        entry.set.0.retain(|path| !changed.contains(path));
    }
    let before = entries.iter().find(|e| is_mine(e)).map(|e| e.set.clone()).unwrap_or_default();
    // What this manager no longer applies and nobody else owns goes, deepest first.
    let dropped = before.0.iter().rev().filter(|path| !wanted.covers(path));
    let orphaned: Vec<&Path> = dropped
        .filter(|path| !entries.iter().any(|e| !is_mine(e) && e.set.0.iter().any(|p| p.starts_with(path))))
        .collect();
    for path in orphaned {
        let still_used = wanted.0.iter().any(|p| p.starts_with(path));
        if !still_used {
            prune(&mut merged, path);
        }
    }
    match entries.iter_mut().find(|e| is_mine(e)) {
        Some(entry) => {
            if entry.set != wanted {
                entry.time = now.into();
            }
            entry.set = wanted;
        }
        None => entries.push(Entry {
            manager: manager.into(),
            operation: "Apply".into(),
            api_version,
            subresource: subresource.into(),
            time: now.into(),
            set: wanted,
        }),
    }
    managed::write(&mut merged, &entries);
    Ok(merged)
}

/// Whether a path is a list item itself: adding to a list is no conflict.
fn is_item(path: &[String]) -> bool {
    path.last().is_some_and(|e| e.starts_with("k:") || e.starts_with("v:"))
}

/// Merges maps field by field, keyed lists item by item; everything else is replaced.
fn merge(kind: &str, parent: &str, field: &str, target: &mut Value, config: &Value) {
    match config {
        Value::Object(fields) => {
            let map = crate::tree::map(target);
            for (key, value) in fields {
                if value.is_null() {
                    map.remove(key);
                } else {
                    merge(kind, field, key, map.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        Value::Array(items) => {
            if !target.is_array() {
                *target = Value::Array(Vec::new());
            }
            let Some(existing) = target.as_array_mut() else { return };
            match list_merge(kind, parent, field) {
                ListMerge::Atomic => *existing = items.clone(),
                ListMerge::Set => {
                    for item in items {
                        if !existing.contains(item) {
                            existing.push(item.clone());
                        }
                    }
                }
                ListMerge::Map(keys) => {
                    for item in items {
                        let id = item_element(item, keys);
                        match existing.iter_mut().find(|e| item_element(e, keys) == id) {
                            Some(found) => merge(kind, field, "", found, item),
                            None => existing.push(item.clone()),
                        }
                    }
                }
            }
        }
        scalar => *target = scalar.clone(),
    }
}

fn conflict(conflicts: &BTreeMap<String, Vec<String>>) -> ApiError {
    let total: usize = conflicts.values().map(Vec::len).sum();
    let mut message = format!("Apply failed with {total} conflict{}: ", if total == 1 { "" } else { "s" });
    let texts: Vec<String> = conflicts
        .iter()
        .map(|(with, paths)| match &paths[..] {
            [one] => format!("conflict with {with}: {one}"),
            many => format!("conflicts with {with}:\n- {}", many.join("\n- ")),
        })
        .collect();
    message.push_str(&texts.join("\n"));
    let causes: Vec<Value> = conflicts
        .iter()
        .flat_map(|(with, paths)| {
            paths.iter().map(move |path| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {with}"), "field": path})
            })
        })
        .collect();
    let mut error = ApiError::new(Reason::Conflict, message);
    error.details = Some(json!({"causes": causes}));
    error
}

/// The configuration of an apply that creates: what it says, minus what only the server sets.
pub(crate) fn for_create(config: &Value) -> Result<Value, ApiError> {
    if has(config, "metadata.managedFields") {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    if !text(config, "metadata.resourceVersion").is_empty() {
        return Err(ApiError::new(Reason::Conflict, "the object to apply to does not exist"));
    }
    Ok(config.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::registry;

    fn config(image: &str, label: Option<&str>) -> Value {
        let mut c = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "image": image}]}});
        if let Some(label) = label {
            c["metadata"]["labels"] = json!({"l": label});
        }
        c
    }

    fn apply_as(old: &Value, config: &Value, manager: &str, force: bool) -> Result<Value, ApiError> {
        apply(registry().core("pods"), old, config, manager, force, None, "2026-01-01T00:00:00Z")
    }

    #[test]
    fn a_field_no_longer_applied_goes_and_anothers_field_conflicts_until_forced() {
        let empty = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        let first = apply_as(&empty, &config("x", Some("1")), "one", false).unwrap();
        let second = apply_as(&first, &config("x", None), "one", false).unwrap();
        assert!(second["metadata"].get("labels").is_none(), "{second}");
        let error = apply_as(&second, &config("y", None), "two", false).unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"one\" using v1: .spec.containers[name=\"c\"].image"
        );
        let forced = apply_as(&second, &config("y", None), "two", true).unwrap();
        assert_eq!(forced["spec"]["containers"][0]["image"], "y");
        // `one` lost the field, so it does not come back when `two` drops it.
        assert!(apply_as(&forced, &config("x", None), "one", false).is_err());
    }
}
