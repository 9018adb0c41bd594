//! Steps that change objects of the API, and steps about how other steps end: a refusal that is wanted, a limit of time.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{Span, Step};

/// Kinds of objects that a step can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "each is the kind it names")]
pub enum ObjectKind {
    Pod,
    Node,
    Service,
    ConfigMap,
    Secret,
    ServiceAccount,
    PersistentVolumeClaim,
    PersistentVolume,
    Deployment,
    ReplicaSet,
    DaemonSet,
    StatefulSet,
    Job,
    CronJob,
    PodDisruptionBudget,
}

/// Kinds of objects that can be scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "each is the kind it names")]
pub enum ScalableKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
}

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PatchType {
    /// RFC 7396: what is named is set, `null` takes it away, lists are replaced.
    #[default]
    Merge,
    /// Kubernetes' own: lists are merged by the key of their items.
    Strategic,
    /// RFC 6902: a list of operations.
    Json,
}

/// Parts of an object that are written apart from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Subresource {
    /// What is.
    Status,
    /// Resources of a Pod's containers.
    Resize,
    /// Containers added to a Pod that runs.
    Ephemeralcontainers,
}

/// Changes an object.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Patch {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// How the patch is written.
    #[serde(rename = "type", default)]
    pub how: PatchType,
    /// A part that is written apart from the object; the object itself when absent.
    #[serde(default)]
    pub subresource: Option<Subresource>,
    /// The patch.
    pub with: Value,
}

/// Sets how many Pods something keeps.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scale {
    /// Its kind.
    pub kind: ScalableKind,
    /// Its name.
    pub name: String,
    /// How many.
    pub replicas: u32,
}

/// Evicts a Pod: deletes it if the disruption budgets allow that.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evict {
    /// The Pod.
    pub pod: String,
    /// Grace period instead of the Pod's own.
    #[serde(default)]
    pub grace: Option<Span>,
}

/// Evicts all Pods of a node, which takes no new ones: cordons it, evicts as long as budgets refuse, and waits until they are
/// gone. Pods of DaemonSets and static Pods stay.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// The node.
    pub node: String,
    /// How long that may take.
    pub within: Span,
}

/// Taints a node. A taint has a key and an effect; one that is there with both is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    /// The node.
    pub node: String,
    /// The taint's key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
    /// Takes it away instead.
    #[serde(default)]
    pub remove: bool,
}

/// What a taint does to Pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// Changes the resources of a container that runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resize {
    /// The Pod.
    pub pod: String,
    /// Its container.
    pub container: String,
    /// New requests, e.g. `cpu: 200m`.
    #[serde(default)]
    pub requests: BTreeMap<String, String>,
    /// New limits.
    #[serde(default)]
    pub limits: BTreeMap<String, String>,
}

/// Adds an ephemeral container to a Pod that runs, as `kubectl debug` does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Debug {
    /// The Pod.
    pub pod: String,
    /// Name of the new container.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its command; the image's own when absent.
    #[serde(default)]
    pub command: Vec<String>,
    /// The container whose processes it sees.
    #[serde(default)]
    pub target: Option<String>,
}

/// Demands that the API refuses what a step asks of it.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refused {
    /// The answer's HTTP code, e.g. 403, 404, 409, 422, 429.
    pub code: u16,
    /// Text its message must contain.
    #[serde(default)]
    pub contains: Option<String>,
    /// The step; one that asks the API for something.
    pub step: Box<Step>,
}

/// Steps that together may take so long only.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// How long.
    pub within: Span,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Step {
    /// Whether the step does nothing but ask the API to change something, so that it can be refused.
    pub(crate) fn asks(&self) -> bool {
        matches!(
            self,
            Self::Apply(_)
                | Self::Create(_)
                | Self::Patch(_)
                | Self::Delete(_)
                | Self::Scale(_)
                | Self::Evict(_)
                | Self::Label(_)
                | Self::Taint(_)
                | Self::Cordon(_)
                | Self::Uncordon(_)
                | Self::Resize(_)
                | Self::Debug(_)
        )
    }
}

/// What is wrong with one of these steps; `inner` says what is wrong with a step inside it.
pub(crate) fn wrong(step: &Step, inner: impl Fn(&Step) -> Option<String>) -> Option<String> {
    let say = |text: &str| Some(text.to_owned());
    match step {
        Step::Patch(p) => match (&p.with, p.how) {
            (Value::Array(all), PatchType::Json) if all.is_empty() => say("patch.with changes nothing"),
            (Value::Array(_), PatchType::Json) => None,
            (_, PatchType::Json) => say("patch.with is a list of operations when type is json"),
            (Value::Object(map), _) if map.is_empty() => say("patch.with changes nothing"),
            (Value::Object(_), _) => None,
            _ => say("patch.with is an object unless type is json"),
        },
        Step::Resize(r) if r.requests.is_empty() && r.limits.is_empty() => say("resize changes nothing"),
        Step::Note(text) if text.trim().is_empty() => say("note says nothing"),
        Step::Taint(t) if t.key.is_empty() => say("taint.key must not be empty"),
        Step::Drain(d) if d.within.0.is_zero() => say("drain.within must be more than nothing"),
        Step::Limit(l) if l.within.0.is_zero() => say("limit.within must be more than nothing"),
        Step::Refused(r) if !(400..=599).contains(&r.code) => {
            say("refused.code is a code of 400 to 599; another is no refusal")
        }
        Step::Refused(r) if !r.step.asks() => say("refused.step must be one that asks the API to change something"),
        Step::Refused(r) if r.contains.as_deref() == Some("") => say("refused.contains is in every message"),
        Step::Refused(r) => inner(&r.step).map(|text| format!("refused.step: {text}")),
        _ => None,
    }
}

/// One of these steps in a sentence.
pub(crate) fn sentence(step: &Step) -> Option<String> {
    let span = crate::explain::span;
    Some(match step {
        Step::Create(a) => match a {
            crate::Apply::File(file) => format!("Create {file}."),
            crate::Apply::Yaml(text) => format!("Create {}.", crate::explain::objects(text)),
        },
        Step::Patch(p) => {
            let part = p.subresource.map(|s| format!("{s:?} of ").to_lowercase()).unwrap_or_default();
            format!("Change {part}{:?} {}: `{}`.", p.kind, p.name, p.with)
        }
        Step::Scale(s) => format!("Scale {:?} {} to {}.", s.kind, s.name, s.replicas),
        Step::Evict(e) => format!("Evict Pod {}.", e.pod),
        Step::Cordon(n) => format!("Let no new Pods onto {n}."),
        Step::Uncordon(n) => format!("Let new Pods onto {n} again."),
        Step::Drain(d) => format!("Drain {} within {}.", d.node, span(d.within)),
        Step::Taint(t) => {
            let (verb, from) = if t.remove { ("Take", "from") } else { ("Put", "on") };
            format!("{verb} the taint {}:{:?} {from} {}.", t.key, t.effect, t.node)
        }
        Step::Resize(r) => {
            let all: Vec<String> = [("requests", &r.requests), ("limits", &r.limits)]
                .into_iter()
                .flat_map(|(what, of)| of.iter().map(move |(k, v)| format!("{what} {k} {v}")))
                .collect();
            format!("Resize container {} of Pod {} to {}.", r.container, r.pod, all.join(", "))
        }
        Step::Debug(d) => format!("Add container {} ({}) to Pod {}, which runs.", d.name, d.image, d.pod),
        Step::Note(text) => text.trim().to_owned(),
        Step::Refused(r) => {
            let text = r.contains.as_ref().map(|c| format!(" and \"{c}\"")).unwrap_or_default();
            format!("The API refuses with {}{text}: {}", r.code, crate::sentence(&r.step))
        }
        Step::Limit(l) => format!("Within {} together:", span(l.within)),
        _ => return None,
    })
}
