//! Demands on the order of things in the run log. Each of them fails when what it speaks of did not happen: an order of
//! nothing holds of every run.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Moment, Span};

/// Demands that moments came one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    /// The moments, two at least, earliest first.
    pub moments: Vec<Moment>,
    /// How long to wait for the last of them.
    #[serde(default)]
    pub within: Option<Span>,
}

/// Demands that each of some moments is followed by another in time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Within {
    /// Every such moment, or one of them if it says which.
    pub from: Moment,
    /// What must follow.
    pub to: Moment,
    /// At most so much later.
    pub max: Span,
}

/// Demands on what happened between two moments. Exactly one of `none` and `some`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Between {
    /// From.
    pub from: Moment,
    /// To.
    pub to: Moment,
    /// This did not happen there.
    #[serde(default)]
    pub none: Option<Moment>,
    /// This happened there.
    #[serde(default)]
    pub some: Option<Moment>,
}

/// Demands that a watched field of a Pod never went back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Monotone {
    /// The Pod.
    pub pod: String,
    /// The field, e.g. `phase`, `container/c/restartCount`.
    pub field: String,
    /// Its values in their order; absent for a number that only grows.
    #[serde(default)]
    pub order: Option<Vec<String>>,
}

/// Demands how often something is in the run log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Times {
    /// What; without `nth`.
    pub of: Moment,
    /// Exactly so often.
    #[serde(default)]
    pub exactly: Option<u32>,
    /// At least so often.
    #[serde(default)]
    pub at_least: Option<u32>,
    /// At most so often.
    #[serde(default)]
    pub at_most: Option<u32>,
}
