//! Claims find their volume. Source: k/k pkg/controller/volume/persistentvolume/pv_controller.go syncClaim.

use std::time::Duration;

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::StorageClass,
};
use podlab_client::{
    Client, ListOptions,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONER, SELECTED_NODE,
    bind::{bind, set_claim_phase},
    suit::{annotation, best, claim_ref, class_of_claim, is_for, mismatch, same_mode, volume_name},
};
use crate::work::{Again, Key, Reconcile};

/// How often a claim that waits is looked at, and said so again.
const RESYNC: Duration = Duration::from_secs(15);
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The controller. Volumes and claims are read from the API: a stale cache would bind one volume twice.
pub(crate) struct Claims {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) pods: Cache<Pod>,
}

#[async_trait]
impl Reconcile for Claims {
    fn name(&self) -> &'static str {
        "persistentvolumeclaim"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let Some(claim) = self.client.namespaced::<PersistentVolumeClaim>(&key.0).get_opt(&key.1).await? else {
            return Ok(Again::OnChange);
        };
        let bound = annotation(&claim.metadata, BIND_COMPLETED).is_some();
        if bound { self.bound(&claim).await.map(|()| Again::OnChange) } else { self.unbound(claim).await }
    }
}

impl Claims {
    fn say(&self, claim: &PersistentVolumeClaim, kind: EventType, reason: &'static str, note: impl Into<String>) {
        self.events.event(reference(claim), kind, reason, note);
    }

    async fn unbound(&self, claim: PersistentVolumeClaim) -> Result<Again, ApiError> {
        if !volume_name(&claim).is_empty() {
            return self.named(&claim).await;
        }
        let class = self.class(&claim).await?;
        let waits = class.as_ref().and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer");
        let delay = waits && annotation(&claim.metadata, SELECTED_NODE).is_none();
        let (volumes, _) = self.client.all::<PersistentVolume>().list(&ListOptions::default()).await?;
        if let Some(volume) = best(&volumes, &claim, delay) {
            bind(&self.client, volume, &claim).await?;
            return Ok(Again::OnChange);
        }
        if claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_none())
            && class_of_claim(&claim).is_empty()
            && self.assign_class(&claim).await?
        {
            return Ok(Again::OnChange);
        }
        if delay {
            let (reason, note) = self.first_consumer(&claim);
            self.say(&claim, EventType::Normal, reason, note);
        } else if class_of_claim(&claim).is_empty() {
            let note = "no persistent volumes available for this claim and no storage class is set";
            self.say(&claim, EventType::Normal, "FailedBinding", note);
        } else {
            self.ask(&claim, class.as_ref()).await?;
        }
        set_claim_phase(&self.client, &claim, "Pending").await?;
        Ok(Again::After(RESYNC))
    }

    async fn class(&self, claim: &PersistentVolumeClaim) -> Result<Option<StorageClass>, ApiError> {
        match class_of_claim(claim) {
            "" => Ok(None),
            name => self.client.all::<StorageClass>().get_opt(name).await,
        }
    }

    /// Gives a claim that was made before there was a default class that class; the newest of several.
    async fn assign_class(&self, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
        let (classes, _) = self.client.all::<StorageClass>().list(&ListOptions::default()).await?;
        let defaults = classes
            .iter()
            .filter(|c| annotation(&c.metadata, "storageclass.kubernetes.io/is-default-class") == Some("true"));
        let newest = defaults.max_by(|a, b| {
            let at = |c: &StorageClass| c.metadata.creation_timestamp.as_ref().map(|t| t.0);
            at(a).cmp(&at(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
        });
        let Some(class) = newest else { return Ok(false) };
        let mut new = claim.clone();
        new.spec.get_or_insert_default().storage_class_name.clone_from(&class.metadata.name);
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        self.client.namespaced::<PersistentVolumeClaim>(namespace).update(&new).await.map(|_| true)
    }

    /// Whom a claim waits for.
    fn first_consumer(&self, claim: &PersistentVolumeClaim) -> (&'static str, String) {
        let users = self.pods.list().into_iter().filter(|p| super::protect::uses(p, claim));
        let waiting =
            users.filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.as_deref().unwrap_or_default().is_empty()));
        let names: Vec<String> = waiting.filter_map(|p| p.metadata.name.clone()).collect();
        match names.len() {
            0 => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned()),
            1 => ("WaitForPodScheduled", format!("waiting for pod {} to be scheduled", names[0])),
            _ => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", names.join(","))),
        }
    }

    /// Asks the class's provisioner for a volume.
    async fn ask(&self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Result<(), ApiError> {
        let Some(class) = class else {
            let note = format!("storageclass.storage.k8s.io \"{}\" not found", class_of_claim(claim));
            self.say(claim, EventType::Warning, "ProvisioningFailed", note);
            return Ok(());
        };
        let by = class.provisioner.as_str();
        if by == NO_PROVISIONER {
            self.say(claim, EventType::Warning, "ProvisioningFailed", format!("no volume plugin matched name: {by}"));
            return Ok(());
        }
        let mut asked = claim.clone();
        if PROVISIONER.iter().any(|key| annotation(&claim.metadata, key) != Some(by)) {
            let annotations = asked.metadata.annotations.get_or_insert_default();
            annotations.extend(PROVISIONER.map(|key| (key.to_owned(), by.to_owned())));
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            asked = self.client.namespaced::<PersistentVolumeClaim>(namespace).update(&asked).await?;
        }
        let note = format!(
            "Waiting for a volume to be created either by the external provisioner '{by}' or manually by the system administrator. \
             If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.say(&asked, EventType::Normal, "ExternalProvisioning", note);
        Ok(())
    }

    /// A claim whose user named its volume.
    async fn named(&self, claim: &PersistentVolumeClaim) -> Result<Again, ApiError> {
        let name = volume_name(claim);
        let Some(volume) = self.client.all::<PersistentVolume>().get_opt(name).await? else {
            set_claim_phase(&self.client, claim, "Pending").await?;
            return Ok(Again::After(RESYNC));
        };
        if claim_ref(&volume).is_none() {
            if let Some(why) = mismatch(&volume, claim) {
                let note = if same_mode(&volume, claim) {
                    format!("Cannot bind to requested volume \"{name}\": {why}")
                } else {
                    format!(
                        "Cannot bind PersistentVolume \"{name}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
                    )
                };
                self.say(claim, EventType::Warning, "VolumeMismatch", note);
                set_claim_phase(&self.client, claim, "Pending").await?;
                return Ok(Again::After(RESYNC));
            }
        } else if !is_for(&volume, claim) {
            if annotation(&claim.metadata, BOUND_BY_CONTROLLER).is_none() {
                let note = format!("volume \"{name}\" already bound to a different claim.");
                self.say(claim, EventType::Warning, "FailedBinding", note);
            }
            set_claim_phase(&self.client, claim, "Pending").await?;
            return Ok(Again::After(RESYNC));
        }
        bind(&self.client, &volume, claim).await.map(|_| Again::OnChange)
    }

    /// A claim that has been bound once stays with its volume, or is lost.
    async fn bound(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let name = volume_name(claim);
        let (reason, note) = if name.is_empty() {
            ("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        } else {
            match self.client.all::<PersistentVolume>().get_opt(name).await? {
                None => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
                Some(volume) if claim_ref(&volume).is_none() || is_for(&volume, claim) => {
                    return bind(&self.client, &volume, claim).await.map(drop);
                }
                Some(_) => ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
            }
        };
        if set_claim_phase(&self.client, claim, "Lost").await? {
            self.say(claim, EventType::Warning, reason, note);
        }
        Ok(())
    }
}
