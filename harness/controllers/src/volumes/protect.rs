//! Claims and volumes in use are not deleted: the finalizers admission gave them are taken off when nothing uses them.
//! Source: k/k pkg/controller/volume/{pvcprotection,pvprotection}.

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    meta::ObjectMeta,
};
use podlab_client::{Client, ListOptions};

use super::suit::phase_of_volume;
use crate::work::{Again, Key, Reconcile, key_of};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

/// Whether a Pod names a claim, itself or through an ephemeral volume.
pub(crate) fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    pod.metadata.namespace == claim.metadata.namespace
        && volumes.any(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(c), _) => c.claim_name == name,
            (None, Some(_)) => format!("{own}-{}", v.name) == name,
            (None, None) => false,
        })
}

/// Whether a Pod may have the claim's volume mounted.
fn holds(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let scheduled = pod.spec.as_ref().is_some_and(|s| s.node_name.as_deref().is_some_and(|n| !n.is_empty()));
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    scheduled && !matches!(phase, "Succeeded" | "Failed") && uses(pod, claim)
}

fn doomed(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.deletion_timestamp.is_some() && meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

fn gone(result: Result<(), ApiError>) -> Result<Again, ApiError> {
    match result {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(Again::OnChange),
    }
}

/// Claims.
pub(crate) struct ClaimProtection {
    pub(crate) client: Client,
}

#[async_trait]
impl Reconcile for ClaimProtection {
    fn name(&self) -> &'static str {
        "pvc-protection"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&key.0);
        let Some(mut claim) = claims.get_opt(&key.1).await? else { return Ok(Again::OnChange) };
        if !doomed(&claim.metadata, CLAIM) {
            return Ok(Again::OnChange);
        }
        let (pods, _) = self.client.namespaced::<Pod>(&key.0).list(&ListOptions::default()).await?;
        if pods.iter().any(|p| holds(p, &claim)) {
            return Ok(Again::OnChange);
        }
        claim.metadata.finalizers.get_or_insert_default().retain(|f| f != CLAIM);
        gone(claims.update(&claim).await.map(drop))
    }
}

impl ClaimProtection {
    /// The claims a Pod's change concerns.
    pub(crate) fn concerned(pod: &Pod) -> Vec<Key> {
        let (namespace, own) = key_of(pod);
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let name = |v: &podlab_api::core::Volume| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(c), _) => Some(c.claim_name.clone()),
            (None, Some(_)) => Some(format!("{own}-{}", v.name)),
            (None, None) => None,
        };
        volumes.filter_map(name).map(|n| (namespace.clone(), n)).collect()
    }
}

/// Volumes.
pub(crate) struct VolumeProtection {
    pub(crate) client: Client,
}

#[async_trait]
impl Reconcile for VolumeProtection {
    fn name(&self) -> &'static str {
        "pv-protection"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let volumes = self.client.all::<PersistentVolume>();
        let Some(mut volume) = volumes.get_opt(name).await? else { return Ok(Again::OnChange) };
        if !doomed(&volume.metadata, VOLUME) || phase_of_volume(&volume) == "Bound" {
            return Ok(Again::OnChange);
        }
        volume.metadata.finalizers.get_or_insert_default().retain(|f| f != VOLUME);
        gone(volumes.update(&volume).await.map(drop))
    }
}
