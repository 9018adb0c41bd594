//! Steps made of steps: conditions, repetition, branches, libraries; and what is bound and expected in between.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{Cel, Matcher, Moment, Span, Step};

/// Demands that an expression is true.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// What must be true; it has to look at the cluster, or at something bound before.
    pub that: Cel,
    /// How long to wait for it; what is not so at once fails after two seconds when absent.
    #[serde(default)]
    pub within: Option<Span>,
    /// Why it must be so, for whoever reads the failure.
    #[serde(default)]
    pub because: Option<String>,
}

/// Demands that something does not come about for a while. Exactly one of `match`, `that` and `of` says what.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Never {
    /// A state of a Pod, also one that does not last.
    #[serde(rename = "match", default)]
    pub what: Option<Matcher>,
    /// An expression.
    #[serde(default)]
    pub that: Option<Cel>,
    /// An entry of the run log, from the beginning of the run.
    #[serde(default)]
    pub of: Option<Moment>,
    /// How long to go on looking.
    #[serde(rename = "for")]
    pub duration: Span,
}

/// Steps that are done when an expression is true.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct If {
    /// The condition.
    pub that: Cel,
    /// When it is true.
    pub then: Vec<Step>,
    /// When it is not.
    #[serde(rename = "else", default)]
    pub otherwise: Vec<Step>,
}

/// Steps that are done again from the first one when one of them fails.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// How often at most, 2 to 100.
    pub attempts: u32,
    /// How long to wait between two attempts.
    #[serde(default)]
    pub every: Option<Span>,
    /// What is tried.
    pub steps: Vec<Step>,
}

/// Steps that are done several times.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Repeat {
    /// How often, 1 to 1000; with `until`, how often at most.
    pub times: u32,
    /// Ends it when true after a round; that it never became true fails.
    #[serde(default)]
    pub until: Option<Cel>,
    /// What is repeated; `round` counts from 1.
    pub steps: Vec<Step>,
}

/// Steps that are done for each item of a list.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForEach {
    /// The list. An empty one fails: nothing would have been looked at.
    #[serde(rename = "in")]
    pub list: Cel,
    /// Name of the item in the steps.
    #[serde(rename = "as")]
    pub name: String,
    /// What is done for each.
    pub steps: Vec<Step>,
}

/// Steps under a name. What a library's steps become where it is used.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// What they do together.
    pub name: String,
    /// `params` for these steps, instead of the scenario's.
    #[serde(default)]
    pub params: Option<BTreeMap<String, Value>>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Steps from a library.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Use {
    /// The library's file, relative to this one.
    pub file: String,
    /// Its parameters.
    #[serde(default)]
    pub with: BTreeMap<String, Value>,
}

/// What holds at every moment of the run, from the first step to the last.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Invariant {
    /// An expression that is never false. One that cannot be evaluated (yet) is not false.
    pub that: Cel,
    /// Why, for whoever reads the failure.
    pub because: String,
}

/// How long the parts after the last step may take, each for itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Budgets {
    /// `catch`.
    pub catch: Span,
    /// `finally`.
    pub finally: Span,
    /// `cleanup`.
    pub cleanup: Span,
}

impl Default for Budgets {
    fn default() -> Self {
        let span = |s| Span(std::time::Duration::from_secs(s));
        Self { catch: span(30), finally: span(60), cleanup: span(60) }
    }
}

/// A lint that does not apply to this file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allow {
    /// Its id, as `podlab lint --list` shows it.
    pub lint: String,
    /// Why.
    pub because: String,
}

/// A file of steps for scenarios to use.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepLibrary {
    /// Format version.
    pub api_version: crate::ApiVersion,
    /// What this file is.
    pub kind: LibraryKind,
    /// What its steps do, in one sentence.
    pub intent: String,
    /// Parameters with their defaults; `null` for one that must be given.
    #[serde(default)]
    pub params: BTreeMap<String, Value>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// What a library file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum LibraryKind {
    /// Steps to use.
    StepLibrary,
}

impl Step {
    /// The lists of steps inside a step, each with its name there, e.g. `retry.steps`.
    pub fn inner(&self) -> Vec<(String, &[Step])> {
        match self {
            Self::If(s) => vec![("if.then".to_owned(), &s.then[..]), ("if.else".to_owned(), &s.otherwise[..])],
            Self::Retry(s) => vec![("retry.steps".to_owned(), &s.steps[..])],
            Self::Repeat(s) => vec![("repeat.steps".to_owned(), &s.steps[..])],
            Self::ForEach(s) => vec![("forEach.steps".to_owned(), &s.steps[..])],
            Self::Limit(s) => vec![("limit.steps".to_owned(), &s.steps[..])],
            Self::Group(s) => vec![("group.steps".to_owned(), &s.steps[..])],
            Self::Parallel(branches) => {
                branches.iter().enumerate().map(|(i, b)| (format!("parallel[{}]", i + 1), &b[..])).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Calls `each` for this step and every step inside it, with its path.
    pub fn walk<'a>(&'a self, path: &str, each: &mut dyn FnMut(&str, &'a Step)) {
        each(path, self);
        for (name, steps) in self.inner() {
            for (i, step) in steps.iter().enumerate() {
                step.walk(&format!("{path}.{name}[{}]", i + 1), each);
            }
        }
    }
}
