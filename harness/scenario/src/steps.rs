//! What a scenario can do and demand, one word a step.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    Span,
    asserts::{Checkpoint, Elapsed, Eventually, Exactly, Holds, Leak, LogMatch, RpcCount, StatusIs},
    cel::Cel,
    flow::{Expect, ForEach, Group, If, Never, Repeat, Retry, Use},
    tape::Replay,
    temporal::{Between, Monotone, Order, Times, Within},
};

/// One step.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Creates or updates objects.
    Apply(Apply),
    /// Creates objects; one that is there already is refused, unlike with `apply`.
    Create(Apply),
    /// Changes an object, or a part of it that is written apart.
    Patch(crate::Patch),
    /// Sets how many Pods something keeps.
    Scale(crate::Scale),
    /// Deletes a Pod, or another object.
    Delete(Delete),
    /// Evicts a Pod: deletes it if the disruption budgets allow that.
    Evict(crate::Evict),
    /// Lets no new Pods onto a node.
    Cordon(String),
    /// Lets new Pods onto a node again.
    Uncordon(String),
    /// Cordons a node and evicts its Pods.
    Drain(crate::Drain),
    /// Puts a taint on a node, or takes it away.
    Taint(crate::Taint),
    /// Changes the resources of a container that runs.
    Resize(crate::Resize),
    /// Adds a container to a Pod that runs.
    Debug(crate::Debug),
    /// Says something to whoever reads the report; does nothing.
    Note(String),
    /// Demands that the API refuses what a step asks of it.
    Refused(crate::Refused),
    /// Sets labels on a node; an empty value removes one.
    Label(LabelNode),
    /// Runs a command in a container and looks at its result.
    Exec(Exec),
    /// Acts on a node's agent; containers live on.
    Agent(AgentAction),
    /// Acts on a whole node.
    Node(NodeAction),
    /// Lets time pass that nothing can be observed in. Lint refuses it where a condition would do.
    Pause(Pause),
    /// Waits until something is true.
    Eventually(Eventually),
    /// Demands that something stays true.
    Holds(Holds),
    /// Demands an exact number of events.
    Exactly(Exactly),
    /// Demands the whole list of events about one object.
    Events(crate::Events),
    /// Looks at a field of an object now.
    Status(StatusIs),
    /// Looks at a container's log.
    Logs(LogMatch),
    /// Remembers a field.
    Checkpoint(Checkpoint),
    /// Demands that a remembered field has not changed.
    Unchanged(String),
    /// Measures the time between two moments of the run log.
    Elapsed(Elapsed),
    /// Counts calls at the seams by `<lane>.<method>`.
    Rpc(BTreeMap<String, RpcCount>),
    /// Demands that nothing is left of deleted Pods on any node.
    LeakFree(Vec<Leak>),
    /// Demands that a simulated runtime answers calls of a tape as a real one did. Only in the virtual world.
    Replay(Replay),
    /// Demands that an expression is true.
    Expect(Expect),
    /// Demands that something does not come about for a while.
    Never(Never),
    /// Demands that moments of the run log came one after the other.
    Order(Order),
    /// Demands that each moment of a kind is followed by another in time.
    Within(Within),
    /// Demands on what happened between two moments.
    Between(Between),
    /// Demands that a watched field never went back.
    Monotone(Monotone),
    /// Demands how often something is in the run log.
    Times(Times),
    /// Gives values names for the expressions and texts (`${name}`) of later steps.
    Bind(BTreeMap<String, Cel>),
    /// Steps under a condition.
    If(If),
    /// Steps that are tried again when one fails. Each attempt is in the run log.
    Retry(Retry),
    /// Steps done several times.
    Repeat(Repeat),
    /// Steps done for each item of a list.
    ForEach(ForEach),
    /// Lists of steps done at the same time; what one binds the others do not see. The first failure ends the others.
    Parallel(Vec<Vec<Step>>),
    /// Steps that together may take so long only.
    Limit(crate::Limit),
    /// Steps under a name.
    Group(Group),
    /// Steps from a library.
    Use(Use),
}

/// Objects to apply: written here, or in a file beside the scenario.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Apply {
    /// YAML documents, as `kubectl apply -f -` takes them.
    Yaml(String),
    /// A path relative to the scenario.
    File(String),
}

/// What to delete.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delete {
    /// Name of a Pod.
    #[serde(default)]
    pub pod: Option<String>,
    /// Name of a claim.
    #[serde(default)]
    pub claim: Option<String>,
    /// Grace period instead of the Pod's own.
    #[serde(default)]
    pub grace: Option<Span>,
}

/// Labels for a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelNode {
    /// The node.
    pub node: String,
    /// Labels to set.
    pub set: BTreeMap<String, String>,
}

/// A command in a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exec {
    /// The Pod.
    pub pod: String,
    /// The container; the first when absent.
    #[serde(default)]
    pub container: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Exit code it must have.
    #[serde(default)]
    pub exit_code: i32,
    /// Text its output must contain.
    #[serde(default)]
    pub contains: Option<String>,
}

/// What to do to a node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum AgentAction {
    /// SIGKILL.
    Kill(String),
    /// SIGTERM.
    Stop(String),
    /// Start.
    Start(String),
    /// SIGKILL and start.
    Restart(String),
}

/// What to do to a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum NodeAction {
    /// Power off without warning.
    Crash(String),
    /// Power on.
    Boot(String),
}

/// A pause with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pause {
    /// How long.
    pub duration: Span,
    /// Why nothing can be waited for instead.
    pub because: String,
}
