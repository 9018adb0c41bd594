//! The scenario format, v1: a strict YAML model, its durations and its errors with line and column. Knows no runtime.
//!
//! One file, one behaviour, one `intent`. The trial's name is the file's path below the scenario folder without its
//! extension; it is also the name in JUnit, the path of the snapshot and the anchor in the report.
#![deny(missing_docs)]

mod acts;
mod asserts;
mod cel;
mod check;
mod events;
mod expand;
mod explain;
mod flow;
pub mod lint;
mod load;
mod model;
mod needs;
mod problem;
mod schema;
mod shape;
mod source;
mod steps;
mod tape;
mod template;
mod temporal;
#[cfg(test)]
mod tests;
mod time;
mod tree;
mod workload;

pub use acts::{
    Debug, Drain, Evict, Limit, ObjectKind, Patch, PatchType, Refused, Resize, ScalableKind, Scale, Subresource, Taint,
    TaintEffect,
};
pub use asserts::{
    Checkpoint, Elapsed, EventMatch, Eventually, Exactly, Holds, Leak, LogMatch, Matcher, Moment, RpcCount, StatusIs,
};
pub use cel::{BUILTINS, Cel, Vars};
pub use events::{About, EventIs, EventKind, Events};
pub use explain::{explain, sentence};
pub use flow::{
    Allow, Budgets, Expect, ForEach, Group, If, Invariant, LibraryKind, Never, Repeat, Retry, StepLibrary, Use,
};
pub use load::{LoadError, discover, load, load_all, parse, parse_all};
pub use model::{ApiVersion, ClusterNeeds, Kind, Scenario, Snapshot, Worlds};
pub use needs::Capability;
pub use podlab_fault::Fault;
pub use problem::{Mark, Problem, near};
pub use schema::{LIBRARY_SCHEMA_FILE, SCHEMA_FILE, library_schema, schema};
pub use source::Source;
pub use steps::{AgentAction, Apply, Delete, Exec, LabelNode, NodeAction, Pause, Step};
pub use tape::{Except, RecordSeam, Replay};
pub use template::fill;
pub use temporal::{Between, Monotone, Order, Times, Within};
pub use time::Span;
pub use workload::{
    ArrivalPlan, Begin, COUNTS, Finish, Gate, Measure, Measured, P99_NEEDS, Rate, Slo, StopLoad, TIMES, Workload,
};
