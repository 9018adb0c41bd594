//! Pod garbage collection: Pods of nodes that are gone, and unscheduled Pods that are being deleted.
//! Source: k/k pkg/controller/podgc/gc_controller.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use podlab_api::{
    ApiError,
    core::{Node, Pod},
};
use podlab_client::{Client, DeleteOptions, PatchKind, reflector::Cache};
use podlab_clock::{Clock, Mono};
use serde_json::json;

use crate::work::{Again, Key, Reconcile};

/// How often everything is looked at. Source: gc_controller.go gcCheckPeriod.
const PERIOD: Duration = Duration::from_secs(20);
/// How long a node may be missing before its Pods go: whoever watches nodes may be behind whoever watches Pods.
/// Source: gc_controller.go quarantineTime.
const QUARANTINE: Duration = Duration::from_secs(40);

/// The controller. Its only key stands for the whole cluster.
pub(crate) struct PodCollector {
    pub(crate) client: Client,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) clock: Clock,
    pub(crate) missing: Mutex<Missing>,
}

/// Nodes that Pods name and nobody has, with the moment that was noticed.
#[derive(Debug, Default)]
pub(crate) struct Missing(BTreeMap<String, Mono>);

impl Missing {
    /// Takes note of who is missing at a look; returns those who have been for long enough. Who has come back starts anew.
    fn at(&mut self, now: Mono, missing: BTreeSet<String>) -> BTreeSet<String> {
        self.0.retain(|node, _| missing.contains(node));
        for node in missing {
            self.0.entry(node).or_insert(now);
        }
        self.0.iter().filter(|(_, since)| now.since(**since) >= QUARANTINE).map(|(node, _)| node.clone()).collect()
    }
}

#[async_trait]
impl Reconcile for PodCollector {
    fn name(&self) -> &'static str {
        "podgc"
    }

    async fn reconcile(&self, _: &Key) -> Result<Again, ApiError> {
        let pods = self.pods.list();
        let named = pods.iter().filter_map(|p| p.spec.as_ref()?.node_name.clone()).filter(|n| !n.is_empty());
        let missing: BTreeSet<String> = named.filter(|node| self.nodes.get("", node).is_none()).collect();
        let lost = self.missing.lock().at(self.clock.now(), missing);
        for pod in pods {
            let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
            let deleting = pod.metadata.deletion_timestamp.is_some();
            match node {
                None if deleting => self.remove(&pod).await?,
                Some(node)
                    if lost.contains(node)
                    // The cache may be behind; the API knows.
                    && self.client.all::<Node>().get_opt(node).await?.is_none() =>
                {
                    self.mark(&pod).await?;
                    self.remove(&pod).await?;
                }
                _ => {}
            }
        }
        Ok(Again::After(PERIOD))
    }
}

impl PodCollector {
    async fn mark(&self, pod: &Pod) -> Result<(), ApiError> {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Ok(());
        }
        let body = json!({"status": {"phase": "Failed", "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
            "lastProbeTime": null, "lastTransitionTime": self.clock.wall_secs().to_string(), "observedGeneration": pod.metadata.generation,
        }]}});
        let (namespace, name) = crate::work::key_of(pod);
        match self.client.namespaced::<Pod>(&namespace).patch_status(&name, &PatchKind::Strategic, &body).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    async fn remove(&self, pod: &Pod) -> Result<(), ApiError> {
        let (namespace, name) = crate::work::key_of(pod);
        let options = DeleteOptions {
            grace_period: Some(Duration::ZERO),
            uid: pod.metadata.uid.clone(),
            ..DeleteOptions::default()
        };
        match self.client.namespaced::<Pod>(&namespace).delete(&name, &options).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_lost_when_it_was_missing_for_forty_seconds_without_a_break() {
        let start = Clock::real().now();
        let at = |s: u64| start.after(Duration::from_secs(s));
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        let mut missing = Missing::default();
        assert!(missing.at(at(0), names(&["a", "b"])).is_empty());
        assert!(missing.at(at(20), names(&["a"])).is_empty());
        assert_eq!(missing.at(at(40), names(&["a", "b"])), names(&["a"]), "b was back in between");
        assert!(missing.at(at(60), names(&["b"])).is_empty());
        assert_eq!(missing.at(at(80), names(&["b"])), names(&["b"]));
    }
}
