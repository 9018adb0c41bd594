//! Tapes: what is recorded of a run, and what is played in one.

use schemars::JsonSchema;
use serde::Deserialize;

/// A seam that can be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RecordSeam {
    /// Node agent and runtime.
    Cri,
    /// Node agent, provisioner and driver.
    Csi,
}

/// Plays a tape of the CRI that was recorded on real containers against the simulated runtime of a node, and demands that
/// each call is answered as it was, in normal form.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// A path relative to the scenario.
    pub tape: String,
    /// Whose runtime; its agent must be down.
    #[serde(default = "first")]
    pub node: String,
    /// What is answered differently all the same; an exception that is not needed is an error.
    #[serde(default)]
    pub except: Vec<Except>,
}

/// A field that may be answered differently.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Except {
    /// Of which method.
    pub method: String,
    /// Which field of its answer, e.g. `status.image_ref`, with all below it.
    pub field: String,
    /// Why.
    pub because: String,
}

fn first() -> String {
    "node-1".into()
}
