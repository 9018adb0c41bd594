//! Pods leave a node with a NoExecute taint when their toleration is over.
//! Source: k/k pkg/controller/tainteviction/taint_eviction.go.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{Node, ObjectReference, Pod, Taint},
    jiff::Timestamp,
    matching::tolerates,
};
use podlab_client::{
    Client, DeleteOptions, PatchKind,
    events::{EventRecorder, EventType},
    reflector::Cache,
};
use podlab_clock::Clock;
use podlab_mutant::{self as mutant, Mutant};
use serde_json::json;

use crate::work::{Again, Key, Reconcile};

/// The controller. Keys are Pods.
pub(crate) struct TaintEviction {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) clock: Clock,
    /// Pods that will go, and when that was decided: a taint need not say when it came.
    pub(crate) scheduled: Mutex<BTreeMap<Key, Timestamp>>,
}

/// When a Pod must go: `None` never, else at this time. Each taint needs a toleration; the shortest one counts, from when
/// the taint came or, when it does not say, from `since`.
pub(crate) fn deadline(pod: &Pod, taints: &[Taint], since: Timestamp) -> Option<Timestamp> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or(&[]);
    let one = |taint: &Taint| {
        let added = taint.time_added.as_ref().map_or(since, |t| t.0);
        let mut matching = tolerations.iter().filter(|t| tolerates(t, taint)).peekable();
        if matching.peek().is_none() {
            return Some(since);
        }
        let shortest = matching.filter_map(|t| t.toleration_seconds).min()?;
        let shortest = if mutant::is(Mutant::TolerationsEndAtOnce) { 0 } else { shortest };
        Some(added.saturating_add(Duration::from_secs(u64::try_from(shortest).unwrap_or(0))).unwrap_or(since))
    };
    taints.iter().filter(|t| t.effect == "NoExecute").filter_map(one).min()
}

#[async_trait]
impl Reconcile for TaintEviction {
    fn name(&self) -> &'static str {
        "taint-eviction"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let Some(pod) = self.pods.get(&key.0, &key.1) else {
            self.forget(key);
            return Ok(Again::OnChange);
        };
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).and_then(|n| self.nodes.get("", n));
        let taints = node.as_ref().and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
        let now = self.clock.wall();
        let since = self.scheduled.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or(now);
        let due = deadline(&pod, &taints, since).filter(|_| pod.metadata.deletion_timestamp.is_none());
        let Some(due) = due else {
            if self.forget(key) && pod.metadata.deletion_timestamp.is_none() {
                self.say(key, format!("Cancelling deletion of Pod {}/{}", key.0, key.1));
            }
            return Ok(Again::OnChange);
        };
        if due > now {
            self.scheduled.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), since);
            return Ok(Again::After(Duration::try_from(due.duration_since(now)).unwrap_or(Duration::from_secs(1))));
        }
        let api = self.client.namespaced::<Pod>(&key.0);
        // The cache may be behind the mark of a moment ago; the API knows.
        let marked = |p: Pod| p.metadata.uid != pod.metadata.uid || p.metadata.deletion_timestamp.is_some();
        if api.get_opt(&key.1).await?.is_none_or(marked) {
            return Ok(Again::OnChange);
        }
        self.forget(key);
        self.say(key, format!("Marking for deletion Pod {}/{}", key.0, key.1));
        let body = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint", "observedGeneration": pod.metadata.generation,
            "lastProbeTime": null, "lastTransitionTime": self.clock.wall_secs().to_string()}]}});
        match api.patch_status(&key.1, &PatchKind::Strategic, &body).await {
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
        match api.delete(&key.1, &DeleteOptions::default()).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(Again::OnChange),
        }
    }
}

impl TaintEviction {
    fn forget(&self, key: &Key) -> bool {
        self.scheduled.lock().unwrap_or_else(PoisonError::into_inner).remove(key).is_some()
    }

    /// Upstream's event names the Pod without its UID.
    fn say(&self, key: &Key, text: String) {
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(key.0.clone()),
            name: Some(key.1.clone()),
            ..ObjectReference::default()
        };
        self.events.event(about, EventType::Normal, "TaintManagerEviction", text);
    }
}
