//! Generic ephemeral volumes: a claim per volume, owned by the Pod. Source: k/k pkg/controller/volume/ephemeral.

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{PersistentVolumeClaim, Pod},
    meta::ObjectMeta,
};
use podlab_client::{
    Client,
    events::{EventRecorder, EventType, reference},
};

use crate::{
    replicaset::{controlled_by, owner},
    work::{Again, Key, Reconcile},
};

/// The controller.
pub(crate) struct EphemeralVolumes {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
}

#[async_trait]
impl Reconcile for EphemeralVolumes {
    fn name(&self) -> &'static str {
        "ephemeral_volume"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let Some(pod) = self.client.namespaced::<Pod>(&key.0).get_opt(&key.1).await? else {
            return Ok(Again::OnChange);
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Again::OnChange);
        }
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&key.0);
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) else {
                continue;
            };
            let name = format!("{}-{}", key.1, volume.name);
            if let Some(found) = claims.get_opt(&name).await? {
                if controlled_by(&found.metadata, pod.metadata.uid.as_ref()) {
                    continue;
                }
                let why =
                    format!("PVC {}/{name} was not created for pod {}/{} (pod is not owner)", key.0, key.0, key.1);
                self.events.event(
                    reference(&pod),
                    EventType::Warning,
                    "FailedBinding",
                    format!("ephemeral volume {}: {why}", volume.name),
                );
                return Err(ApiError::bad_request(why));
            }
            let meta = template.metadata.clone().unwrap_or_default();
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(name),
                    labels: meta.labels,
                    annotations: meta.annotations,
                    owner_references: Some(vec![owner("v1", "Pod", &pod.metadata)]),
                    ..ObjectMeta::default()
                },
                spec: Some(template.spec.clone()),
                status: None,
            };
            match claims.create(&claim).await {
                Err(e) if !e.is_already_exists() => {
                    self.events.event(
                        reference(&pod),
                        EventType::Warning,
                        "FailedBinding",
                        format!("ephemeral volume {}: {}", volume.name, e.message),
                    );
                    return Err(e);
                }
                _ => {}
            }
        }
        Ok(Again::OnChange)
    }
}
