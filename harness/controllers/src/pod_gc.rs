//! Pod garbage collection: Pods of nodes that are gone, and unscheduled Pods that are being deleted.
//! Source: k/k pkg/controller/podgc/gc_controller.go.

use std::time::Duration;

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{Node, Pod},
};
use podlab_client::{Client, DeleteOptions, PatchKind, reflector::Cache};
use podlab_clock::Clock;
use serde_json::json;

use crate::work::{Again, Key, Reconcile};

/// How long a node may be missing before its Pods go, and how often everything is looked at.
const PERIOD: Duration = Duration::from_secs(20);

/// The controller. Its only key stands for the whole cluster.
pub(crate) struct PodCollector {
    pub(crate) client: Client,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) clock: Clock,
}

#[async_trait]
impl Reconcile for PodCollector {
    fn name(&self) -> &'static str {
        "podgc"
    }

    async fn reconcile(&self, _: &Key) -> Result<Again, ApiError> {
        for pod in self.pods.list() {
            let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
            let deleting = pod.metadata.deletion_timestamp.is_some();
            match node {
                None if deleting => self.remove(&pod).await?,
                Some(node)
                    if self.nodes.get("", node).is_none()
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
