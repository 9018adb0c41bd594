//! Label and field selectors: parsing, and matching on objects.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/{labels,fields}/selector.go.

use podlab_api::ApiError;
use serde_json::Value;

use crate::tree::{at, entries, list, text};

/// One condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

/// A conjunction of conditions on labels. The empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<(String, Condition)>);

impl LabelSelector {
    /// Reads `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// 400 with what could not be read.
    pub fn parse(input: &str) -> Result<Self, ApiError> {
        let bad = |why: &str| ApiError::bad_request(format!("unable to parse requirement: {why} in {input:?}"));
        let mut out = Vec::new();
        for part in split_outside_parentheses(input) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let (key, condition) = if let Some((key, values)) = set(part, " notin ") {
                (key, Condition::NotIn(values.ok_or_else(|| bad("no values"))?))
            } else if let Some((key, values)) = set(part, " in ") {
                (key, Condition::In(values.ok_or_else(|| bad("no values"))?))
            } else if let Some((key, value)) = part.split_once("!=") {
                (key, Condition::NotIn(vec![value.trim().to_owned()]))
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, Condition::In(vec![value.trim().to_owned()]))
            } else if let Some((key, value)) = part.split_once('>') {
                (key, Condition::Greater(value.trim().parse().map_err(|_| bad("not an integer"))?))
            } else if let Some((key, value)) = part.split_once('<') {
                (key, Condition::Less(value.trim().parse().map_err(|_| bad("not an integer"))?))
            } else if let Some(key) = part.strip_prefix('!') {
                (key, Condition::Absent)
            } else {
                (part, Condition::Exists)
            };
            let key = key.trim();
            if let Some(rule) = crate::names::qualified(key).first() {
                return Err(bad(&format!("key {key:?}: {rule}")));
            }
            out.push((key.to_owned(), condition));
        }
        Ok(Self(out))
    }

    /// Reads a `metav1.LabelSelector`; null matches nothing (`None`), the empty one everything.
    pub fn from_object(selector: &Value) -> Option<Self> {
        if !selector.is_object() {
            return None;
        }
        let mut out: Vec<(String, Condition)> = entries(selector, "matchLabels")
            .map(|(k, v)| (k.clone(), Condition::In(vec![v.as_str().unwrap_or_default().to_owned()])))
            .collect();
        for e in list(selector, "matchExpressions") {
            let values = list(e, "values").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let condition = match text(e, "operator") {
                "In" => Condition::In(values),
                "NotIn" => Condition::NotIn(values),
                "Exists" => Condition::Exists,
                "DoesNotExist" => Condition::Absent,
                _ => return None,
            };
            out.push((text(e, "key").to_owned(), condition));
        }
        Some(Self(out))
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object's labels satisfy it.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "metadata.labels");
        self.0.iter().all(|(key, condition)| {
            let value = labels.get(key).and_then(Value::as_str);
            match condition {
                Condition::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
                Condition::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
                Condition::Exists => value.is_some(),
                Condition::Absent => value.is_none(),
                Condition::Greater(n) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *n),
                Condition::Less(n) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *n),
            }
        })
    }
}

/// `key <word> (a, b)`; the inner `None` is a malformed list.
fn set<'a>(part: &'a str, word: &str) -> Option<(&'a str, Option<Vec<String>>)> {
    let spaced = part.find(word).map(|i| (&part[..i], &part[i + word.len()..]));
    let tight = || {
        let open = part.find('(')?;
        let key = part[..open].strip_suffix(word.trim_end())?;
        Some((key, &part[open..]))
    };
    let (key, rest) = spaced.or_else(tight)?;
    let inner = rest.trim().strip_prefix('(').and_then(|r| r.strip_suffix(')'));
    Some((key, inner.map(|i| i.split(',').map(|v| v.trim().to_owned()).collect())))
}

fn split_outside_parentheses(input: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (i, c) in input.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                out.push(&input[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&input[start..]);
    out
}

/// A field that a kind lets itself be selected by: its label and where it is in the object; where the first of several
/// places, parted by `|`, says nothing, the next one counts.
pub(crate) type SelectableField = (&'static str, &'static str);

/// A conjunction of (in)equalities on fields. The empty one matches everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldSelector(Vec<FieldCondition>);

#[derive(Debug, Clone)]
struct FieldCondition {
    path: &'static str,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Reads `a=b,c!=d` for a kind with the given fields beside `metadata.name` and `metadata.namespace`.
    ///
    /// # Errors
    /// 400 for what cannot be read and for a field that the kind does not offer.
    pub fn parse(input: &str, fields: &[SelectableField], namespaced: bool) -> Result<Self, ApiError> {
        let mut out = Vec::new();
        for part in input.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (label, value, equal) = if let Some((l, v)) = part.split_once("!=") {
                (l, v, false)
            } else if let Some((l, v)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (l, v, true)
            } else {
                let why = format!("invalid selector: '{input}'; can't understand '{part}'");
                return Err(ApiError::bad_request(why));
            };
            let path = match label {
                "metadata.name" => Some("metadata.name"),
                "metadata.namespace" if namespaced => Some("metadata.namespace"),
                _ => fields.iter().find(|(known, _)| *known == label).map(|(_, path)| *path),
            };
            let unknown = || ApiError::bad_request(format!("field label not supported: {label}"));
            let path = path.ok_or_else(unknown)?;
            out.push(FieldCondition { path, value: value.to_owned(), equal });
        }
        Ok(Self(out))
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object's fields satisfy it.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|c| {
            let places = c.path.split('|').map(|path| at(object, path));
            let says = |v: &&Value| !v.is_null() && v.as_str() != Some("");
            let value = places.clone().find(says).or_else(|| places.clone().next()).unwrap_or(&Value::Null);
            let equal = match value {
                Value::String(s) => *s == c.value,
                // These are booleans in upstream's structs, so unset reads as false.
                Value::Null if matches!(c.path, "spec.hostNetwork" | "spec.unschedulable") => c.value == "false",
                Value::Null => c.value.is_empty(),
                other => *other == c.value,
            };
            equal == c.equal
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_match_as_documented() {
        let object = json!({"metadata": {"labels": {"app": "web", "n": "5"}}});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,n", true),
            ("app!=web", false),
            ("tier!=db", true),
            ("app in (api, web)", true),
            ("app in(web)", true),
            ("app notin (web)", false),
            ("tier notin (db)", true),
            ("!app", false),
            ("!tier", true),
            ("n>4", true),
            ("n<5", false),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), expected, "{selector}");
        }
        assert!(LabelSelector::parse("a b").is_err());
    }

    #[test]
    fn field_selectors_know_only_the_fields_of_the_kind() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {"a": "", "b": "b"}, "status": {"phase": "Running"}});
        let fields =
            [("spec.nodeName", "spec.nodeName"), ("status.phase", "status.phase"), ("source", "spec.a|spec.b")];
        for (selector, expected) in [
            ("metadata.name=a", true),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
            ("source=b", true),
            ("status.phase!=Failed,status.phase=Running", true),
        ] {
            let parsed = FieldSelector::parse(selector, &fields, true).unwrap();
            assert_eq!(parsed.matches(&pod), expected, "{selector}");
        }
        let error = FieldSelector::parse("spec.foo=1", &fields, true).unwrap_err();
        assert_eq!(error.message, "field label not supported: spec.foo");
    }
}
