//! Sets of fields as `FieldsV1` writes them: `f:name`, `k:{"name":"x"}`, `v:"x"`, `.` for the item itself.
//! Source: sigs.k8s.io/structured-merge-diff fieldpath.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::merge_keys::{ListMerge, list_merge};

/// A path of `FieldsV1` elements.
pub(crate) type Path = Vec<String>;

/// A set of owned fields: leaves, and items of keyed lists themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet(pub BTreeSet<Path>);

/// Fields nobody owns.
fn unowned(path: &[String]) -> bool {
    match path {
        [one] => matches!(one.as_str(), "f:apiVersion" | "f:kind"),
        [meta, field] if meta == "f:metadata" => matches!(
            field.as_str(),
            "f:name"
                | "f:namespace"
                | "f:creationTimestamp"
                | "f:uid"
                | "f:resourceVersion"
                | "f:generation"
                | "f:managedFields"
                | "f:selfLink"
                | "f:deletionTimestamp"
                | "f:deletionGracePeriodSeconds"
        ),
        _ => false,
    }
}

impl FieldSet {
    /// All fields of an object of `kind`.
    pub fn of(kind: &str, object: &Value) -> Self {
        let mut out = Self::default();
        walk(kind, "", "", object, &mut Vec::new(), &mut |path, _| {
            out.0.insert(path.to_vec());
        });
        out
    }

    /// The fields whose value in `new` is not that in `old`, and those that are gone from it.
    pub fn changes(kind: &str, old: &Value, new: &Value) -> (Self, Self) {
        let values = |object: &Value| {
            let mut map = std::collections::BTreeMap::new();
            walk(kind, "", "", object, &mut Vec::new(), &mut |path, value| {
                map.insert(path.to_vec(), value.cloned());
            });
            map
        };
        let (before, after) = (values(old), values(new));
        let changed =
            after.iter().filter(|(path, value)| before.get(*path) != Some(value)).map(|(path, _)| path.clone());
        let gone = before.keys().filter(|path| !after.contains_key(*path)).cloned();
        (Self(changed.collect()), Self(gone.collect()))
    }

    /// Reads `fieldsV1`; unreadable parts are left out.
    pub fn parse(fields: &Value) -> Self {
        fn read(fields: &Value, path: &mut Path, out: &mut BTreeSet<Path>) {
            let Some(map) = fields.as_object() else { return };
            if map.is_empty() && !path.is_empty() {
                out.insert(path.clone());
            }
            for (key, inner) in map {
                if key == "." {
                    out.insert(path.clone());
                } else {
                    path.push(key.clone());
                    read(inner, path, out);
                    path.pop();
                }
            }
        }
        let mut out = BTreeSet::new();
        read(fields, &mut Vec::new(), &mut out);
        Self(out)
    }

    /// Writes `fieldsV1`.
    pub fn to_value(&self) -> Value {
        let mut root = Map::new();
        for path in &self.0 {
            let mut at = &mut root;
            for element in path {
                let slot = at.entry(element.clone()).or_insert_with(|| Value::Object(Map::new()));
                at = crate::tree::map(slot);
            }
        }
        // A member that also has members below it says so with a dot.
        for path in &self.0 {
            let node =
                path.iter().try_fold(&mut root, |at, element| at.get_mut(element).and_then(Value::as_object_mut));
            if let Some(map) = node.filter(|m| !m.is_empty()) {
                map.insert(".".into(), Value::Object(Map::new()));
            }
        }
        Value::Object(root)
    }

    /// Whether a path, or a leaf that contains it, is in the set.
    pub fn covers(&self, path: &[String]) -> bool {
        self.0.contains(path)
    }
}

/// Calls `leaf` for every leaf and for every item of a keyed list (then without a value).
fn walk(
    kind: &str,
    parent: &str,
    field: &str,
    value: &Value,
    path: &mut Path,
    leaf: &mut dyn FnMut(&[String], Option<&Value>),
) {
    if unowned(path) {
        return;
    }
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, inner) in map {
                path.push(format!("f:{key}"));
                walk(kind, field, key, inner, path, leaf);
                path.pop();
            }
        }
        Value::Array(items) => match list_merge(kind, parent, field) {
            ListMerge::Atomic => leaf(path, Some(value)),
            ListMerge::Set => {
                for item in items {
                    path.push(format!("v:{item}"));
                    leaf(path, Some(item));
                    path.pop();
                }
            }
            ListMerge::Map(keys) => {
                for item in items {
                    path.push(item_element(item, keys));
                    leaf(path, None);
                    walk(kind, field, "", item, path, leaf);
                    path.pop();
                }
            }
        },
        _ => leaf(path, Some(value)),
    }
}

/// `k:{"name":"x"}` of an item. The protocol of a port is TCP when it is not said.
pub(crate) fn item_element(item: &Value, keys: &[&str]) -> String {
    let mut id = Map::new();
    for key in keys {
        match item.get(*key) {
            Some(value) => {
                id.insert((*key).into(), value.clone());
            }
            None if *key == "protocol" => {
                id.insert("protocol".into(), "TCP".into());
            }
            None => {}
        }
    }
    format!("k:{}", Value::Object(id))
}

/// The value at a path, if it is there.
pub(crate) fn lookup<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |at, element| match element.split_at_checked(2)? {
        ("f:", key) => at.get(key),
        ("k:", id) => at.as_array()?.iter().find(|i| is_item(i, id)),
        ("v:", text) => at.as_array()?.iter().find(|i| is_value(i, text)),
        _ => None,
    })
}

/// Whether a value is the one that its JSON text names.
fn is_value(value: &Value, text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|named| named == *value)
}

fn is_item(item: &Value, id: &str) -> bool {
    let Ok(Value::Object(id)) = serde_json::from_str(id) else { return false };
    id.iter().all(|(key, wanted)| item.get(key).map_or_else(|| key == "protocol" && wanted == "TCP", |v| v == wanted))
}

/// Removes the value at a path; maps and lists that become empty go too.
pub(crate) fn prune(value: &mut Value, path: &[String]) {
    let Some((element, rest)) = path.split_first() else { return };
    let Some((sort, id)) = element.split_at_checked(2) else { return };
    match (sort, value) {
        ("f:", Value::Object(map)) => {
            if rest.is_empty() {
                map.remove(id);
            } else if let Some(inner) = map.get_mut(id) {
                prune(inner, rest);
                if inner.as_array().is_some_and(Vec::is_empty) || inner.as_object().is_some_and(Map::is_empty) {
                    map.remove(id);
                }
            }
        }
        ("k:", Value::Array(items)) => {
            if rest.is_empty() {
                items.retain(|i| !is_item(i, id));
            } else if let Some(item) = items.iter_mut().find(|i| is_item(i, id)) {
                prune(item, rest);
            }
        }
        ("v:", Value::Array(items)) => items.retain(|i| !is_value(i, id)),
        _ => {}
    }
}

/// A path as conflict messages write it: `.spec.containers[name="x"].image`.
pub(crate) fn display(path: &[String]) -> String {
    let mut out = String::new();
    for element in path {
        match element.split_at_checked(2) {
            Some(("f:", key)) => {
                out.push('.');
                out.push_str(key);
            }
            Some(("k:", id)) => {
                let fields = match serde_json::from_str(id) {
                    Ok(Value::Object(map)) => map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
                    _ => id.to_owned(),
                };
                out.push_str(&format!("[{fields}]"));
            }
            Some(("v:", text)) => out.push_str(&format!("[={text}]")),
            _ => {}
        }
    }
    out
}
