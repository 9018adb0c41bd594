//! The scenario format, v1: a strict YAML model, its durations and its errors with line and column. Knows no runtime.
//!
//! One file, one behaviour, one `intent`. The trial's name is the file's path below the scenario folder without its
//! extension; it is also the name in JUnit, the path of the snapshot and the anchor in the report.
#![deny(missing_docs)]

mod asserts;
mod events;
mod explain;
mod load;
mod model;
mod schema;
mod steps;
#[cfg(test)]
mod tests;
mod time;

pub use asserts::{
    Checkpoint, Elapsed, EventMatch, Eventually, Exactly, Holds, Leak, LogMatch, Matcher, Moment, RpcCount, StatusIs,
};
pub use events::{About, EventIs, EventKind, Events};
pub use explain::explain;
pub use load::{LoadError, discover, load, parse};
pub use model::{ApiVersion, Capability, ClusterNeeds, Kind, Scenario, Snapshot, Worlds};
pub use schema::{SCHEMA_FILE, schema};
pub use steps::{AgentAction, Apply, Delete, Exec, LabelNode, NodeAction, Pause, Step};
pub use time::Span;
