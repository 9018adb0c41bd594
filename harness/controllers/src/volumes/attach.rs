//! Attach and detach: a VolumeAttachment for every volume of a scheduled Pod whose driver asks for it, shown in the node's
//! status once attached, and deleted when no Pod of the node needs the volume and the node agent has let go of it.
//! Source: k/k pkg/controller/volume/attachdetach, pkg/volume/csi/csi_attacher.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    meta::ObjectMeta,
    storage::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
};
use podlab_client::{
    Client, DeleteOptions, PatchKind,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};
use podlab_clock::{Clock, Mono};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::suit::volume_name;
use crate::work::{Again, Key, Reconcile};

/// How long a node that does not answer keeps a volume its Pods have left. Source: maxWaitForUnmountDuration.
const FORCE: Duration = Duration::from_secs(360);
/// How often a volume that cannot be detached yet is looked at.
const RECHECK: Duration = Duration::from_secs(5);

/// Read caches.
pub(crate) struct Seen {
    pub(crate) pods: Cache<Pod>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) volumes: Cache<PersistentVolume>,
    pub(crate) drivers: Cache<CSIDriver>,
    pub(crate) attachments: Cache<VolumeAttachment>,
}

/// The controller. A key is a node.
pub(crate) struct Attach {
    client: Client,
    events: EventRecorder,
    clock: Clock,
    seen: Seen,
    /// Since when a volume of a node is wanted by no Pod.
    unwanted: Mutex<BTreeMap<String, Mono>>,
    /// What Pods have been told of their volumes: UID, volume, message.
    told: Mutex<BTreeSet<(String, String, String)>>,
}

/// The name of a VolumeAttachment.
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}").as_bytes());
    format!("csi-{}", digest.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

/// Whether an attachment bears a name this controller gives; others are somebody else's, who takes them away again.
fn is_ours(attachment: &VolumeAttachment) -> bool {
    let digest = attachment.metadata.name.as_deref().and_then(|n| n.strip_prefix("csi-"));
    digest.is_some_and(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn unique_name(source: &CSIPersistentVolumeSource) -> String {
    format!("kubernetes.io/csi/{}^{}", source.driver, source.volume_handle)
}

fn csi(volume: &PersistentVolume) -> Option<&CSIPersistentVolumeSource> {
    volume.spec.as_ref().and_then(|s| s.csi.as_ref())
}

fn one_node_only(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.clone()).unwrap_or_default();
    !modes.is_empty() && modes.iter().all(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod")
}

impl Attach {
    pub(crate) fn new(client: Client, events: EventRecorder, clock: Clock, seen: Seen) -> Self {
        Self { client, events, clock, seen, unwanted: Mutex::default(), told: Mutex::default() }
    }

    /// The volumes that Pods of a node need attached, with those Pods.
    fn wanted(&self, node: &str) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut out: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for pod in self.seen.pods.list() {
            let here = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
            if !here || matches!(phase, "Succeeded" | "Failed") {
                continue;
            }
            for (namespace, claim) in super::protect::ClaimProtection::concerned(&pod) {
                let Some(claim) = self.seen.claims.get(&namespace, &claim) else { continue };
                let Some(volume) = self.seen.volumes.get("", volume_name(&claim)) else { continue };
                if csi(&volume).is_some_and(|c| self.required(&c.driver)) {
                    out.entry(volume_name(&claim).to_owned()).or_default().push(pod.clone());
                }
            }
        }
        out
    }

    /// Whether a driver's volumes must be attached: yes, unless its object says no.
    fn required(&self, driver: &str) -> bool {
        self.seen.drivers.get("", driver).is_none_or(|d| d.spec.attach_required.unwrap_or(true))
    }

    /// Says something to a Pod about a volume, once. That a volume is attached elsewhere is one thing, however many Pods
    /// use it there meanwhile. Source: actual_state_of_world.go MultiAttachErrorReported.
    fn tell(&self, pod: &Pod, volume: &str, kind: EventType, reason: &'static str, note: String) {
        const ELSEWHERE: &str = "Multi-Attach error";
        let thing = if note.starts_with(ELSEWHERE) { ELSEWHERE.to_owned() } else { note.clone() };
        let key = (pod.metadata.uid.clone().unwrap_or_default(), volume.to_owned(), thing);
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            self.events.event(reference(pod), kind, reason, note);
        }
    }

    async fn attach(
        &self,
        node: &str,
        volume: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        pods: &[Arc<Pod>],
    ) -> Result<bool, ApiError> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let id = attachment_name(&source.volume_handle, &source.driver, node);
        let all = self.client.all::<VolumeAttachment>();
        let Some(found) = all.get_opt(&id).await? else {
            let elsewhere =
                self.seen.attachments.list().into_iter().any(|a| {
                    a.spec.source.persistent_volume_name.as_deref() == Some(&name) && a.spec.node_name != node
                });
            if elsewhere && one_node_only(volume) {
                for pod in pods {
                    self.tell(
                        pod,
                        &name,
                        EventType::Warning,
                        "FailedAttachVolume",
                        self.multi_attach(&name, pod, node),
                    );
                }
                return Ok(false);
            }
            let attachment = VolumeAttachment {
                metadata: ObjectMeta { name: Some(id), ..ObjectMeta::default() },
                spec: VolumeAttachmentSpec {
                    attacher: source.driver.clone(),
                    node_name: node.to_owned(),
                    source: VolumeAttachmentSource { persistent_volume_name: Some(name), inline_volume_spec: None },
                },
                status: None,
            };
            return match all.create(&attachment).await {
                Err(e) if !e.is_already_exists() => Err(e),
                _ => Ok(false),
            };
        };
        let (attached, error) =
            found.status.map_or((false, None), |s| (s.attached, s.attach_error.and_then(|e| e.message)));
        if attached {
            return Ok(true);
        }
        if let Some(why) = error {
            for pod in pods {
                self.tell(
                    pod,
                    &name,
                    EventType::Warning,
                    "FailedAttachVolume",
                    format!("AttachVolume.Attach failed for volume \"{name}\" : {why}"),
                );
            }
        }
        Ok(false)
    }

    fn multi_attach(&self, volume: &str, pod: &Pod, node: &str) -> String {
        let others = self.seen.pods.list().into_iter().filter(|p| {
            p.metadata.uid != pod.metadata.uid
                && p.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| n != node && !n.is_empty())
                && super::protect::ClaimProtection::concerned(p)
                    .iter()
                    .any(|(ns, c)| self.seen.claims.get(ns, c).is_some_and(|c| volume_name(&c) == volume))
        });
        let (same, foreign): (Vec<_>, Vec<_>) = others.partition(|p| p.metadata.namespace == pod.metadata.namespace);
        let names: Vec<String> = same.iter().filter_map(|p| p.metadata.name.clone()).collect();
        let what = match (names.is_empty(), foreign.len()) {
            (true, 0) => {
                "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
            }
            (true, n) => format!("Volume is already used by {n} pod(s) in different namespaces"),
            (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
            (false, n) => {
                format!("Volume is already used by pod(s) {} and {n} pod(s) in different namespaces", names.join(", "))
            }
        };
        format!("Multi-Attach error for volume \"{volume}\" {what}")
    }

    /// Whether a volume no Pod wants may be taken from the node.
    fn may_detach(&self, key: &str, in_use: bool, node: Option<&Node>) -> bool {
        let now = self.clock.now();
        let since = *self.unwanted.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_owned()).or_insert(now);
        let Some(node) = node else { return true };
        let ready = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        let out_of_service = taints.into_iter().any(|t| t.key == "node.kubernetes.io/out-of-service");
        !in_use || (!ready && (out_of_service || now.since(since) >= FORCE))
    }
}

#[async_trait]
impl Reconcile for Attach {
    fn name(&self) -> &'static str {
        "attachdetach"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let node = self.client.all::<Node>().get_opt(name).await?;
        let there: BTreeSet<String> = self.seen.pods.list().iter().filter_map(|p| p.metadata.uid.clone()).collect();
        self.told.lock().unwrap_or_else(PoisonError::into_inner).retain(|(uid, _, _)| there.contains(uid));
        let wanted = self.wanted(name);
        let (mut attached, mut again) = (BTreeSet::new(), Again::OnChange);
        let mut done = Vec::new();
        for (volume_name, pods) in &wanted {
            let Some(volume) = self.seen.volumes.get("", volume_name) else { continue };
            let Some(source) = csi(&volume).filter(|_| node.is_some()) else { continue };
            self.unwanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&attachment_name(
                &source.volume_handle,
                &source.driver,
                name,
            ));
            if self.attach(name, &volume, source, pods).await? {
                attached.insert(unique_name(source));
                done.push((volume_name, pods));
            } else {
                again = Again::After(RECHECK);
            }
        }
        let in_use: BTreeSet<String> = node
            .iter()
            .flat_map(|n| n.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten()))
            .cloned()
            .collect();
        let mut detach = Vec::new();
        let here = |a: &Arc<VolumeAttachment>| a.spec.node_name == *name && is_ours(a);
        for attachment in self.seen.attachments.list().into_iter().filter(here) {
            let Some(of) =
                attachment.spec.source.persistent_volume_name.as_deref().filter(|v| !wanted.contains_key(*v))
            else {
                continue;
            };
            let id = attachment.metadata.name.clone().unwrap_or_default();
            let unique = self.seen.volumes.get("", of).and_then(|v| csi(&v).map(unique_name));
            if self.may_detach(&id, unique.as_ref().is_some_and(|u| in_use.contains(u)), node.as_ref()) {
                detach.push(id);
            } else {
                attached.extend(unique.filter(|_| attachment.status.as_ref().is_some_and(|s| s.attached)));
                again = Again::After(RECHECK);
            }
        }
        // Out of the node's status first, so that the node agent mounts nothing that is about to go.
        if let Some(node) = &node {
            self.show(node, &attached).await?;
        }
        for (volume, pods) in done {
            for pod in pods {
                self.tell(
                    pod,
                    volume,
                    EventType::Normal,
                    "SuccessfulAttachVolume",
                    format!("AttachVolume.Attach succeeded for volume \"{volume}\" "),
                );
            }
        }
        for id in detach {
            match self.client.all::<VolumeAttachment>().delete(&id, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
            self.unwanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
        Ok(again)
    }
}

impl Attach {
    async fn show(&self, node: &Node, attached: &BTreeSet<String>) -> Result<(), ApiError> {
        let shown: BTreeSet<String> =
            node.status.iter().flat_map(|s| s.volumes_attached.iter().flatten()).map(|v| v.name.clone()).collect();
        if shown == *attached {
            return Ok(());
        }
        let list: Vec<_> = attached.iter().map(|n| json!({"name": n, "devicePath": ""})).collect();
        let body = json!({"status": {"volumesAttached": list}});
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.client.all::<Node>().patch_status(name, &PatchKind::Merge, &body).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_somebody_else_made_is_not_ours_to_take_away() {
        let named = |name: String| VolumeAttachment {
            metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec::default(),
            status: None,
        };
        assert!(is_ours(&named(attachment_name("handle", "driver", "node-1"))));
        assert!(!is_ours(&named("va-e2e-ddbmd".into())));
        assert!(!is_ours(&named("csi-mine".into())));
    }
}
