//! `${expression}` inside texts. What needs only `params` and `matrix` is filled in when a scenario is read, and may stand for
//! a value of any kind; what needs more stands for text in a step and is filled in when it is the step's turn. `$${` is `${`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    cel::{Cel, Vars},
    problem::Problem,
    tree::{Node, Tree},
};

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Expr(Cel),
}

/// Splits a text. A `$${` stays as it is.
pub(crate) fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut out = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        plain.push_str(before);
        if before.ends_with('$') {
            plain.push_str("${");
            rest = &after[2..];
            continue;
        }
        let end = close(&after[2..]).ok_or("a `${` without its `}`; write `$${` for the two characters themselves")?;
        if !plain.is_empty() {
            out.push(Part::Text(std::mem::take(&mut plain)));
        }
        out.push(Part::Expr(Cel(after[2..2 + end].to_owned())));
        rest = &after[2 + end + 1..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        out.push(Part::Text(plain));
    }
    Ok(out)
}

/// Where the brace that is open ends: braces nest, and do not count inside quotes.
fn close(text: &str) -> Option<usize> {
    let (mut open, mut quote) = (0usize, None);
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => open += 1,
            (None, '}') if open == 0 => return Some(i),
            (None, '}') => open -= 1,
            (None, _) => {}
        }
    }
    None
}

/// A value as it stands in a text.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

fn unescape(text: &str) -> String {
    text.replace("$${", "${")
}

/// Fills in every text of a value.
///
/// # Errors
/// The first expression that has no value, with why.
pub fn fill(value: &Value, vars: &Vars) -> Result<Value, String> {
    Ok(match value {
        Value::String(s) if s.contains("${") => {
            let mut out = String::new();
            for part in parts(s)? {
                match part {
                    Part::Text(t) => out.push_str(&unescape(&t)),
                    Part::Expr(e) => {
                        let value = e.eval(vars).map_err(|why| format!("`${{{}}}`: {why}", e.0))?;
                        out.push_str(&shown(&value));
                    }
                }
            }
            Value::String(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(|v| fill(v, vars)).collect::<Result<_, _>>()?),
        Value::Object(map) => {
            let pair = |(k, v): (&String, &Value)| Ok((k.clone(), fill(v, vars)?));
            Value::Object(map.iter().map(pair).collect::<Result<_, String>>()?)
        }
        other => other.clone(),
    })
}

/// Who reads a part of the file later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Later {
    /// A step, which is filled in again at its turn.
    Step,
    /// Nobody: everything must have a value now.
    Nobody,
}

/// Fills in what needs only `vars`, which are `params` and `matrix`.
pub(crate) fn fill_static(node: &mut Node, vars: &Vars, later: Later, problems: &mut BTreeSet<Problem>) {
    match &mut node.tree {
        Tree::List(list) => list.iter_mut().for_each(|n| fill_static(n, vars, later, problems)),
        Tree::Map(map) => map.iter_mut().for_each(|(_, n)| fill_static(n, vars, later, problems)),
        Tree::Text(text) if text.contains("${") => match text_static(text, vars, later) {
            Ok(value) => *node = Node::of(&value, node.at),
            Err(why) => {
                problems.insert(Problem::new(node.at, why));
            }
        },
        Tree::Text(_) | Tree::Null | Tree::Bool(_) | Tree::Number(_) => {}
    }
}

fn text_static(text: &str, vars: &Vars, later: Later) -> Result<Value, String> {
    let all = parts(text)?;
    let alone = all.len() == 1;
    let mut out = String::new();
    for part in all {
        match part {
            Part::Text(t) if later == Later::Nobody => out.push_str(&unescape(&t)),
            Part::Text(t) => out.push_str(&t),
            Part::Expr(e) => {
                let wrong = |why: String| format!("`${{{}}}`: {why}", e.0);
                let free = e.free().map_err(wrong)?;
                if free.iter().all(|n| vars.contains_key(n)) {
                    let value = e.eval(vars).map_err(wrong)?;
                    if alone {
                        return Ok(value);
                    }
                    out.push_str(&shown(&value));
                } else if later == Later::Step {
                    out.push_str(&format!("${{{}}}", e.0));
                } else {
                    let names: Vec<String> = free.into_iter().filter(|n| !vars.contains_key(n)).collect();
                    return Err(wrong(format!("{} is known to steps only", names.join(", "))));
                }
            }
        }
    }
    Ok(Value::String(out))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn vars() -> Vars {
        BTreeMap::from([("params".to_owned(), json!({"n": 3, "s": "x"}))])
    }

    #[test]
    fn a_text_that_is_one_expression_keeps_the_kind_of_its_value() {
        assert_eq!(text_static("${params.n}", &vars(), Later::Nobody), Ok(json!(3)));
        assert_eq!(text_static("a ${params.n}s ${params.s}", &vars(), Later::Nobody), Ok(json!("a 3s x")));
        assert_eq!(text_static("${ {'a': '}'}.a }", &vars(), Later::Nobody), Ok(json!("}")));
    }

    #[test]
    fn what_a_step_binds_is_left_for_its_turn_and_refused_elsewhere() {
        assert_eq!(text_static("${uid} ${params.n}", &vars(), Later::Step), Ok(json!("${uid} 3")));
        let why = text_static("${uid}", &vars(), Later::Nobody).unwrap_err();
        assert!(why.contains("uid is known to steps only"), "{why}");
        let bound = BTreeMap::from([("uid".to_owned(), json!("u-1"))]);
        assert_eq!(fill(&json!({"a": ["${uid}!", 1]}), &bound), Ok(json!({"a": ["u-1!", 1]})));
    }

    #[test]
    fn two_dollars_are_one_and_an_open_brace_is_an_error() {
        assert_eq!(text_static("$${HOME}", &vars(), Later::Nobody), Ok(json!("${HOME}")));
        assert_eq!(text_static("$${HOME}", &vars(), Later::Step), Ok(json!("$${HOME}")));
        assert_eq!(fill(&json!("$${HOME}"), &vars()), Ok(json!("${HOME}")));
        assert!(text_static("${params.n", &vars(), Later::Nobody).is_err());
    }
}
