//! The four writes that bind a volume and a claim, in upstream's order: the volume's claim reference, its phase, the
//! claim's volume name, its phase. Each is left out when it holds already, so a binding cut short is completed later.

use podlab_api::{
    ApiError,
    core::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    meta::ObjectMeta,
};
use podlab_client::{Client, PatchKind};
use serde_json::json;

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER,
    suit::{is_for, phase_of_claim, phase_of_volume, volume_name},
};

fn annotate(meta: &mut ObjectMeta, key: &str) -> bool {
    meta.annotations.get_or_insert_default().insert(key.to_owned(), "yes".to_owned()).as_deref() != Some("yes")
}

/// Binds; returns the claim as it is then.
pub(crate) async fn bind(
    client: &Client,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolumeClaim, ApiError> {
    let volume = reserve(client, volume, claim).await?;
    let volume = set_volume_phase(client, &volume, "Bound", None).await?;
    let claim = name_volume(client, &volume, claim).await?;
    show(client, &volume, &claim).await
}

async fn reserve(
    client: &Client,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolume, ApiError> {
    let mut new = volume.clone();
    let ours = !is_for(volume, claim);
    let spec = new.spec.get_or_insert_default();
    let complete = spec.claim_ref.as_ref().is_some_and(|r| r.uid == claim.metadata.uid && r.uid.is_some());
    if !ours && complete {
        return Ok(new);
    }
    spec.claim_ref = Some(ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    });
    if ours {
        annotate(&mut new.metadata, BOUND_BY_CONTROLLER);
    }
    client.all::<PersistentVolume>().update(&new).await
}

/// Sets a volume's phase; with a message its reason of failure.
pub(crate) async fn set_volume_phase(
    client: &Client,
    volume: &PersistentVolume,
    phase: &str,
    message: Option<&str>,
) -> Result<PersistentVolume, ApiError> {
    if phase_of_volume(volume) == phase {
        return Ok(volume.clone());
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let body = json!({"status": {"phase": phase, "message": message}});
    client.all::<PersistentVolume>().patch_status(name, &PatchKind::Merge, &body).await
}

async fn name_volume(
    client: &Client,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolumeClaim, ApiError> {
    let mut new = claim.clone();
    let name = volume.metadata.name.clone().unwrap_or_default();
    let mut dirty = false;
    if volume_name(claim) != name {
        new.spec.get_or_insert_default().volume_name = Some(name);
        dirty |= annotate(&mut new.metadata, BOUND_BY_CONTROLLER);
    }
    dirty |= annotate(&mut new.metadata, BIND_COMPLETED);
    if !dirty {
        return Ok(new);
    }
    client
        .namespaced::<PersistentVolumeClaim>(claim.metadata.namespace.as_deref().unwrap_or_default())
        .update(&new)
        .await
}

async fn show(
    client: &Client,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolumeClaim, ApiError> {
    let spec = volume.spec.clone().unwrap_or_default();
    let status = claim.status.clone().unwrap_or_default();
    // A claim that is bound already keeps its size: growing it is the resizer's.
    let sized = status.capacity.as_ref().is_some_and(|c| !c.is_empty());
    if phase_of_claim(claim) == "Bound" && status.access_modes == spec.access_modes && sized {
        return Ok(claim.clone());
    }
    let body = json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity}});
    let (namespace, name) = crate::work::key_of(claim);
    client.namespaced::<PersistentVolumeClaim>(&namespace).patch_status(&name, &PatchKind::Merge, &body).await
}

/// Sets a claim's phase when it is another.
pub(crate) async fn set_claim_phase(
    client: &Client,
    claim: &PersistentVolumeClaim,
    phase: &str,
) -> Result<bool, ApiError> {
    if phase_of_claim(claim) == phase {
        return Ok(false);
    }
    let (namespace, name) = crate::work::key_of(claim);
    let body = json!({"status": {"phase": phase, "accessModes": null, "capacity": null}});
    client
        .namespaced::<PersistentVolumeClaim>(&namespace)
        .patch_status(&name, &PatchKind::Merge, &body)
        .await
        .map(|_| true)
}
