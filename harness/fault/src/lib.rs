//! Fault plans: which call at which seam shall go wrong, how, and how often it must have happened.
//!
//! A [`Plan`] is asked by the tap in front of a seam before each call; it counts and decides, and knows nothing of
//! transports. What fired is reported by the tap into the run log, where the runner checks [`Fault::must`].
#![deny(missing_docs)]

mod span;

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use span::Span;

/// One fault of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Name, unique in its scenario.
    pub id: String,
    /// Which call.
    pub at: At,
    /// What happens instead, or before.
    pub effect: Effect,
    /// Which of the matching calls; all of them when absent.
    #[serde(default)]
    pub when: When,
    /// How often it must have fired for the run to count.
    #[serde(default)]
    pub must: Must,
}

/// A call at a seam.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum At {
    /// A CNI plugin chain: `ADD`, `DEL`, `CHECK`, `STATUS`, `GC`.
    Cni(CniCall),
    /// A CRI method, e.g. `RunPodSandbox`.
    Cri(Method),
    /// A CSI method, e.g. `NodePublishVolume`.
    Csi(Method),
    /// A call of the API by a component, e.g. `patch` of `pods/status`.
    Api(ApiCall),
}

impl At {
    /// The seam: `cni`, `cri`, `csi` or `api`.
    pub fn seam(&self) -> &'static str {
        match self {
            Self::Cni(_) => "cni",
            Self::Cri(_) => "cri",
            Self::Csi(_) => "csi",
            Self::Api(_) => "api",
        }
    }
}

/// Which API call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiCall {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Plural name, with the subresource: `pods`, `pods/status`, `pods/binding`.
    pub resource: String,
    /// Whose call: `scheduler`, `controllers`, or `node-1` for a node's agent; anybody's when absent. On real containers it
    /// has to be said, because each of them counts its own calls.
    #[serde(default)]
    pub client: Option<String>,
}

/// Before a call has its effect, or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Point {
    /// Before.
    Before,
    /// After; the caller never hears of it.
    After,
}

/// Which CNI call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CniCall {
    /// The verb.
    pub command: String,
}

/// Which gRPC call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// Method name without its service.
    pub method: String,
}

/// What the fault does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Effect {
    /// The call is not made; this error is its answer.
    Error {
        /// CNI error code, or gRPC status code.
        code: u32,
        /// Message.
        msg: String,
    },
    /// The call is made after this many milliseconds.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// The call is made and succeeds; its answer is lost and this error takes its place.
    DropReply {
        /// Message.
        msg: String,
    },
    /// The call is not made; its caller sees a lost connection.
    DropRequest {
        /// Message.
        msg: String,
    },
    /// The call is not made and never answered.
    Hang,
    /// The call is made twice, one after the other, as a retry below the caller does; the second answer is given.
    Duplicate,
    /// The answer is what the same call was answered the time before: for `get` and `list` of the API.
    Stale,
    /// A stream ends after so many of its parts: a watch of the API, `GetContainerEvents` of the CRI.
    Truncate {
        /// How many parts still come.
        after: u32,
    },
    /// Each part of a stream comes so many milliseconds after the one before it.
    SlowTrickle {
        /// Milliseconds.
        ms: u64,
    },
    /// The agent that calls is killed and started again after a while.
    #[serde(rename_all = "camelCase")]
    CrashAt {
        /// Before or after the call takes effect.
        point: Point,
        /// Milliseconds until the next agent starts.
        down_ms: u64,
    },
}

/// Which of the matching calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Ordinals, counted from 1 over matching calls; empty means every one.
    #[serde(default)]
    pub nth: Vec<u32>,
    /// Only calls for the Pod of this name.
    #[serde(default)]
    pub pod: Option<String>,
}

/// How often a fault must have fired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Must {
    /// Exactly this often; any number when absent.
    #[serde(default)]
    pub fired: Option<u32>,
    /// How soon after it fired last such a call must have succeeded again.
    #[serde(default)]
    pub healed_by: Option<Span>,
}

/// A call as the tap describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call<'a> {
    /// A CNI verb for a Pod.
    Cni {
        /// The verb.
        command: &'a str,
        /// Name of the Pod.
        pod: &'a str,
    },
    /// A CRI method.
    Cri {
        /// Method name.
        method: &'a str,
        /// Name of the Pod, empty if none.
        pod: &'a str,
    },
    /// A CSI method.
    Csi {
        /// Method name.
        method: &'a str,
    },
    /// An API call.
    Api {
        /// Whose.
        client: &'a str,
        /// Verb.
        verb: &'a str,
        /// Plural name, with the subresource.
        resource: &'a str,
        /// Name of the object, empty for a collection.
        name: &'a str,
    },
}

/// What the tap shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Which fault fired.
    pub id: String,
    /// What it does.
    pub effect: Effect,
}

impl Effect {
    /// The delay, if this is one.
    pub fn delay(&self) -> Option<Duration> {
        match self {
            Self::Delay { ms } => Some(Duration::from_millis(*ms)),
            Self::Error { .. }
            | Self::DropReply { .. }
            | Self::DropRequest { .. }
            | Self::Hang
            | Self::Duplicate
            | Self::Stale
            | Self::Truncate { .. }
            | Self::SlowTrickle { .. }
            | Self::CrashAt { .. } => None,
        }
    }

    /// Its name in a scenario.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Error { .. } => "error",
            Self::Delay { .. } => "delay",
            Self::DropReply { .. } => "dropReply",
            Self::DropRequest { .. } => "dropRequest",
            Self::Hang => "hang",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Truncate { .. } => "truncate",
            Self::SlowTrickle { .. } => "slowTrickle",
            Self::CrashAt { .. } => "crashAt",
        }
    }
}

/// What is known of one fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// Matching calls.
    calls: u32,
    /// It has fired, and no matching call has succeeded since.
    open: bool,
}

/// The faults of a run with their counters.
#[derive(Debug, Default)]
pub struct Plan {
    faults: Vec<Fault>,
    seen: Mutex<Vec<Seen>>,
}

impl Plan {
    /// A plan of these faults.
    pub fn new(faults: Vec<Fault>) -> Self {
        let seen = Mutex::new(vec![Seen::default(); faults.len()]);
        Self { faults, seen }
    }

    /// A plan that goes on where another process ended: `memory` is what that one's [`Plan::memory`] was. One that does
    /// not fit these faults is no memory of theirs.
    pub fn resumed(faults: Vec<Fault>, memory: &str) -> Self {
        let one = |word: &str| {
            let (calls, open) = word.split_once(':')?;
            Some(Seen { calls: calls.parse().ok()?, open: open == "open" })
        };
        let plan = Self::new(faults);
        let read: Option<Vec<Seen>> = memory.split_whitespace().map(one).collect();
        if let Some(read) = read.filter(|r| r.len() == plan.faults.len()) {
            *plan.seen() = read;
        }
        plan
    }

    /// The counters, as [`Plan::resumed`] reads them.
    pub fn memory(&self) -> String {
        let word = |s: &Seen| format!("{}:{}", s.calls, if s.open { "open" } else { "done" });
        self.seen().iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Whether any fault is at this seam.
    pub fn at(&self, seam: &str) -> bool {
        self.faults.iter().any(|f| f.at.seam() == seam)
    }

    /// Counts a call and says which fault, if any, fires on it. The first matching fault wins.
    pub fn decide(&self, call: Call<'_>) -> Option<Decision> {
        let mut seen = self.seen();
        let mut fired = None;
        for (fault, state) in self.faults.iter().zip(seen.iter_mut()).filter(|(f, _)| f.matches(call)) {
            state.calls = state.calls.saturating_add(1);
            let due = fault.when.nth.is_empty() || fault.when.nth.contains(&state.calls);
            if due && fired.is_none() {
                state.open = true;
                fired = Some(Decision { id: fault.id.clone(), effect: fault.effect.clone() });
            }
        }
        fired
    }

    /// Takes notice of a call that succeeded, as far as its caller can tell; ids of the faults that are healed by it.
    pub fn succeeded(&self, call: Call<'_>) -> Vec<String> {
        let mut seen = self.seen();
        let matching = self.faults.iter().zip(seen.iter_mut()).filter(|(f, s)| s.open && f.matches(call));
        let heal = |(fault, state): (&Fault, &mut Seen)| {
            state.open = false;
            fault.id.clone()
        };
        matching.map(heal).collect()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fault {
    fn matches(&self, call: Call<'_>) -> bool {
        let (hit, subject) = match (&self.at, call) {
            (At::Cni(at), Call::Cni { command, pod }) => (at.command == command, pod),
            (At::Cri(at), Call::Cri { method, pod }) => (at.method == method, pod),
            (At::Csi(at), Call::Csi { method }) => (at.method == method, ""),
            (At::Api(at), Call::Api { client, verb, resource, name }) => {
                let whose = at.client.as_deref().is_none_or(|c| c == client);
                (whose && at.verb == verb && at.resource == resource, name)
            }
            (At::Cni(_) | At::Cri(_) | At::Csi(_) | At::Api(_), _) => (false, ""),
        };
        hit && self.when.pod.as_deref().is_none_or(|wanted| wanted == subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_occurrences_fire() {
        let fault = Fault {
            id: "busy".into(),
            at: At::Cni(CniCall { command: "ADD".into() }),
            effect: Effect::Error { code: 11, msg: "busy".into() },
            when: When { nth: vec![1, 2], pod: Some("web".into()) },
            must: Must { fired: Some(2), healed_by: None },
        };
        let plan = Plan::new(vec![fault]);
        let ask = |command, pod| plan.decide(Call::Cni { command, pod }).is_some();
        assert!(!ask("DEL", "web"));
        assert!(!ask("ADD", "other"));
        assert_eq!([ask("ADD", "web"), ask("ADD", "web"), ask("ADD", "web")], [true, true, false]);
    }

    fn refused(client: Option<&str>) -> Fault {
        let at = ApiCall { verb: "patch".into(), resource: "pods/status".into(), client: client.map(str::to_owned) };
        Fault {
            id: "refused".into(),
            at: At::Api(at),
            effect: Effect::Error { code: 503, msg: "no".into() },
            when: When { nth: vec![2], pod: None },
            must: Must::default(),
        }
    }

    fn patch(client: &str) -> Call<'_> {
        Call::Api { client, verb: "patch", resource: "pods/status", name: "a" }
    }

    #[test]
    fn a_call_of_another_client_does_not_count() {
        let plan = Plan::new(vec![refused(Some("node-1"))]);
        let ask = |client| plan.decide(patch(client)).is_some();
        assert_eq!([ask("node-1"), ask("node-2"), ask("node-2"), ask("node-1")], [false, false, false, true]);
    }

    #[test]
    fn a_fault_is_healed_once_by_the_first_such_call_that_succeeds_after_it() {
        let plan = Plan::new(vec![refused(None)]);
        plan.decide(patch("x"));
        assert!(plan.succeeded(patch("x")).is_empty(), "nothing has fired yet");
        assert!(plan.decide(patch("x")).is_some());
        assert!(plan.succeeded(Call::Cni { command: "ADD", pod: "a" }).is_empty());
        assert_eq!(plan.succeeded(patch("x")), ["refused"]);
        assert!(plan.succeeded(patch("x")).is_empty());
    }

    #[test]
    fn a_plan_goes_on_counting_where_a_killed_process_ended() {
        let plan = Plan::new(vec![refused(None)]);
        plan.decide(patch("x"));
        let next = Plan::resumed(vec![refused(None)], &plan.memory());
        assert!(next.decide(patch("x")).is_some());
        let third = Plan::resumed(vec![refused(None)], &next.memory());
        assert!(third.decide(patch("x")).is_none());
        assert_eq!(third.succeeded(patch("x")), ["refused"]);
        for broken in ["", "1", "1:open 2:open", "x:open"] {
            assert_eq!(Plan::resumed(vec![refused(None)], broken).memory(), "0:done", "{broken}");
        }
    }
}
