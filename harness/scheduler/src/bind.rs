//! The binding cycle: settle the claims, then POST the binding. Runs beside the scheduling loop.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use podlab_api::{
    ApiError,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
};
use podlab_client::{Client, PatchKind, WatchOptions};
use podlab_clock::Clock;
use serde_json::json;

use crate::{pod_info::PodInfo, volumes::ClaimPlan};

/// How long claims may take. Source: VolumeBindingArgs.bindTimeoutSeconds.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// Why a Pod could not be bound to the node chosen for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// Its volumes.
    #[error("binding volumes: {0}")]
    Volumes(String),
    /// The API refused.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Settles the claims and binds. Dropping it midway leaves the claims marked, which a later attempt takes up.
pub(crate) async fn bind(
    client: &Client,
    clock: Clock,
    pod: &Arc<PodInfo>,
    node: &str,
    claims: &[ClaimPlan],
) -> Result<(), BindError> {
    for plan in claims {
        prepare(client, pod.namespace(), node, plan).await?;
    }
    for plan in claims {
        let (ClaimPlan::Static { claim, .. } | ClaimPlan::Provision { claim }) = plan;
        match clock.timeout(BIND_TIMEOUT, wait_bound(client, pod.namespace(), claim)).await {
            Some(result) => result?,
            None => return Err(BindError::Volumes("context deadline exceeded".into())),
        }
    }
    let body = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.key.1, "namespace": pod.key.0, "uid": pod.pod.metadata.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    client.namespaced::<Pod>(pod.namespace()).create_sub(&pod.key.1, "binding", body).await?;
    Ok(())
}

async fn prepare(client: &Client, namespace: &str, node: &str, plan: &ClaimPlan) -> Result<(), ApiError> {
    match plan {
        ClaimPlan::Provision { claim } => {
            let body = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
            client.namespaced::<PersistentVolumeClaim>(namespace).patch(claim, &PatchKind::Merge, &body).await.map(drop)
        }
        ClaimPlan::Static { claim, volume } => {
            let object = client.namespaced::<PersistentVolumeClaim>(namespace).get(claim).await?;
            let body = json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
                    "name": claim, "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version}},
            });
            client.all::<PersistentVolume>().patch(volume, &PatchKind::Merge, &body).await.map(drop)
        }
    }
}

/// Waits until the PV controller has bound the claim and says so in its phase: a node agent that saw the Pod between the
/// two would refuse the volume once ("PVC is not bound").
async fn wait_bound(client: &Client, namespace: &str, claim: &str) -> Result<(), BindError> {
    loop {
        let options =
            WatchOptions { field_selector: Some(format!("metadata.name={claim}")), ..WatchOptions::default() };
        let mut events = client.namespaced::<PersistentVolumeClaim>(namespace).watch(&options).await?.boxed();
        while let Some(event) = events.next().await {
            let event = event?;
            if event.kind == podlab_client::WatchType::Deleted {
                return Err(BindError::Volumes(format!("persistentvolumeclaim \"{claim}\" not found")));
            }
            let annotations = event.object.metadata.annotations.unwrap_or_default();
            let said = event.object.status.and_then(|s| s.phase).as_deref() == Some("Bound");
            let named = event.object.spec.and_then(|s| s.volume_name).is_some_and(|v| !v.is_empty());
            if said && named && annotations.contains_key("pv.kubernetes.io/bind-completed") {
                return Ok(());
            }
        }
    }
}
