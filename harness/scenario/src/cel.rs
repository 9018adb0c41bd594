//! Expressions: CEL over values as JSON knows them. Bounded, because a scenario is read from a file anybody may have
//! written; without order where CEL has none: a list made from a mapping comes in the order of its keys.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use cel::{
    Context, Program,
    common::ast::{EntryExpr, Expr, IdedExpr},
    objects::{Key, Map},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest expression, in bytes.
const MAX_LEN: usize = 1024;
/// Deepest nesting of brackets, signs and choices: the parser recurses.
const MAX_NESTED: usize = 24;
/// Deepest nesting of `all`, `map` and the like, so that no expression takes long.
const MAX_LOOPS: usize = 3;

/// An expression in CEL, e.g. `pods.a.status.phase == "Running"`. It sees `params`, `matrix`, `world`, `pods` (by name, as the
/// API has them), `podNames`, `gone`, `events`, `calls` (how often, by `<lane>.<method>`), and what was bound before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Cel(pub String);

/// Values by name.
pub type Vars = BTreeMap<String, Value>;

/// Names every expression may use.
pub const BUILTINS: [&str; 8] = ["params", "matrix", "world", "pods", "podNames", "gone", "events", "calls"];
/// Those of them that change while a scenario is played.
pub const LIVE: [&str; 5] = ["pods", "podNames", "gone", "events", "calls"];

thread_local! {
    /// Expressions that were read before: one is looked at in every state of a cluster.
    static READ: RefCell<BTreeMap<String, Rc<Program>>> = const { RefCell::new(BTreeMap::new()) };
}
/// Most of them that are kept.
const MAX_READ: usize = 64;

fn compile(source: &str) -> Result<Rc<Program>, String> {
    if let Some(program) = READ.with_borrow(|all| all.get(source).cloned()) {
        return Ok(program);
    }
    let program = Rc::new(parse(source)?);
    READ.with_borrow_mut(|all| {
        if all.len() >= MAX_READ {
            all.clear();
        }
        all.insert(source.to_owned(), program.clone());
    });
    Ok(program)
}

fn parse(source: &str) -> Result<Program, String> {
    if source.len() > MAX_LEN {
        return Err(format!("an expression may have {MAX_LEN} bytes"));
    }
    if source.trim().is_empty() {
        return Err("an expression must say something".into());
    }
    let (mut open, mut run, mut choices) = (0usize, 0usize, 0usize);
    for c in source.chars() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '?' => choices += 1,
            _ => {}
        }
        run = if matches!(c, '!' | '-') { run + 1 } else { 0 };
        if open.max(run).max(choices) > MAX_NESTED {
            return Err(format!("an expression may nest {MAX_NESTED} deep"));
        }
    }
    let program = Program::compile(source).map_err(|e| first_line(&e.to_string()))?;
    if loops(program.expression()) > MAX_LOOPS {
        return Err(format!("an expression may nest {MAX_LOOPS} loops"));
    }
    Ok(program)
}

fn first_line(text: &str) -> String {
    let text = text.trim();
    text.lines().next().unwrap_or(text).trim_start_matches("ERROR: ").to_owned()
}

impl Cel {
    /// Whether it can be read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        compile(&self.0).map(drop)
    }

    /// Names it refers to that it does not bind itself.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn free(&self) -> Result<BTreeSet<String>, String> {
        let program = compile(&self.0)?;
        let mut found = BTreeSet::new();
        free(program.expression(), &mut Vec::new(), &mut found);
        Ok(found)
    }

    /// Its value.
    ///
    /// # Errors
    /// When it cannot be read, or refers to what is not there.
    pub fn eval(&self, vars: &Vars) -> Result<Value, String> {
        let program = compile(&self.0)?;
        let context = context(program.expression(), vars);
        let value = program.execute(&context).map_err(|e| first_line(&e.to_string()))?;
        from_cel(&value)
    }

    /// Why it is not true: of conditions joined by `&&` the first that is false, with the values it compares.
    pub fn why_not(&self, vars: &Vars) -> String {
        let Ok(program) = compile(&self.0) else { return format!("`{}` is no expression", self.0) };
        let context = context(program.expression(), vars);
        let value = |e: &IdedExpr| match cel::Value::resolve(e, &context) {
            Ok(v) => from_cel(&v).map_or_else(|e| e, |v| v.to_string()),
            Err(e) => format!("unknown ({})", first_line(&e.to_string())),
        };
        let mut at = program.expression();
        while let Expr::Call(call) = &at.expr
            && let ("_&&_", [left, right]) = (call.func_name.as_str(), call.args.as_slice())
        {
            at = if value(left) == "true" { right } else { left };
        }
        match &at.expr {
            Expr::Call(call) if call.args.len() == 2 && COMPARE.contains(&call.func_name.as_str()) => {
                let sign = call.func_name.trim_matches('_').trim_start_matches('@');
                format!("`{}` is not so: it compares {} {sign} {}", self.0, value(&call.args[0]), value(&call.args[1]))
            }
            _ => format!("`{}` is {}", self.0, value(at)),
        }
    }

    /// Whether it is true; a value of another kind is an error.
    ///
    /// # Errors
    /// As [`Cel::eval`].
    pub fn holds(&self, vars: &Vars) -> Result<bool, String> {
        match self.eval(vars)? {
            Value::Bool(b) => Ok(b),
            other => Err(format!("it is {other}, neither true nor false")),
        }
    }
}

/// Functions that compare two values.
const COMPARE: [&str; 7] = ["_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"];

fn context<'a>(e: &IdedExpr, vars: &Vars) -> Context<'a, 'a> {
    let mut context = Context::default();
    let mut used = BTreeSet::new();
    free(e, &mut Vec::new(), &mut used);
    for (name, value) in vars.iter().filter(|(n, _)| used.contains(*n)) {
        context.add_variable_from_value(name.as_str(), to_cel(value));
    }
    context
}

fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(b) => cel::Value::Bool(*b),
        Value::Number(n) => {
            n.as_i64().map_or_else(|| cel::Value::Float(n.as_f64().unwrap_or(f64::NAN)), cel::Value::Int)
        }
        Value::String(s) => cel::Value::String(Arc::new(s.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let map = map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), to_cel(v))).collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

fn from_cel(value: &cel::Value) -> Result<Value, String> {
    Ok(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(b) => (*b).into(),
        cel::Value::Int(n) => (*n).into(),
        cel::Value::UInt(n) => (*n).into(),
        cel::Value::Float(n) => (*n).into(),
        cel::Value::String(s) => s.as_str().into(),
        cel::Value::List(list) => Value::Array(list.iter().map(from_cel).collect::<Result<_, _>>()?),
        cel::Value::Map(map) => {
            let pair = |(k, v): (&Key, &cel::Value)| Ok((k.to_string(), from_cel(v)?));
            Value::Object(map.map.iter().map(pair).collect::<Result<_, String>>()?)
        }
        other => return Err(format!("{other:?} has no form in JSON")),
    })
}

/// The expressions directly inside one, each with the names bound for it.
fn inside<'a>(e: &'a IdedExpr, each: &mut dyn FnMut(&'a IdedExpr, &[&'a str])) {
    match &e.expr {
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).for_each(|a| each(a, &[])),
        Expr::Comprehension(c) => {
            let mut names = vec![c.iter_var.as_str(), c.accu_var.as_str()];
            names.extend(c.iter_var2.as_deref());
            each(&c.iter_range, &[]);
            for part in [&c.accu_init, &c.loop_cond, &c.loop_step, &c.result] {
                each(part, &names);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(|a| each(a, &[])),
        Expr::Map(map) => entries(&map.entries, each),
        Expr::Struct(s) => entries(&s.entries, each),
        Expr::Select(s) => each(&s.operand, &[]),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn entries<'a>(all: &'a [cel::common::ast::IdedEntryExpr], each: &mut dyn FnMut(&'a IdedExpr, &[&'a str])) {
    for entry in all {
        match &entry.expr {
            EntryExpr::StructField(f) => each(&f.value, &[]),
            EntryExpr::MapEntry(m) => {
                each(&m.key, &[]);
                each(&m.value, &[]);
            }
        }
    }
}

fn free<'a>(e: &'a IdedExpr, bound: &mut Vec<&'a str>, found: &mut BTreeSet<String>) {
    if let Expr::Ident(name) = &e.expr
        && !name.starts_with('@')
        && !bound.contains(&name.as_str())
    {
        found.insert(name.clone());
    }
    inside(e, &mut |part, names| {
        let before = bound.len();
        bound.extend(names);
        free(part, bound, found);
        bound.truncate(before);
    });
}

fn loops(e: &IdedExpr) -> usize {
    let mut deepest = 0;
    inside(e, &mut |part, _| deepest = deepest.max(loops(part)));
    deepest + usize::from(matches!(e.expr, Expr::Comprehension(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vars() -> Vars {
        let pods = json!({"a": {"status": {"phase": "Running", "restarts": 2}}});
        BTreeMap::from([("pods".to_owned(), pods), ("podNames".to_owned(), json!(["a"]))])
    }

    #[test]
    fn an_expression_sees_values_and_says_what_is_missing() {
        let eval = |s: &str| Cel(s.into()).eval(&vars());
        assert_eq!(eval("pods.a.status.phase"), Ok(json!("Running")));
        assert_eq!(eval("pods.a.status.restarts + 1 == 3 && podNames.all(n, n in pods)"), Ok(json!(true)));
        assert_eq!(eval("podNames.map(n, {'name': n})"), Ok(json!([{"name": "a"}])));
        assert!(eval("pods.b.status").unwrap_err().contains('b'));
        assert!(Cel("pods.a.status.phase".into()).holds(&vars()).unwrap_err().contains("neither"));
    }

    #[test]
    fn what_is_not_so_is_said_with_the_values_compared() {
        let why = Cel("size(podNames) == 1 && pods.a.status.restarts > 2".into()).why_not(&vars());
        assert!(why.ends_with("it compares 2 > 2"), "{why}");
        assert!(Cel("pods.b.x == 1".into()).why_not(&vars()).contains("unknown"));
    }

    #[test]
    fn names_a_loop_binds_are_not_free() {
        let free = |s: &str| Cel(s.into()).free().unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(free("pods.all(p, pods[p].status.phase == want)"), ["pods", "want"]);
        assert_eq!(free("1 + 1 == 2"), Vec::<String>::new());
    }

    #[test]
    fn what_is_too_long_too_deep_or_not_an_expression_is_an_error_and_no_panic() {
        let deep = format!("{}1{}", "(".repeat(300), ")".repeat(300));
        let minus = format!("{}1", "-".repeat(900));
        let long = format!("1{}", " + 1".repeat(400));
        let loops = "[1].map(a, [1].map(b, [1].map(c, [1].map(d, 1))))";
        for bad in [deep.as_str(), &minus, &long, loops, "", "1 +", "a b", "\"", "${x}", "'\\"] {
            assert!(Cel(bad.into()).check().is_err(), "{bad}");
        }
    }
}
