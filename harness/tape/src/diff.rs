//! Two answers compared in normal form: ids and addresses have to correspond, times to be there or not, the rest to be
//! equal.

use std::collections::BTreeMap;

use serde_json::Value;

/// Fields whose strings a plugin makes up: another plugin has others, one for one.
const NAMES: [&str; 10] = [
    "pod_sandbox_id",
    "sandbox_id",
    "container_id",
    "id",
    "volume_id",
    "snapshot_id",
    "image_id",
    "image_ref",
    "ip",
    "url",
];
/// Fields of which only matters whether they are set.
const TIMES: [&str; 5] = ["created_at", "started_at", "finished_at", "timestamp", "creation_time"];
/// Fields that say how big or busy something is, or are meant for a person who debugs.
const IGNORED: [&str; 6] = ["info", "size_", "size", "repo_digests", "runtime_version", "vendor_version"];
/// Methods whose answers are measurements.
const MEASURING: [&str; 7] = [
    "ContainerStats",
    "ListContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "ImageFsInfo",
    "NodeGetVolumeStats",
    "GetCapacity",
];
/// Shortest name that is also looked for inside longer strings.
const MIN_INSIDE: usize = 8;

/// Which name of the tape is which of the plugin.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    to_actual: BTreeMap<String, String>,
    to_recorded: BTreeMap<String, String>,
}

impl Names {
    /// Whether two names correspond; two that were never seen before do from now on.
    fn agree(&mut self, recorded: &str, actual: &str) -> bool {
        match (self.to_actual.get(recorded), self.to_recorded.get(actual)) {
            (None, None) => {
                self.to_actual.insert(recorded.to_owned(), actual.to_owned());
                self.to_recorded.insert(actual.to_owned(), recorded.to_owned());
                true
            }
            (known, _) => known.is_some_and(|k| k == actual),
        }
    }

    /// A request of the tape with the plugin's names in it.
    pub(crate) fn translate(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|v| self.translate(v)).collect(),
            Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), self.translate(v))).collect(),
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        if let Some(actual) = self.to_actual.get(text) {
            return actual.clone();
        }
        let inside = self.to_actual.iter().filter(|(k, _)| k.len() >= MIN_INSIDE);
        inside.fold(text.to_owned(), |text, (recorded, actual)| text.replace(recorded, actual))
    }
}

/// Where an answer differs from the recorded one. Names are learned only from one that does not.
pub(crate) fn answers(method: &str, recorded: &Value, actual: &Value, names: &mut Names) -> Vec<String> {
    if MEASURING.contains(&method) {
        return Vec::new();
    }
    let mut learned = names.clone();
    let mut found = Vec::new();
    compare("", "", recorded, actual, &mut learned, &mut found);
    if found.is_empty() {
        *names = learned;
    }
    found
}

fn compare(path: &str, key: &str, recorded: &Value, actual: &Value, names: &mut Names, found: &mut Vec<String>) {
    if IGNORED.contains(&key) {
        return;
    }
    let differs = |what: &str| {
        format!("{}: recorded {}, now {}{what}", path.trim_start_matches('.'), short(recorded), short(actual))
    };
    if TIMES.contains(&key) {
        if is_set(recorded) != is_set(actual) {
            found.push(differs(""));
        }
        return;
    }
    match (recorded, actual) {
        (Value::Object(r), Value::Object(a)) => {
            let keys: std::collections::BTreeSet<&String> = r.keys().chain(a.keys()).collect();
            for k in keys {
                let (r, a) = (r.get(k).unwrap_or(&Value::Null), a.get(k).unwrap_or(&Value::Null));
                compare(&format!("{path}.{k}"), k, r, a, names, found);
            }
        }
        (Value::Array(r), Value::Array(a)) => {
            if r.len() != a.len() {
                found.push(format!("{}: recorded {} items, now {}", path.trim_start_matches('.'), r.len(), a.len()));
                return;
            }
            for (i, (r, a)) in ordered(r).into_iter().zip(ordered(a)).enumerate() {
                compare(&format!("{path}[{i}]"), key, r, a, names, found);
            }
        }
        (Value::String(r), Value::String(a)) if NAMES.contains(&key) && !r.is_empty() && !a.is_empty() => {
            if !names.agree(r, a) {
                found.push(differs(", which is another one"));
            }
        }
        (Value::String(r), Value::String(a)) => {
            if names.text(r) != *a {
                found.push(differs(""));
            }
        }
        (r, a) if r == a => {}
        _ => found.push(differs("")),
    }
}

/// Lists of objects have the order of what names them: a plugin may list in any.
fn ordered(items: &[Value]) -> Vec<&Value> {
    let mut all: Vec<&Value> = items.iter().collect();
    all.sort_by_key(|v| v.get("metadata").map(Value::to_string));
    all
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Number(n) => n.as_i64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => true,
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_ids_are_the_same_answer_as_long_as_they_correspond() {
        let mut names = Names::default();
        let same = |names: &mut Names, r: Value, a: Value| answers("X", &r, &a, names);
        assert!(
            same(&mut names, json!({"container_id": "recorded-1"}), json!({"container_id": "actual-9"})).is_empty()
        );
        assert!(same(&mut names, json!({"id": "recorded-1"}), json!({"id": "actual-9"})).is_empty());
        let other = same(&mut names, json!({"id": "recorded-1"}), json!({"id": "actual-8"}));
        assert!(other[0].contains("another one"), "{other:?}");
        let merged = same(&mut names, json!({"id": "recorded-2"}), json!({"id": "actual-9"}));
        assert_eq!(merged.len(), 1, "two of the tape are one now");
        assert_eq!(
            names.translate(&json!(["recorded-1", "/run/recorded-1/x"])),
            json!(["actual-9", "/run/actual-9/x"])
        );
        assert_eq!(same(&mut names, json!({"id": "recorded-3"}), json!({"id": ""})).len(), 1);
    }

    #[test]
    fn times_only_have_to_be_there_and_lists_may_be_in_any_order() {
        let mut names = Names::default();
        let mut compare = |r: Value, a: Value| answers("ListContainers", &r, &a, &mut names).len();
        assert_eq!(compare(json!({"finished_at": 17}), json!({"finished_at": 99})), 0);
        assert_eq!(compare(json!({"finished_at": 17}), json!({"finished_at": 0})), 1);
        let one = |name: &str, state: u8| json!({"metadata": {"name": name}, "state": state});
        assert_eq!(compare(json!([one("a", 1), one("b", 2)]), json!([one("b", 2), one("a", 1)])), 0);
        assert_eq!(compare(json!([one("a", 1), one("b", 2)]), json!([one("b", 1), one("a", 1)])), 1);
        assert_eq!(compare(json!({"exit_code": 137}), json!({"exit_code": 0})), 1);
        assert_eq!(compare(json!([one("a", 1)]), json!([])), 1);
    }
}
