//! `lint`: everything that is wrong with a folder of scenarios, without playing them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, bail};
use podlab_scenario::{
    LoadError, Scenario, discover,
    lint::{Finding, LINTS, Lint, lint, same_intent},
    load_all,
};
use serde_json::json;

use crate::{cli::Format, out::say};

/// What to look at, and how to say it.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scenarios: PathBuf,
    pub(crate) list: bool,
    pub(crate) explain: Option<String>,
    pub(crate) format: Format,
}

/// One line of the result.
struct Said {
    path: PathBuf,
    line: u64,
    column: u64,
    lint: &'static str,
    text: String,
    shown: String,
}

pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    if o.list {
        LINTS.iter().for_each(|l| say!("{:<20} {}", l.id, l.what));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(id) = &o.explain {
        let Some(l) = LINTS.iter().find(|l| l.id == id) else {
            bail!("there is no lint {id:?}; `podlab lint --list` shows them");
        };
        say!("{}", explain(l));
        return Ok(ExitCode::SUCCESS);
    }
    let (count, said) = if o.scenarios.is_file() { look_at(&o.scenarios)? } else { look(&o.scenarios)? };
    match o.format {
        Format::Json => {
            let all: Vec<_> = said
                .iter()
                .map(|s| json!({"path": s.path, "line": s.line, "column": s.column, "lint": s.lint, "text": s.text}))
                .collect();
            say!("{}", serde_json::to_string_pretty(&json!({"version": 1, "scenarios": count, "findings": all}))?);
        }
        Format::Text => {
            said.iter().for_each(|s| say!("{}", s.shown));
            match said.len() {
                0 if count == 1 => say!("1 scenario is fine"),
                0 => say!("{count} scenarios are fine"),
                n => say!("findings: {n}, scenarios: {count}; `podlab lint --explain ID` says more of one"),
            }
        }
    }
    Ok(if said.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One file, looked at among its neighbours: the same intent twice is told of it as well.
fn look_at(file: &Path) -> Result<(usize, Vec<Said>)> {
    let root = file.ancestors().skip(1).find(|d| d.ends_with("scenarios")).or_else(|| file.parent());
    let root = root.filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let same = |p: &Path| p.canonicalize().ok().is_some_and(|p| Some(p) == file.canonicalize().ok());
    let said = look(root)?.1;
    Ok((1, said.into_iter().filter(|s| same(&s.path)).collect()))
}

fn look(root: &Path) -> Result<(usize, Vec<Said>)> {
    let mut said = Vec::new();
    let mut read: Vec<(String, PathBuf, Scenario)> = Vec::new();
    let found = discover(root)?;
    if found.is_empty() {
        bail!("there is no scenario in {}", root.display());
    }
    let count = found.len();
    for (name, path) in found {
        match load_all(&path, &BTreeMap::new()) {
            Ok(all) => {
                let variants: Vec<Scenario> = all.into_iter().map(|(_, s)| s).collect();
                let Some(first) = variants.first().cloned() else { continue };
                said.extend(lint(&variants).into_iter().map(|f| say(&path, &first, f)));
                read.push((name, path, first));
            }
            Err(e) => said.extend(unreadable(path, e)),
        }
    }
    for (name, other) in same_intent(read.iter().map(|(n, _, s)| (n.as_str(), s))) {
        if let Some((_, path, s)) = read.iter().find(|(n, _, _)| n == name) {
            let text = format!("{other} has the same intent");
            said.push(say(path, s, Finding { path: "intent".into(), lint: "same-intent", text }));
        }
    }
    Ok((count, said))
}

fn say(path: &Path, scenario: &Scenario, f: Finding) -> Said {
    let at = scenario.origin.mark(&f.path);
    let text = if f.path.is_empty() { f.text } else { format!("{}: {}", f.path, f.text) };
    let shown = scenario.origin.render(&f.path, &format!("[{}] {text}", f.lint));
    Said { path: path.to_owned(), line: at.line, column: at.column, lint: f.lint, text, shown }
}

/// A file that is no scenario: one line for each thing that is wrong.
fn unreadable(path: PathBuf, e: LoadError) -> Vec<Said> {
    let shown = e.to_string();
    match e {
        LoadError::Invalid { problems, .. } if !problems.is_empty() => {
            let one = |(i, p): (usize, podlab_scenario::Problem)| {
                // The text has them all in the same order; it is shown once.
                let shown = if i == 0 { shown.clone() } else { String::new() };
                Said {
                    path: path.clone(),
                    line: p.at.line,
                    column: p.at.column,
                    lint: "unreadable",
                    text: p.text,
                    shown,
                }
            };
            problems.into_iter().enumerate().map(one).collect()
        }
        _ => vec![Said { path, line: 0, column: 0, lint: "unreadable", text: shown.clone(), shown }],
    }
}

fn explain(l: &Lint) -> String {
    let bad = if l.refused { "Such a file is not read" } else { "It finds" };
    format!(
        "# {}\n\n{} {}\n\n{bad}:\n\n{}\nIt is content with:\n\n{}",
        l.id,
        l.what,
        l.why,
        indent(l.bad),
        indent(l.good)
    )
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
}
