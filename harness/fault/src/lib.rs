//! Fault plans: which call at which seam shall go wrong, how, and how often it must have happened.
//!
//! A [`Plan`] is asked by the tap in front of a seam before each call; it counts and decides, and knows nothing of
//! transports. What fired is reported by the tap into the run log, where the runner checks [`Fault::must`].
#![deny(missing_docs)]

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// A call of the API, e.g. `patch` of `pods/status`. Only the virtual world has a tap there.
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
    /// The call is not made and never answered.
    Hang,
    /// The agent that calls is killed and started again after a while. Only where an agent's calls are tapped: in the
    /// virtual world.
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
#[serde(deny_unknown_fields)]
pub struct Must {
    /// Exactly this often; any number when absent.
    #[serde(default)]
    pub fired: Option<u32>,
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
            Self::Error { .. } | Self::DropReply { .. } | Self::Hang | Self::CrashAt { .. } => None,
        }
    }
}

/// The faults of a run with their counters.
#[derive(Debug, Default)]
pub struct Plan {
    faults: Vec<Fault>,
    seen: Mutex<Vec<u32>>,
}

impl Plan {
    /// A plan of these faults.
    pub fn new(faults: Vec<Fault>) -> Self {
        let seen = Mutex::new(vec![0; faults.len()]);
        Self { faults, seen }
    }

    /// Counts a call and says which fault, if any, fires on it. The first matching fault wins.
    pub fn decide(&self, call: Call<'_>) -> Option<Decision> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fired = None;
        for (fault, count) in self.faults.iter().zip(seen.iter_mut()).filter(|(f, _)| f.matches(call)) {
            *count += 1;
            let due = fault.when.nth.is_empty() || fault.when.nth.contains(count);
            if due && fired.is_none() {
                fired = Some(Decision { id: fault.id.clone(), effect: fault.effect.clone() });
            }
        }
        fired
    }
}

impl Fault {
    fn matches(&self, call: Call<'_>) -> bool {
        let (hit, subject) = match (&self.at, call) {
            (At::Cni(at), Call::Cni { command, pod }) => (at.command == command, pod),
            (At::Cri(at), Call::Cri { method, pod }) => (at.method == method, pod),
            (At::Csi(at), Call::Csi { method }) => (at.method == method, ""),
            (At::Api(at), Call::Api { verb, resource, name }) => (at.verb == verb && at.resource == resource, name),
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
            must: Must { fired: Some(2) },
        };
        let plan = Plan::new(vec![fault]);
        let ask = |command, pod| plan.decide(Call::Cni { command, pod }).is_some();
        assert!(!ask("DEL", "web"));
        assert!(!ask("ADD", "other"));
        assert_eq!([ask("ADD", "web"), ask("ADD", "web"), ask("ADD", "web")], [true, true, false]);
    }
}
