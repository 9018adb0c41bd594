//! From files to scenarios, with everything that is wrong at its line and column.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Scenario, Source, check,
    expand::{Expander, Variant},
    problem::{Files, Mark, Problem},
    shape::{self, Shape},
    tree,
};

/// Larger files are refused unread.
const MAX_BYTES: u64 = 256 << 10;

/// Why a scenario could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than any scenario.
    #[error("{0}: larger than 256 KiB; a scenario is one behaviour")]
    TooLarge(PathBuf),
    /// It is not a scenario. The text has a line for each thing that is wrong, each followed by the line it is about.
    #[error("{text}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What is wrong and where.
        text: String,
        /// The same, one by one.
        problems: Vec<Problem>,
    },
}

/// Reads one file; of several variants the first.
///
/// # Errors
/// [`LoadError`].
pub fn load(path: &Path) -> Result<Scenario, LoadError> {
    first(load_all(path, &BTreeMap::new())?, path)
}

/// Reads one file with every combination of its matrix, each with its suffix `[name=value,…]`. `params` are values for
/// parameters, as they were written; those the file does not have are no error here.
///
/// # Errors
/// [`LoadError`].
pub fn load_all(path: &Path, params: &BTreeMap<String, String>) -> Result<Vec<(String, Scenario)>, LoadError> {
    let read = |source| LoadError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(read)?.len() > MAX_BYTES {
        return Err(LoadError::TooLarge(path.to_owned()));
    }
    parse_all(&fs::read_to_string(path).map_err(read)?, path, params)
}

/// Reads a scenario from text; `path` is for messages and for files it refers to. Of several variants the first.
///
/// # Errors
/// [`LoadError::Invalid`].
pub fn parse(text: &str, path: &Path) -> Result<Scenario, LoadError> {
    first(parse_all(text, path, &BTreeMap::new())?, path)
}

fn first(all: Vec<(String, Scenario)>, path: &Path) -> Result<Scenario, LoadError> {
    let none = || LoadError::Invalid { path: path.to_owned(), text: "no variant".into(), problems: Vec::new() };
    all.into_iter().next().map(|(_, s)| s).ok_or_else(none)
}

/// As [`load_all`], from text.
///
/// # Errors
/// [`LoadError::Invalid`].
pub fn parse_all(
    text: &str,
    path: &Path,
    params: &BTreeMap<String, String>,
) -> Result<Vec<(String, Scenario)>, LoadError> {
    let files = Files { all: vec![(path.to_owned(), text.to_owned())] };
    let mut expander = Expander { overrides: params, files, problems: BTreeSet::new() };
    let mut out = Vec::new();
    if let Some(problem) = manifest(text) {
        let text = expander.files.render(&problem);
        return Err(LoadError::Invalid { path: path.to_owned(), text, problems: vec![problem] });
    }
    match tree::read(text, 0) {
        Err(problem) => {
            expander.problems.insert(problem);
        }
        Ok(root) => {
            let variants = expander.variants(&root, path);
            // An expression without a value leaves a text where something else belongs; one error for it is enough.
            if expander.problems.is_empty() {
                for variant in variants {
                    out.extend(typed(variant, path, &expander.files, &mut expander.problems));
                }
            } else if let Some(variant) = variants.into_iter().next() {
                let mut shape = Shape::new(shape::scenario());
                shape.value(&variant.tree, shape::scenario(), "");
                let lines: BTreeSet<(usize, u64)> = expander.problems.iter().map(|p| (p.at.file, p.at.line)).collect();
                expander
                    .problems
                    .extend(shape.problems.into_iter().filter(|p| !lines.contains(&(p.at.file, p.at.line))));
            }
        }
    }
    if expander.problems.is_empty() {
        return Ok(out);
    }
    let text = expander.files.render_all(&expander.problems);
    Err(LoadError::Invalid { path: path.to_owned(), text, problems: expander.problems.into_iter().collect() })
}

/// A manifest that lies where scenarios are, by its first `apiVersion`: everything else that could be said of it misleads.
fn manifest(text: &str) -> Option<Problem> {
    let mut lines = text.lines().zip(1..);
    let (version, line) =
        lines.find_map(|(l, n)| Some((l.strip_prefix("apiVersion:")?.trim().trim_matches(['"', '\'']), n)))?;
    let names_podlab = version.is_empty() || version.to_lowercase().contains("podlab");
    (!names_podlab).then(|| {
        let why = format!("a manifest of {version:?} and no scenario; what scenarios apply stands in a folder whose name begins with \"_\", such as _pods");
        Problem::new(Mark { file: 0, line, column: 1 }, why)
    })
}

/// The scenario of a variant, or what is wrong with it.
fn typed(variant: Variant, path: &Path, files: &Files, problems: &mut BTreeSet<Problem>) -> Option<(String, Scenario)> {
    let mut shape = Shape::new(shape::scenario());
    let tree = shape.value(&variant.tree, shape::scenario(), "");
    let (marks, found) = (shape.marks, shape.problems);
    if !found.is_empty() {
        problems.extend(found);
        return None;
    }
    let top = Mark { file: 0, line: 1, column: 1 };
    let mut scenario: Scenario = match serde_json::from_value(tree.clone()) {
        Ok(scenario) => scenario,
        Err(e) => {
            problems.insert(Problem::new(top, e.to_string()));
            return None;
        }
    };
    scenario.origin = Source { tree, marks, files: files.clone(), params: variant.params, matrix: variant.matrix };
    let wrong = check::check(&scenario, path);
    for (path, text) in &wrong {
        let at = scenario.origin.mark(path);
        problems.insert(Problem::new(at, if path.is_empty() { text.clone() } else { format!("{path}: {text}") }));
    }
    wrong.is_empty().then_some((variant.suffix, scenario))
}

/// All scenario files below a folder with their names, sorted: `*.yaml`, without folders that begin with `_` or hold
/// schemas, and without `quarantine.yaml` at the top.
///
/// # Errors
/// [`LoadError::Read`] when the folder cannot be read.
pub fn discover(root: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let mut found = Vec::new();
    walk(root, root, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, PathBuf)>) -> Result<(), LoadError> {
    let read = |source| LoadError::Read { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('_') && name != "schema" {
                walk(root, &path, found)?;
            }
        } else if name.ends_with(".yaml")
            && !(dir == root && name == "quarantine.yaml")
            && let Ok(relative) = path.strip_prefix(root)
        {
            found.push((relative.with_extension("").display().to_string(), path));
        }
    }
    Ok(())
}
