//! Holds a tree against the schema: every unknown key, missing key and wrong type of a file at once, each at its place. What
//! comes out are plain values that the types can be made from.

use std::{collections::BTreeMap, sync::OnceLock};

use serde_json::{Map, Value};

use crate::{
    Cel, Rate, Scenario, Span, StepLibrary,
    problem::{Mark, Problem, suggest},
    tree::{Node, Tree},
};

/// The schema of scenarios, made once.
pub(crate) fn scenario() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schemars::schema_for!(Scenario).to_value())
}

/// The schema of step libraries, made once.
pub(crate) fn library() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schemars::schema_for!(StepLibrary).to_value())
}

/// One pass over a tree.
pub(crate) struct Shape<'a> {
    root: &'a Value,
    /// What was wrong.
    pub(crate) problems: Vec<Problem>,
    /// Where each path stands.
    pub(crate) marks: BTreeMap<String, Mark>,
}

impl<'a> Shape<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        Self { root, problems: Vec::new(), marks: BTreeMap::new() }
    }

    fn wrong(&mut self, at: Mark, path: &str, text: &str) -> Value {
        let text = if path.is_empty() { text.to_owned() } else { format!("{path}: {text}") };
        self.problems.push(Problem::new(at, text));
        Value::Null
    }

    /// The value of a node that shall be as the schema says.
    pub(crate) fn value(&mut self, node: &Node, schema: &Value, path: &str) -> Value {
        self.marks.insert(path.to_owned(), node.at);
        let root = self.root;
        let Some(s) = schema.as_object() else { return node.value() };
        if let Some(name) = s.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/")) {
            return self.named(node, name, &root["$defs"][name], path);
        }
        if let Some(all) = s.get("anyOf").and_then(Value::as_array) {
            let null = |v: &&Value| v["type"] == "null";
            return match all.iter().find(|v| !null(v)) {
                _ if node.tree == Tree::Null && all.iter().any(|v| null(&v)) => Value::Null,
                Some(one) => self.value(node, one, path),
                None => node.value(),
            };
        }
        if let Some(all) = s.get("oneOf").and_then(Value::as_array) {
            return self.one_of(node, all, path);
        }
        if let Some(all) = s.get("enum").and_then(Value::as_array) {
            let words: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
            return self.word(node, &words, path);
        }
        if let Some(word) = s.get("const").and_then(Value::as_str) {
            return self.word(node, &[word], path);
        }
        let types: Vec<&str> = match s.get("type") {
            Some(Value::String(t)) => vec![t],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => return node.value(),
        };
        if node.tree == Tree::Null && types.contains(&"null") {
            return Value::Null;
        }
        match types.first().copied().unwrap_or_default() {
            "object" => self.object(node, s, path),
            "array" => self.list(node, &s["items"], path),
            "string" => self.text(node, path),
            kind => self.scalar(node, kind, s, path),
        }
    }

    /// A definition by name; two of them are more than their schema says.
    fn named(&mut self, node: &Node, name: &str, schema: &Value, path: &str) -> Value {
        let value = self.value(node, schema, path);
        let checked = match (name, value.as_str()) {
            ("Span", Some(text)) => text.parse::<Span>().map(drop),
            ("Rate", Some(text)) => text.parse::<Rate>().map(drop),
            ("Cel", Some(text)) => Cel(text.to_owned()).check().map_err(|e| format!("{text:?} is no expression: {e}")),
            _ => Ok(()),
        };
        match checked {
            Ok(()) => value,
            Err(why) => self.wrong(node.at, path, &why),
        }
    }

    fn one_of(&mut self, node: &Node, all: &[Value], path: &str) -> Value {
        let mut words: Vec<&str> = all.iter().filter_map(|v| v["const"].as_str()).collect();
        words.extend(all.iter().filter_map(|v| v["enum"].as_array()).flatten().filter_map(Value::as_str));
        let tags: Vec<(&str, &Value)> = all
            .iter()
            .filter_map(|v| v["properties"].as_object())
            .flat_map(|p| p.iter().map(|(k, v)| (k.as_str(), v)))
            .collect();
        if tags.is_empty() {
            return self.word(node, &words, path);
        }
        let names = || tags.iter().map(|(k, _)| *k).chain(words.iter().copied());
        match &node.tree {
            Tree::Map(map) => {
                let Some((key, inner)) = map.first() else {
                    return self.wrong(
                        node.at,
                        path,
                        &format!("it needs one of {}", names().collect::<Vec<_>>().join(", ")),
                    );
                };
                for (extra, _) in map.iter().skip(1) {
                    self.wrong(
                        extra.at,
                        path,
                        &format!("{:?} stands beside {:?}; one of them is enough here", extra.name, key.name),
                    );
                }
                match tags.iter().find(|(k, _)| *k == key.name) {
                    Some((k, schema)) => {
                        let value = self.value(inner, schema, &format!("{path}.{k}"));
                        Value::Object(Map::from_iter([((*k).to_owned(), value)]))
                    }
                    None => {
                        let hint = suggest(&key.name, names());
                        self.wrong(key.at, path, &format!("there is no {:?} here{hint}", key.name))
                    }
                }
            }
            Tree::Text(word) if words.contains(&word.as_str()) => Value::String(word.clone()),
            Tree::Text(word) => {
                let hint = suggest(word, names());
                self.wrong(node.at, path, &format!("there is no {word:?} here{hint}"))
            }
            _ => self.wrong(node.at, path, &format!("{} where a mapping with one key belongs", node.kind())),
        }
    }

    fn word(&mut self, node: &Node, words: &[&str], path: &str) -> Value {
        match &node.tree {
            Tree::Text(word) if words.contains(&word.as_str()) => Value::String(word.clone()),
            Tree::Text(word) => {
                let hint = suggest(word, words.iter().copied());
                self.wrong(node.at, path, &format!("there is no {word:?} here{hint}"))
            }
            _ => self.wrong(node.at, path, &format!("{} where one of {} belongs", node.kind(), words.join(", "))),
        }
    }

    fn object(&mut self, node: &Node, s: &Map<String, Value>, path: &str) -> Value {
        let Tree::Map(map) = &node.tree else {
            return self.wrong(node.at, path, &format!("{} where a mapping belongs", node.kind()));
        };
        let empty = Map::new();
        let known = s.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let other = s.get("additionalProperties");
        let mut out = Map::new();
        for (key, inner) in map {
            let at = if path.is_empty() { key.name.clone() } else { format!("{path}.{}", key.name) };
            match (known.get(&key.name), other) {
                (Some(schema), _) | (None, Some(schema @ Value::Object(_))) => {
                    let value = self.value(inner, schema, &at);
                    out.insert(key.name.clone(), value);
                }
                (None, Some(Value::Bool(false))) => {
                    let hint = suggest(&key.name, known.keys().map(String::as_str));
                    self.wrong(key.at, path, &format!("there is no key {:?}{hint}", key.name));
                }
                (None, _) => {
                    out.insert(key.name.clone(), inner.value());
                }
            }
        }
        for need in s.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !map.iter().any(|(k, _)| k.name == need) {
                self.wrong(node.at, path, &format!("{need:?} is missing"));
            }
        }
        Value::Object(out)
    }

    fn list(&mut self, node: &Node, items: &Value, path: &str) -> Value {
        let Tree::List(list) = &node.tree else {
            return self.wrong(node.at, path, &format!("{} where a list belongs", node.kind()));
        };
        let each = |(i, n): (usize, &Node)| self.value(n, items, &format!("{path}[{}]", i + 1));
        Value::Array(list.iter().enumerate().map(each).collect())
    }

    fn text(&mut self, node: &Node, path: &str) -> Value {
        match (&node.tree, &node.raw) {
            (Tree::Text(s), _) => Value::String(s.clone()),
            (Tree::Bool(_) | Tree::Number(_), Some(raw)) => Value::String(raw.clone()),
            _ => self.wrong(node.at, path, &format!("{} where text belongs", node.kind())),
        }
    }

    fn scalar(&mut self, node: &Node, kind: &str, s: &Map<String, Value>, path: &str) -> Value {
        if matches!(&node.tree, Tree::Text(t) if t.contains("${")) {
            return self.wrong(node.at, path, "what a step binds is text; only params and matrix can stand here");
        }
        match (kind, &node.tree) {
            ("boolean", Tree::Bool(b)) => Value::Bool(*b),
            ("number", Tree::Number(n)) => Value::Number(n.clone()),
            ("integer", Tree::Number(n)) if n.is_i64() || n.is_u64() => {
                let (least, most) = range(s);
                let n = n.as_i64().map_or(i128::from(n.as_u64().unwrap_or(0)), i128::from);
                if (least..=most).contains(&n) {
                    return node.value();
                }
                self.wrong(node.at, path, &format!("{n} must be between {least} and {most}"))
            }
            _ => {
                let article = if kind == "integer" { "an" } else { "a" };
                self.wrong(node.at, path, &format!("{} where {article} {kind} belongs", node.kind()))
            }
        }
    }
}

/// The least and the greatest value of an integer.
fn range(s: &Map<String, Value>) -> (i128, i128) {
    let format = s.get("format").and_then(Value::as_str).unwrap_or("int64");
    let (mut least, mut most) = match format {
        "uint8" => (0, i128::from(u8::MAX)),
        "uint16" => (0, i128::from(u16::MAX)),
        "uint32" => (0, i128::from(u32::MAX)),
        "int32" => (i128::from(i32::MIN), i128::from(i32::MAX)),
        "uint" | "uint64" => (0, i128::from(u64::MAX)),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    let bound = |key| s.get(key).and_then(Value::as_i64).map(i128::from);
    least = bound("minimum").map_or(least, |b| b.max(least));
    most = bound("maximum").map_or(most, |b| b.min(most));
    (least, most)
}
