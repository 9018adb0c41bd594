//! The top of a scenario.

use std::collections::BTreeMap;

use podlab_fault::Fault;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{Allow, Budgets, Capability, Gate, Invariant, Measure, RecordSeam, Source, Span, Step, Workload};

/// The only version there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// `podlab/v1`.
    #[serde(rename = "podlab/v1")]
    V1,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Kind {
    /// One behaviour to play.
    Scenario,
}

/// Where a scenario is played: on real containers and the real clock, in the virtual world under a paused one, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Worlds {
    /// Real containers only.
    #[default]
    Real,
    /// The virtual world only.
    Virtual,
    /// In each of them, with the same normalized timeline.
    Both,
}

impl Worlds {
    /// Whether it is played on real containers.
    pub fn real(self) -> bool {
        self != Self::Virtual
    }

    /// Whether it is played in the virtual world.
    pub fn virtual_too(self) -> bool {
        self != Self::Real
    }
}

/// Size of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterNeeds {
    /// Number of nodes.
    pub nodes: u8,
    /// CPUs of each node, in thousandths.
    pub node_cpu_milli: u64,
}

impl Default for ClusterNeeds {
    fn default() -> Self {
        Self { nodes: 1, node_cpu_milli: 2000 }
    }
}

/// What is kept of the run and compared with what was recorded before.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Pods whose normalised timelines are kept.
    pub timeline: Vec<String>,
}

/// One scenario.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Format version.
    pub api_version: ApiVersion,
    /// What this file is.
    pub kind: Kind,
    /// What holds when it passes, in one sentence.
    pub intent: String,
    /// Where the rule comes from: a specification's section or an upstream path.
    #[serde(default)]
    pub source: Option<String>,
    /// Free words to select by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The worlds it is played in.
    #[serde(default)]
    pub clock: Worlds,
    /// Capabilities without which it is skipped.
    #[serde(default)]
    pub requires: Vec<Capability>,
    /// The cluster it is played on.
    #[serde(default)]
    pub cluster: ClusterNeeds,
    /// What goes wrong at the seams.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Before the behaviour.
    #[serde(default)]
    pub given: Vec<Step>,
    /// The behaviour.
    #[serde(default)]
    pub when: Vec<Step>,
    /// What must be true.
    #[serde(default)]
    pub then: Vec<Step>,
    /// Pods that arrive by a plan, after `when`.
    #[serde(default)]
    pub load: Option<Workload>,
    /// What is measured of them.
    #[serde(default)]
    pub measure: Vec<Measure>,
    /// How good that must be.
    #[serde(default)]
    pub gate: Vec<Gate>,
    /// What is kept of it.
    #[serde(default)]
    pub snapshot: Option<Snapshot>,
    /// Seams whose calls are written on tapes, one for each node, beside the run log; on real containers.
    #[serde(default)]
    pub record: Vec<RecordSeam>,
    /// From boot to the last step it may take this long.
    #[serde(default)]
    pub budget: Option<Span>,
    /// Values for `${params.NAME}` anywhere below, with defaults; `--param NAME=VALUE` gives others of the same type.
    #[serde(default)]
    pub params: BTreeMap<String, Value>,
    /// One trial for each combination of these values, `path[name=value]`; `${matrix.NAME}` stands for the value.
    #[serde(default)]
    pub matrix: BTreeMap<String, Vec<Value>>,
    /// What holds all the time.
    #[serde(default)]
    pub always: Vec<Invariant>,
    /// Done when a step has failed, before `finally`; to find out more. Changes no verdict.
    #[serde(default)]
    pub catch: Vec<Step>,
    /// Done after the last step, whatever came of it; fails the trial when it fails.
    #[serde(default)]
    pub finally: Vec<Step>,
    /// Done at the very end, whatever came of it; what fails here is the harness's trouble.
    #[serde(default)]
    pub cleanup: Vec<Step>,
    /// How long `catch`, `finally` and `cleanup` may take.
    #[serde(default)]
    pub budgets: Budgets,
    /// Lints that do not apply here, each with the reason.
    #[serde(default)]
    pub allow: Vec<Allow>,
    /// Where everything stands in the file.
    #[serde(skip)]
    pub origin: Source,
}

impl Scenario {
    /// All steps in order, each with the part it stands in and its number there, from 1.
    pub fn steps(&self) -> impl Iterator<Item = (&'static str, usize, &Step)> {
        [("given", &self.given), ("when", &self.when), ("then", &self.then)]
            .into_iter()
            .flat_map(|(name, steps)| steps.iter().enumerate().map(move |(i, s)| (name, i + 1, s)))
    }

    /// The lists of steps by the name of their part, in the order they are done.
    pub fn parts(&self) -> [(&'static str, &[Step]); 6] {
        [
            ("given", &self.given),
            ("when", &self.when),
            ("then", &self.then),
            ("catch", &self.catch),
            ("finally", &self.finally),
            ("cleanup", &self.cleanup),
        ]
    }

    /// Calls `each` for every step of every part, also those inside others, with its path, e.g. `then[2].retry.steps[1]`.
    pub fn walk<'a>(&'a self, each: &mut dyn FnMut(&str, &'a Step)) {
        for (part, steps) in self.parts() {
            for (i, step) in steps.iter().enumerate() {
                step.walk(&format!("{part}[{}]", i + 1), each);
            }
        }
    }
}
