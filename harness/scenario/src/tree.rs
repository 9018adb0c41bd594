//! YAML as a tree that remembers where each node stands, so that what later stages find can be pointed at.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, Value};
use serde_saphyr::Spanned;

use crate::problem::{Mark, Problem};

/// Deepest nesting of a scenario.
const MAX_DEPTH: usize = 40;

/// A node and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Mark,
    /// A plain scalar as it was written, for fields that take text: `1.10` is not `1.1` there.
    pub(crate) raw: Option<String>,
    pub(crate) tree: Tree,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) at: Mark,
    pub(crate) name: String,
}

impl Node {
    /// A node made here, of a value, that stands where another stood.
    pub(crate) fn of(value: &Value, at: Mark) -> Self {
        let tree = match value {
            Value::Null => Tree::Null,
            Value::Bool(b) => Tree::Bool(*b),
            Value::Number(n) => Tree::Number(n.clone()),
            Value::String(s) => Tree::Text(s.clone()),
            Value::Array(list) => Tree::List(list.iter().map(|v| Self::of(v, at)).collect()),
            Value::Object(map) => {
                Tree::Map(map.iter().map(|(k, v)| (Key { at, name: k.clone() }, Self::of(v, at))).collect::<Vec<_>>())
            }
        };
        let raw = match value {
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        Self { at, raw, tree }
    }

    /// The plain value, whatever the schema says.
    pub(crate) fn value(&self) -> Value {
        match &self.tree {
            Tree::Null => Value::Null,
            Tree::Bool(b) => Value::Bool(*b),
            Tree::Number(n) => Value::Number(n.clone()),
            Tree::Text(s) => Value::String(s.clone()),
            Tree::List(list) => Value::Array(list.iter().map(Self::value).collect()),
            Tree::Map(map) => Value::Object(map.iter().map(|(k, v)| (k.name.clone(), v.value())).collect()),
        }
    }

    /// A key of a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Tree::Map(map) = &self.tree else { return None };
        map.iter().find(|(k, _)| k.name == key).map(|(_, v)| v)
    }

    /// A key of a mapping, to change.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Tree::Map(map) = &mut self.tree else { return None };
        map.iter_mut().find(|(k, _)| k.name == key).map(|(_, v)| v)
    }

    /// What it is, for messages.
    pub(crate) fn kind(&self) -> String {
        match &self.tree {
            Tree::Null => "nothing".into(),
            Tree::Bool(b) => format!("{b}"),
            Tree::Number(n) => format!("the number {n}"),
            Tree::Text(s) => format!("the text {:?}", s.chars().take(60).collect::<String>()),
            Tree::List(_) => "a list".into(),
            Tree::Map(_) => "a mapping".into(),
        }
    }
}

/// Reads a document.
pub(crate) fn read(text: &str, file: usize) -> Result<Node, Problem> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    };
    match serde_saphyr::from_str_with_options::<Spanned<Bare>>(text, options) {
        Ok(bare) => Ok(place(bare, text, file)),
        Err(e) => {
            let at = e.location().map(|l| Mark { file, line: l.line(), column: l.column() }).unwrap_or_default();
            Err(Problem::new(Mark { file, ..at }, e.without_snippet().to_string()))
        }
    }
}

fn mark<T>(s: &Spanned<T>, file: usize) -> Mark {
    Mark { file, line: s.referenced.line(), column: s.referenced.column() }
}

fn place(bare: Spanned<Bare>, text: &str, file: usize) -> Node {
    let at = mark(&bare, file);
    let span = bare.defined.span();
    let written = || {
        let from = usize::try_from(span.byte_offset()?).ok()?;
        let len = usize::try_from(span.byte_len()?).ok()?;
        text.get(from..from.checked_add(len)?).map(str::to_owned)
    };
    let (raw, tree) = match bare.value {
        Bare::Null => (None, Tree::Null),
        Bare::Bool(b) => (written().or(Some(b.to_string())), Tree::Bool(b)),
        Bare::Number(n) => (written().or(Some(n.to_string())), Tree::Number(n)),
        Bare::Text(s) => (None, Tree::Text(s)),
        Bare::List(list) => (None, Tree::List(list.into_iter().map(|n| place(n, text, file)).collect())),
        Bare::Map(map) => {
            let pair = |(k, v): (Spanned<String>, Spanned<Bare>)| {
                (Key { at: mark(&k, file), name: k.value }, place(v, text, file))
            };
            (None, Tree::Map(map.into_iter().map(pair).collect()))
        }
    };
    Node { at, raw, tree }
}

/// The same before its places are known.
enum Bare {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Bare>>),
    Map(Vec<(Spanned<String>, Spanned<Bare>)>),
}

impl<'de> Deserialize<'de> for Bare {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(BareVisitor)
    }
}

struct BareVisitor;

impl<'de> Visitor<'de> for BareVisitor {
    type Value = Bare;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Bare, E> {
        Ok(Bare::Null)
    }

    fn visit_none<E>(self) -> Result<Bare, E> {
        Ok(Bare::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Bare, D::Error> {
        Bare::deserialize(d)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Bare, E> {
        Ok(Bare::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Bare, E> {
        Ok(Bare::Number(n.into()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Bare, E> {
        Ok(Bare::Number(n.into()))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Bare, E> {
        Ok(Number::from_f64(n).map_or_else(|| Bare::Text(n.to_string()), Bare::Number))
    }

    fn visit_str<E>(self, s: &str) -> Result<Bare, E> {
        Ok(Bare::Text(s.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bare, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element()? {
            list.push(item);
        }
        Ok(Bare::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bare, A::Error> {
        let mut all = Vec::new();
        while let Some(pair) = map.next_entry()? {
            all.push(pair);
        }
        Ok(Bare::Map(all))
    }
}
