//! From one file to its variants: parameters, the matrix, and the steps of libraries put where they are used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    cel::Vars,
    problem::{Files, Mark, Problem, suggest},
    template::{Later, fill_static, shown},
    tree::{self, Key, Node, Tree},
};

/// Most trials one file may make.
const MAX_VARIANTS: usize = 64;
/// Deepest use of libraries by libraries.
const MAX_USES: usize = 4;
/// Most libraries one file may use.
const MAX_FILES: usize = 32;
/// Largest library.
const MAX_BYTES: u64 = 256 << 10;

/// The parts of a scenario that are lists of steps.
const STEPS: [&str; 6] = ["given", "when", "then", "catch", "finally", "cleanup"];

/// One trial of a file.
#[derive(Debug)]
pub(crate) struct Variant {
    /// `[a=1,b=x]`, or nothing without a matrix.
    pub(crate) suffix: String,
    pub(crate) tree: Node,
    pub(crate) params: Value,
    pub(crate) matrix: Value,
}

/// What expanding needs and gathers.
pub(crate) struct Expander<'a> {
    /// Values for parameters, as they were written.
    pub(crate) overrides: &'a BTreeMap<String, String>,
    pub(crate) files: Files,
    pub(crate) problems: BTreeSet<Problem>,
}

fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_ascii_lowercase()) && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a binding or parameter may be called so.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if crate::cel::BUILTINS.contains(&name) {
        return Err(format!("{name:?} has a meaning of its own in expressions"));
    }
    if is_name(name) { Ok(()) } else { Err(format!("{name:?} is no name: a small letter, then letters, digits and _")) }
}

impl Expander<'_> {
    fn wrong(&mut self, at: Mark, text: impl Into<String>) {
        self.problems.insert(Problem::new(at, text));
    }

    /// All variants of a file whose tree is `root`.
    pub(crate) fn variants(&mut self, root: &Node, path: &Path) -> Vec<Variant> {
        let params = self.params(root);
        let combinations = self.matrix(root);
        let dir = path.parent().unwrap_or_else(|| Path::new(".")).to_owned();
        let mut out = Vec::new();
        for combination in combinations {
            let suffix = match combination.as_slice() {
                [] => String::new(),
                all => {
                    let all: Vec<String> = all.iter().map(|(k, v)| format!("{k}={}", shown(v))).collect();
                    format!("[{}]", all.join(","))
                }
            };
            let matrix = Value::Object(combination.into_iter().collect());
            let vars: Vars =
                [("params".to_owned(), params.clone()), ("matrix".to_owned(), matrix.clone())].into_iter().collect();
            let mut tree = root.clone();
            self.fill(&mut tree, &vars, &dir);
            out.push(Variant { suffix, tree, params: params.clone(), matrix });
        }
        out
    }

    fn fill(&mut self, tree: &mut Node, vars: &Vars, dir: &Path) {
        let Tree::Map(map) = &mut tree.tree else { return };
        for (key, node) in map {
            match key.name.as_str() {
                "params" | "matrix" => {}
                name if STEPS.contains(&name) => {
                    fill_static(node, vars, Later::Step, &mut self.problems);
                    self.steps(node, vars, dir, 0);
                }
                "always" => fill_static(node, vars, Later::Step, &mut self.problems),
                _ => fill_static(node, vars, Later::Nobody, &mut self.problems),
            }
        }
    }

    fn params(&mut self, root: &Node) -> Value {
        let mut out = Map::new();
        if let Some(Node { tree: Tree::Map(map), .. }) = root.get("params") {
            for (key, node) in map {
                if !is_name(&key.name) {
                    self.wrong(
                        key.at,
                        format!("params: {:?} is no name: a small letter, then letters, digits and _", key.name),
                    );
                }
                let default = node.value();
                if default.is_null() {
                    self.wrong(node.at, format!("params.{}: a parameter needs a default", key.name));
                }
                let value = match self.overrides.get(&key.name).map(|text| parse_as(text, &default)) {
                    None => default,
                    Some(Ok(value)) => value,
                    Some(Err(why)) => {
                        self.wrong(node.at, format!("params.{}: {why}", key.name));
                        default
                    }
                };
                out.insert(key.name.clone(), value);
            }
        }
        Value::Object(out)
    }

    /// Every combination of the matrix's values, the last name moving fastest; one empty combination without a matrix.
    fn matrix(&mut self, root: &Node) -> Vec<Vec<(String, Value)>> {
        let mut all = vec![Vec::new()];
        let Some(Node { tree: Tree::Map(map), .. }) = root.get("matrix") else { return all };
        for (key, node) in map {
            let Tree::List(list) = &node.tree else {
                self.wrong(node.at, format!("matrix.{}: {} where a list belongs", key.name, node.kind()));
                continue;
            };
            if !is_name(&key.name) || list.is_empty() {
                self.wrong(key.at, format!("matrix.{}: it needs a name in letters and at least one value", key.name));
                continue;
            }
            let mut values: Vec<Value> = Vec::new();
            for item in list {
                let value = item.value();
                let text = shown(&value);
                let fits = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
                let scalar = matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_));
                if !scalar || text.is_empty() || text.len() > 40 || !text.chars().all(fits) || values.contains(&value) {
                    let text =
                        "a value is part of the trial's name: at most 40 of a-z, 0-9, '.', '-' and '_', each once";
                    self.wrong(item.at, format!("matrix.{}: {text}", key.name));
                    continue;
                }
                values.push(value);
            }
            if all.len().saturating_mul(values.len()) > MAX_VARIANTS {
                self.wrong(key.at, format!("matrix: more than {MAX_VARIANTS} combinations"));
                return all;
            }
            all = all
                .iter()
                .flat_map(|so_far| {
                    values.iter().map(|v| {
                        let mut longer: Vec<(String, Value)> = so_far.clone();
                        longer.push((key.name.clone(), v.clone()));
                        longer
                    })
                })
                .collect();
        }
        all
    }

    /// Puts the steps of libraries where a list of steps uses them.
    fn steps(&mut self, list: &mut Node, vars: &Vars, dir: &Path, depth: usize) {
        let Tree::List(items) = &mut list.tree else { return };
        for item in items {
            let Tree::Map(map) = &mut item.tree else { continue };
            let Some((key, inner)) = map.first_mut() else { continue };
            match key.name.as_str() {
                "use" => {
                    if let Some(group) = self.library(inner, vars, dir, depth) {
                        *item = group;
                    }
                }
                "parallel" => {
                    if let Tree::List(branches) = &mut inner.tree {
                        branches.iter_mut().for_each(|b| self.steps(b, vars, dir, depth));
                    }
                }
                _ => {
                    for name in ["steps", "then", "else"] {
                        if let Some(list) = inner.get_mut(name) {
                            self.steps(list, vars, dir, depth);
                        }
                    }
                }
            }
        }
    }

    /// The group of steps that a `use` stands for.
    fn library(&mut self, what: &Node, vars: &Vars, dir: &Path, depth: usize) -> Option<Node> {
        let Some(Node { tree: Tree::Text(file), at, .. }) = what.get("file") else { return None };
        let at = *at;
        if depth >= MAX_USES {
            self.wrong(at, format!("use: libraries may use each other {MAX_USES} deep"));
            return None;
        }
        let path = dir.join(file);
        let (index, library) = self.read(&path, at)?;
        let mut header = BTreeMap::new();
        if let Tree::Map(map) = &library.tree {
            let known = ["apiVersion", "kind", "intent", "params", "steps"];
            for (key, node) in map {
                if !known.contains(&key.name.as_str()) {
                    self.wrong(key.at, format!("there is no key {:?}{}", key.name, suggest(&key.name, known)));
                }
                header.insert(key.name.as_str(), node);
            }
        }
        let top = Mark { file: index, line: 1, column: 1 };
        for (key, want) in [("apiVersion", "podlab/v1"), ("kind", "StepLibrary")] {
            if header.get(key).map(|n| n.value()) != Some(want.into()) {
                self.wrong(header.get(key).map_or(top, |n| n.at), format!("{key}: a library has {want:?} here"));
            }
        }
        let intent = header.get("intent").map(|n| n.value()).and_then(|v| v.as_str().map(|s| s.trim().to_owned()));
        let Some(intent) = intent.filter(|s| !s.is_empty()) else {
            self.wrong(top, "intent must say in one sentence what the steps do");
            return None;
        };
        let params = self.arguments(header.get("params").copied(), what.get("with"), at);
        let mut steps = header.get("steps").map(|n| (*n).clone()).or_else(|| {
            self.wrong(top, "\"steps\" is missing");
            None
        })?;
        let mut inner = vars.clone();
        inner.insert("params".to_owned(), params.clone());
        fill_static(&mut steps, &inner, Later::Step, &mut self.problems);
        self.steps(&mut steps, &inner, path.parent().unwrap_or(dir), depth + 1);
        let key = |name: &str| Key { at: what.at, name: name.to_owned() };
        let group = Node {
            at: what.at,
            raw: None,
            tree: Tree::Map(vec![
                (key("name"), Node::of(&Value::String(intent), what.at)),
                (key("params"), Node::of(&params, what.at)),
                (key("steps"), steps),
            ]),
        };
        Some(Node { at: what.at, raw: None, tree: Tree::Map(vec![(key("group"), group)]) })
    }

    /// A library's parameters: its defaults, and what is given instead.
    fn arguments(&mut self, declared: Option<&Node>, given: Option<&Node>, at: Mark) -> Value {
        let pairs = |node: Option<&Node>| match node.map(|n| &n.tree) {
            Some(Tree::Map(map)) => map.clone(),
            _ => Vec::new(),
        };
        let (declared, given) = (pairs(declared), pairs(given));
        let names: Vec<&str> = declared.iter().map(|(k, _)| k.name.as_str()).collect();
        for (key, _) in &given {
            if !names.contains(&key.name.as_str()) {
                let hint = suggest(&key.name, names.iter().copied());
                self.wrong(key.at, format!("use.with: the library has no parameter {:?}{hint}", key.name));
            }
        }
        let mut out = Map::new();
        for (key, default) in &declared {
            let value =
                given.iter().find(|(k, _)| k.name == key.name).map_or_else(|| default.value(), |(_, v)| v.value());
            if value.is_null() {
                self.wrong(at, format!("use.with: the library needs {:?}", key.name));
            }
            out.insert(key.name.clone(), value);
        }
        Value::Object(out)
    }

    /// A library's tree and its number among the files.
    fn read(&mut self, path: &PathBuf, at: Mark) -> Option<(usize, Node)> {
        let known = self.files.all.iter().position(|(p, _)| p == path);
        let index = known.unwrap_or(self.files.all.len());
        if known.is_none() {
            let text = match fs::metadata(path) {
                Ok(m) if m.len() > MAX_BYTES => Err("it is larger than 256 KiB".to_owned()),
                Ok(_) if index > MAX_FILES => Err(format!("it is one of more than {MAX_FILES} libraries")),
                Ok(_) => fs::read_to_string(path).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            match text {
                Ok(text) => self.files.all.push((path.clone(), text)),
                Err(why) => {
                    self.wrong(at, format!("use.file: {}: {why}", path.display()));
                    return None;
                }
            }
        }
        match tree::read(&self.files.all[index].1, index) {
            Ok(tree) => Some((index, tree)),
            Err(problem) => {
                self.problems.insert(problem);
                None
            }
        }
    }
}

/// A parameter's value from the command line, of the same kind as its default.
fn parse_as(text: &str, default: &Value) -> Result<Value, String> {
    if default.is_string() {
        return Ok(Value::String(text.to_owned()));
    }
    let value = tree::read(text, 0).map(|n| n.value()).unwrap_or(Value::Null);
    if std::mem::discriminant(&value) == std::mem::discriminant(default) {
        Ok(value)
    } else {
        Err(format!("{text:?} is not of the kind of its default, {default}"))
    }
}
