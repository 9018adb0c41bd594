//! Reading and filling JSON trees by dotted path. A missing path reads as null, the empty string or the empty list.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a dotted path (`spec.nodeName`), or null.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |v, key| v.get(key)).unwrap_or(&NULL)
}

/// The string at a dotted path, or the empty one.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The integer at a dotted path.
pub(crate) fn int(value: &Value, path: &str) -> Option<i64> {
    at(value, path).as_i64()
}

/// The list at a dotted path, or the empty one.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The entries of the map at a dotted path, in key order.
pub(crate) fn entries<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(value, path).as_object().into_iter().flatten()
}

/// Whether the boolean at a dotted path is true.
pub(crate) fn yes(value: &Value, path: &str) -> bool {
    at(value, path).as_bool().unwrap_or(false)
}

/// Whether there is something at a dotted path.
pub(crate) fn has(value: &Value, path: &str) -> bool {
    !at(value, path).is_null()
}

/// `value` as a map; anything else is replaced by an empty one.
pub(crate) fn map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made a map in the line above")
}

/// The map at a dotted path, created with its parents when absent.
pub(crate) fn map_at<'a>(value: &'a mut Value, path: &str) -> &'a mut Map<String, Value> {
    map(path.split('.').fold(value, |v, key| map(v).entry(key).or_insert(Value::Null)))
}

/// The list at a dotted path, created with its parents when absent.
pub(crate) fn list_at<'a>(value: &'a mut Value, path: &str) -> &'a mut Vec<Value> {
    let slot = path.split('.').fold(value, |v, key| map(v).entry(key).or_insert(Value::Null));
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut().expect("made a list in the line above")
}

/// The existing list at a dotted path, for changing its elements.
pub(crate) fn each_mut<'a>(value: &'a mut Value, path: &str) -> std::slice::IterMut<'a, Value> {
    let found = path.split('.').try_fold(value, |v, key| v.get_mut(key)).and_then(Value::as_array_mut);
    found.map_or_else(|| [].iter_mut(), |l| l.iter_mut())
}

/// The existing value at a dotted path, for changing it.
pub(crate) fn get_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |v, key| v.get_mut(key))
}

/// Sets `key` of the map at a dotted path; the empty path is the value itself.
pub(crate) fn put(value: &mut Value, path: &str, new: impl Into<Value>) {
    match path.rsplit_once('.') {
        Some((parent, key)) => map_at(value, parent).insert(key.into(), new.into()),
        None => map(value).insert(path.into(), new.into()),
    };
}

/// Removes what is at a dotted path.
pub(crate) fn remove(value: &mut Value, path: &str) -> Option<Value> {
    match path.rsplit_once('.') {
        Some((parent, key)) => get_mut(value, parent)?.as_object_mut()?.remove(key),
        None => value.as_object_mut()?.remove(path),
    }
}

/// Sets `key` of a map when it is absent or null.
pub(crate) fn fill(value: &mut Value, key: &str, default: impl Into<Value>) {
    let slot = map(value).entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = default.into();
    }
}

/// Sets `key` of a map when it is absent, null or the empty string.
pub(crate) fn fill_text(value: &mut Value, key: &str, default: &str) {
    let slot = map(value).entry(key).or_insert(Value::Null);
    if slot.is_null() || slot.as_str() == Some("") {
        *slot = default.into();
    }
}

/// Makes a dotted path of `to` as it is in `from`, also when it is absent there.
pub(crate) fn copy(from: &Value, to: &mut Value, path: &str) {
    match at(from, path) {
        Value::Null => {
            remove(to, path);
        }
        found => put(to, path, found.clone()),
    }
}
