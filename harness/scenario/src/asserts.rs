//! What can be demanded.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Span;

/// A condition on what a watcher sees of a Pod. All that is given must be true at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Matcher {
    /// Name of the Pod.
    pub pod: String,
    /// `status.phase`.
    #[serde(default)]
    pub phase: Option<String>,
    /// Type of a condition that must have [`Matcher::status`].
    #[serde(default)]
    pub condition: Option<String>,
    /// Status of the condition; `True` when absent.
    #[serde(default)]
    pub status: Option<String>,
    /// Reason the condition must have.
    #[serde(default)]
    pub reason: Option<String>,
    /// Name of a container.
    #[serde(default)]
    pub container: Option<String>,
    /// State of the container: `running`, `waiting:REASON`, `terminated:REASON:CODE`; a prefix will do.
    #[serde(default)]
    pub state: Option<String>,
    /// The container's last state, written likewise.
    #[serde(default)]
    pub last_state: Option<String>,
    /// Text in the message of the container's state.
    #[serde(default)]
    pub message: Option<String>,
    /// The container was restarted at least this often.
    #[serde(default)]
    pub restarts: Option<i32>,
    /// The Pod is gone.
    #[serde(default)]
    pub gone: Option<bool>,
    /// The Pod's node.
    #[serde(default)]
    pub node: Option<String>,
    /// `status.podIP`.
    #[serde(default)]
    pub ip: Option<String>,
    /// An event about the Pod.
    #[serde(default)]
    pub event: Option<EventMatch>,
}

/// Waits for a match.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Eventually {
    /// What.
    #[serde(rename = "match")]
    pub what: Matcher,
    /// For at most this long.
    pub within: Span,
}

/// Demands a match for a while.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holds {
    /// What.
    #[serde(rename = "match")]
    pub what: Matcher,
    /// How long.
    #[serde(rename = "for")]
    pub duration: Span,
}

/// An event to find.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventMatch {
    /// CamelCase reason.
    pub reason: String,
    /// Text the message must contain.
    #[serde(default)]
    pub contains: Option<String>,
    /// The whole message.
    #[serde(default)]
    pub message: Option<String>,
    /// At least this often.
    #[serde(default)]
    pub count: Option<u32>,
}

/// Demands a number of events, counting repeats.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exactly {
    /// How many.
    pub n: u32,
    /// About which Pod.
    pub pod: String,
    /// Which.
    pub event: EventMatch,
}

/// A field of an object.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusIs {
    /// The Pod.
    pub pod: String,
    /// JSON pointer, e.g. `/status/containerStatuses/0/restartCount`.
    pub path: String,
    /// The value it must have.
    pub equals: serde_json::Value,
}

/// A container's log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogMatch {
    /// The Pod.
    pub pod: String,
    /// The container; the first when absent.
    #[serde(default)]
    pub container: Option<String>,
    /// The log of the run before.
    #[serde(default)]
    pub previous: bool,
    /// Text it must contain.
    #[serde(default)]
    pub contains: Option<String>,
    /// The whole log.
    #[serde(default)]
    pub equals: Option<String>,
    /// How long to wait for it.
    #[serde(default)]
    pub within: Option<Span>,
}

/// A field to remember.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// Name to refer to it by.
    pub name: String,
    /// The Pod.
    pub pod: String,
    /// JSON pointer.
    pub path: String,
}

/// A number of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RpcCount {
    /// At least.
    #[serde(default)]
    pub at_least: Option<usize>,
    /// Exactly.
    #[serde(default)]
    pub exactly: Option<usize>,
}

/// A kind of thing that can be left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Leak {
    /// Addresses of the Pod network.
    Ips,
    /// Network namespaces.
    Netns,
    /// Sandboxes and containers of the runtime.
    Sandboxes,
    /// Links between node and Pods.
    Links,
    /// Pod cgroups.
    Cgroups,
    /// Mounts of Pods' volumes.
    Mounts,
}

/// A moment of the run log: the `nth` time that something happened. Exactly one of `field`, `event`, `call` and `step`
/// says what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Moment {
    /// About this Pod; about any when absent.
    #[serde(default)]
    pub pod: Option<String>,
    /// A watched field took a value, e.g. `container/c/state`, `phase`, `condition/Ready`.
    #[serde(default)]
    pub field: Option<String>,
    /// The value the field took; a prefix will do.
    #[serde(default)]
    pub value: Option<String>,
    /// An event of this reason was written.
    #[serde(default)]
    pub event: Option<String>,
    /// A call `<lane>.<method>` began, e.g. `cri.StartContainer`, `probe.Liveness`.
    #[serde(default)]
    pub call: Option<String>,
    /// What the call was about, e.g. the container.
    #[serde(default)]
    pub subject: Option<String>,
    /// The call's end instead of its beginning.
    #[serde(default)]
    pub end: bool,
    /// A step began, e.g. `when[1]`.
    #[serde(default)]
    pub step: Option<String>,
    /// Which time, from 1; the first when absent.
    #[serde(default)]
    pub nth: Option<u32>,
}

/// The time between two moments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elapsed {
    /// From.
    pub from: Moment,
    /// To.
    pub to: Moment,
    /// Exactly this, to the millisecond.
    #[serde(default)]
    pub is: Option<Span>,
    /// At least this.
    #[serde(default)]
    pub at_least: Option<Span>,
    /// At most this.
    #[serde(default)]
    pub at_most: Option<Span>,
}
