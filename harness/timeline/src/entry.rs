//! The vocabulary of the run log, version 1. A field added later must default when absent; a field is never renamed.

use podlab_clock::Mono;
use serde::{Deserialize, Serialize};

/// Version written into every entry.
pub const SCHEMA_VERSION: u8 = 1;

/// Who did it. A lane is one row of a waterfall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each variant is the component it names")]
pub enum Lane {
    Api,
    Sched,
    Controllers,
    Agent,
    Csi,
    Cri,
    Cni,
    Image,
    Probe,
    Watch,
    Run,
}

/// The Pod an entry is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; may be empty where the writer does not know it (CNI).
    pub uid: String,
}

/// The milestones t0…t12 of a Pod's start, in order. Each ends the phase before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// t0: the API server accepted the create request.
    Accepted,
    /// t1: the scheduler took the Pod from its queue.
    Popped,
    /// t2: the binding is committed.
    Bound,
    /// t3: the node agent saw the Pod.
    Observed,
    /// t4: the node agent admitted it and its worker began.
    Admitted,
    /// t5: all volumes are mounted.
    VolumesReady,
    /// t6: the sandbox is up, with its network.
    SandboxReady,
    /// t7: the last image needed is present.
    ImagesReady,
    /// t8: the last init container is done.
    InitDone,
    /// t9: all containers are started.
    Started,
    /// t10: startup and readiness probes succeeded.
    Ready,
    /// t11: the Ready status is written.
    StatusWritten,
    /// t12: a watcher saw it.
    Seen,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It succeeded.
    Ok,
    /// It failed with this message.
    Error(String),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A Pod reached a milestone of its start.
    Stage(Stage),
    /// One call through a seam or one unit of work, from `start` to the entry's own time.
    Call {
        /// Method, e.g. `RunPodSandbox`, `ADD`, `NodePublishVolume`, `pull`.
        method: String,
        /// When it began.
        start: Mono,
        /// How it ended.
        outcome: Outcome,
        /// Normalised argument worth showing: a container, volume or image name.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        subject: String,
    },
    /// A watcher's view of one Pod field that changed, e.g. `phase` → `Running`.
    Field {
        /// Field name as in the timeline's normal form.
        name: String,
        /// New value.
        value: String,
    },
    /// A core/v1 Event was seen.
    KubeEvent {
        /// `Normal` or `Warning`.
        kind: String,
        /// CamelCase reason.
        reason: String,
        /// Message as written.
        message: String,
        /// Component that wrote it.
        source: String,
        /// How often, as counted by the API object.
        count: u32,
        /// `involvedObject.fieldPath`, e.g. `spec.containers{app}`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        field_path: String,
    },
    /// The runner began or ended something: a trial, a step, an assertion. Free-form JSON whose shape the runner owns.
    Run(serde_json::Value),
}

/// One line of the run log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Schema version.
    pub v: u8,
    /// When, nanoseconds on the run's monotonic clock.
    pub t: Mono,
    /// Who.
    pub lane: Lane,
    /// About which Pod, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodKey>,
    /// On which node, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What.
    pub event: Event,
}
