//! What a scenario remembers of its file: the tree it was read from, where each part of it stands, and the values of this
//! variant of it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::problem::{Files, Mark, Problem};

/// The file behind a scenario. Empty for one that was not read from a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Source {
    /// The whole as plain values, libraries and parameters filled in.
    pub(crate) tree: Value,
    /// Where each path stands.
    pub(crate) marks: BTreeMap<String, Mark>,
    /// The files.
    pub(crate) files: Files,
    /// `params` of this variant.
    pub params: Value,
    /// `matrix` of this variant: one value each.
    pub matrix: Value,
}

impl Source {
    /// Where a path stands, or the nearest part around it that is known.
    pub fn mark(&self, path: &str) -> Mark {
        let mut path = path;
        loop {
            if let Some(mark) = self.marks.get(path) {
                return *mark;
            }
            match path.rfind(['.', '[']) {
                Some(at) => path = &path[..at],
                None => return self.marks.get("").copied().unwrap_or_default(),
            }
        }
    }

    /// `file:line:column: text` with the line below it.
    pub fn render(&self, path: &str, text: &str) -> String {
        self.files.render(&Problem::new(self.mark(path), text))
    }

    /// The plain value of a top-level key, as it is written.
    pub fn value(&self, key: &str) -> Option<Value> {
        self.tree.get(key).cloned()
    }

    /// The plain value at a path such as `then[2].retry.steps[1]`, if it holds a text with `${` in it: such a step is filled
    /// in when it is its turn.
    pub fn template(&self, path: &str) -> Option<&Value> {
        let value = self.tree.pointer(&pointer(path))?;
        mentions(value).then_some(value)
    }
}

/// The JSON pointer of a path.
fn pointer(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.') {
        let mut pieces = part.split('[');
        out.push('/');
        out.push_str(pieces.next().unwrap_or_default());
        for index in pieces {
            let n: usize = index.trim_end_matches(']').parse().unwrap_or(0);
            out.push_str(&format!("/{}", n.saturating_sub(1)));
        }
    }
    out
}

fn mentions(value: &Value) -> bool {
    match value {
        Value::String(s) => s.contains("${"),
        Value::Array(list) => list.iter().any(mentions),
        Value::Object(map) => map.values().any(mentions),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_a_pointer() {
        assert_eq!(pointer("then[2].retry.steps[1]"), "/then/1/retry/steps/0");
        assert_eq!(pointer("then[1].parallel[2][3]"), "/then/0/parallel/1/2");
    }
}
