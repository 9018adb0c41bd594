//! Volumes follow their claims: Available, Bound, Released, and what then becomes of them.
//! Source: k/k pkg/controller/volume/persistentvolume/pv_controller.go syncVolume.

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{PersistentVolume, PersistentVolumeClaim},
};
use podlab_client::{
    Client,
    events::{EventRecorder, EventType, reference},
};

use super::{
    BOUND_BY_CONTROLLER, PROVISIONED_BY,
    bind::set_volume_phase,
    suit::{annotation, claim_ref, phase_of_volume, same_mode, volume_name},
};
use crate::work::{Again, Key, Queue, Reconcile};

/// The controller.
pub(crate) struct Volumes {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    /// Claims to look at.
    pub(crate) claims: Queue,
}

#[async_trait]
impl Reconcile for Volumes {
    fn name(&self) -> &'static str {
        "persistentvolume"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let Some(volume) = self.client.all::<PersistentVolume>().get_opt(name).await? else {
            return Ok(Again::OnChange);
        };
        let Some(to) = claim_ref(&volume) else {
            set_volume_phase(&self.client, &volume, "Available", None).await?;
            return Ok(Again::OnChange);
        };
        let (namespace, claim_name) = (to.namespace.clone().unwrap_or_default(), to.name.clone().unwrap_or_default());
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&namespace);
        if to.uid.as_deref().unwrap_or_default().is_empty() {
            set_volume_phase(&self.client, &volume, "Available", None).await?;
            self.claims.add((namespace, claim_name));
            return Ok(Again::OnChange);
        }
        let claim = claims.get_opt(&claim_name).await?.filter(|c| c.metadata.uid == to.uid);
        match claim {
            None => self.release(&volume).await?,
            Some(claim) if volume_name(&claim).is_empty() => {
                if !same_mode(&volume, &claim) {
                    let note = format!(
                        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim_name}\" due to incompatible volumeMode."
                    );
                    self.events.event(reference(&volume), EventType::Warning, "VolumeMismatch", note);
                }
                self.claims.add((namespace, claim_name));
            }
            Some(claim) if volume_name(&claim) == name => {
                set_volume_phase(&self.client, &volume, "Bound", None).await?;
            }
            Some(_) => self.unbind(&volume).await?,
        }
        Ok(Again::OnChange)
    }
}

impl Volumes {
    /// The claim has gone.
    async fn release(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        if phase_of_volume(volume) == "Failed" {
            return Ok(());
        }
        let volume = set_volume_phase(&self.client, volume, "Released", None).await?;
        let policy =
            volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain");
        let name = volume.metadata.name.clone().unwrap_or_default();
        let (reason, note) = match policy {
            "Retain" => return Ok(()),
            // Whoever made it removes it.
            "Delete" if annotation(&volume.metadata, PROVISIONED_BY).is_some() => return Ok(()),
            "Delete" => (
                "VolumeFailedDelete",
                format!(
                    "error getting deleter volume plugin for volume \"{name}\": no deletable volume plugin matched"
                ),
            ),
            "Recycle" => ("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()),
            _ => ("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned()),
        };
        set_volume_phase(&self.client, &volume, "Failed", Some(&note)).await?;
        self.events.event(reference(&volume), EventType::Warning, reason, note);
        Ok(())
    }

    /// The claim is bound to another volume: a volume made for it is of no use to anybody, another one is free again.
    async fn unbind(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
        if annotation(&volume.metadata, PROVISIONED_BY).is_some() && policy == Some("Delete") {
            return self.release(volume).await;
        }
        let mut new = volume.clone();
        let chosen = new.metadata.annotations.as_mut().is_some_and(|a| a.remove(BOUND_BY_CONTROLLER).is_some());
        let spec = new.spec.get_or_insert_default();
        if chosen {
            spec.claim_ref = None;
        } else if let Some(to) = spec.claim_ref.as_mut() {
            to.uid = None;
            to.resource_version = None;
        }
        self.client.all::<PersistentVolume>().update(&new).await?;
        set_volume_phase(&self.client, &new, "Available", None).await.map(drop)
    }
}
