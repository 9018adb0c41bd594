//! What a schema cannot see: scenarios that are read and played, and are not worth it. Each lint has an id, a reason, and
//! an example that has the fault and one that has not; both are tests.

mod catalogue;
pub(crate) mod facts;
mod names;
mod time;
mod worth;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use catalogue::{LINTS, Lint};

use crate::{Scenario, problem::suggest};

/// One thing a lint found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where in the scenario, e.g. `then[2]`.
    pub path: String,
    /// Which lint.
    pub lint: &'static str,
    /// What it found.
    pub text: String,
}

/// Gathers findings.
pub(crate) struct Found(Vec<Finding>);

impl Found {
    pub(crate) fn say(&mut self, lint: &'static str, path: &str, text: impl Into<String>) {
        self.0.push(Finding { path: path.to_owned(), lint, text: text.into() });
    }
}

/// Everything the lints find in one file, given as all its variants. What the file allows is left out; an allowance that is
/// not needed, or of a lint that does not exist, is a finding itself.
pub fn lint(variants: &[Scenario]) -> Vec<Finding> {
    let Some(first) = variants.first() else { return Vec::new() };
    let mut found = Found(Vec::new());
    for scenario in variants {
        time::check(scenario, &mut found);
        worth::check(scenario, &mut found);
        names::check(scenario, &mut found);
    }
    names::unused(first, variants, &mut found);
    worth::unreachable(first, variants, &mut found);
    let mut all = found.0;
    all.sort();
    all.dedup();
    let mut needed: BTreeMap<&str, bool> = first.allow.iter().map(|a| (a.lint.as_str(), false)).collect();
    all.retain(|f| match needed.get_mut(f.lint) {
        Some(hit) => {
            *hit = true;
            false
        }
        None => true,
    });
    for (i, allow) in first.allow.iter().enumerate() {
        let path = format!("allow[{}]", i + 1);
        let known = LINTS.iter().map(|l| l.id);
        if !known.clone().any(|id| id == allow.lint) {
            let text = format!("there is no lint {:?}{}", allow.lint, suggest(&allow.lint, known));
            all.push(Finding { path, lint: "idle-allow", text });
        } else if needed.get(allow.lint.as_str()) == Some(&false) {
            all.push(Finding { path, lint: "idle-allow", text: format!("{:?} finds nothing here", allow.lint) });
        }
    }
    all
}

/// Files whose intent another file has already, as (name, name of the other).
pub fn same_intent<'a>(files: impl IntoIterator<Item = (&'a str, &'a Scenario)>) -> Vec<(&'a str, &'a str)> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut out = Vec::new();
    for (name, scenario) in files {
        let intent = scenario.intent.trim().to_lowercase();
        match seen.get(&intent) {
            Some(other) => out.push((name, *other)),
            None => drop(seen.insert(intent, name)),
        }
    }
    out
}
