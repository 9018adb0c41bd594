//! `VolumeBinding`, `VolumeRestrictions`: claims, volumes and classes as they bear on a node.
//! Source: k/k pkg/scheduler/framework/plugins/volumebinding, volumerestrictions.

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::{
    core::{PersistentVolume, PersistentVolumeClaim},
    matching::{node_selector_matches, selects},
    parse_quantity,
    storage::StorageClass,
};

use crate::{
    cache::NodeInfo,
    pod_info::{Key, PodInfo},
};

/// A class with this provisioner only binds volumes somebody made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Set on a claim once its volume is settled.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// All storage objects the cycle looks at.
#[derive(Debug, Default, Clone)]
pub(crate) struct VolumeState {
    pub(crate) claims: BTreeMap<Key, Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(crate) classes: BTreeMap<String, Arc<StorageClass>>,
}

/// What has to be done for one claim before its Pod can be bound to a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClaimPlan {
    /// Bind this existing volume to the claim.
    Static {
        /// The claim.
        claim: String,
        /// The volume.
        volume: String,
    },
    /// Let the provisioner make one on the node.
    Provision {
        /// The claim.
        claim: String,
    },
}

/// Names of the claims a Pod uses; generic ephemeral volumes use `<pod>-<volume>`.
pub(crate) fn claim_names(pod: &PodInfo) -> Vec<(String, bool)> {
    let volumes = pod.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let name = |v: &podlab_api::core::Volume| match (&v.persistent_volume_claim, &v.ephemeral) {
        (Some(c), _) => Some((c.claim_name.clone(), false)),
        (None, Some(_)) => Some((format!("{}-{}", pod.key.1, v.name), true)),
        (None, None) => None,
    };
    volumes.filter_map(name).collect()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let named = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).is_some_and(|v| !v.is_empty());
    named && claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(BIND_COMPLETED))
}

impl VolumeState {
    fn claim(&self, pod: &PodInfo, name: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(&(pod.namespace().to_owned(), name.to_owned()))
    }

    fn class(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<StorageClass>> {
        self.classes.get(claim.spec.as_ref()?.storage_class_name.as_deref()?)
    }

    fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        self.class(claim).and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
    }

    /// What is wrong with the Pod's claims whatever the node; the text goes into the message as it is.
    pub(crate) fn prefilter(&self, pod: &PodInfo) -> Result<(), String> {
        for (name, ephemeral) in claim_names(pod) {
            let Some(claim) = self.claim(pod, &name) else {
                return Err(match ephemeral {
                    true => format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                    ),
                    false => format!("persistentvolumeclaim \"{name}\" not found"),
                });
            };
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Lost") {
                let volume = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
                return Err(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
        }
        let unbound = |(name, _): &(String, bool)| {
            self.claim(pod, name).is_some_and(|c| !is_bound(c) && !self.waits_for_consumer(c))
        };
        if claim_names(pod).iter().any(unbound) {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        Ok(())
    }

    /// Whether the Pod's volumes can be on a node; a reason and whether evicting somebody could help.
    pub(crate) fn fit(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), (String, bool)> {
        self.exclusive(pod, node)?;
        self.plan(pod, node).map(drop).map_err(|text| (text.to_owned(), false))
    }

    /// A ReadWriteOncePod claim is for one Pod in the cluster.
    fn exclusive(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), (String, bool)> {
        for (name, _) in claim_names(pod) {
            let once = self.claim(pod, &name).and_then(|c| c.spec.as_ref()?.access_modes.as_ref());
            let exclusive = once.is_some_and(|m| m.iter().any(|m| m == "ReadWriteOncePod"));
            let used = || {
                let others = node.pods.values().filter(|p| p.key != pod.key && p.namespace() == pod.namespace());
                others.into_iter().any(|p| claim_names(p).iter().any(|(n, _)| *n == name))
            };
            if exclusive && used() {
                let text = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
                return Err((text.to_owned(), true));
            }
        }
        Ok(())
    }

    /// What has to be done for the Pod's claims if it goes to this node.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn plan(&self, pod: &PodInfo, node: &NodeInfo) -> Result<Vec<ClaimPlan>, &'static str> {
        let mut plans: Vec<ClaimPlan> = Vec::new();
        let Some(object) = &node.node else { return Ok(plans) };
        for (name, _) in claim_names(pod) {
            let Some(claim) = self.claim(pod, &name) else { continue };
            if is_bound(claim) {
                let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_ref()).and_then(|v| self.volumes.get(v));
                let Some(volume) = volume else {
                    return Err("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
                };
                if !reaches(volume, object) {
                    return Err("node(s) didn't match PersistentVolume's node affinity");
                }
                continue;
            }
            let taken = |v: &str| plans.iter().any(|p| matches!(p, ClaimPlan::Static { volume, .. } if volume == v));
            let fits = self.volumes.values().filter(|v| self.suits(v, claim) && reaches(v, object));
            let free = fits.filter(|v| !taken(v.metadata.name.as_deref().unwrap_or_default()));
            if let Some(volume) = free.min_by_key(|v| capacity(v)) {
                let volume = volume.metadata.name.clone().unwrap_or_default();
                plans.push(ClaimPlan::Static { claim: name, volume });
                continue;
            }
            let class = self.class(claim);
            let provisions = class.is_some_and(|c| c.provisioner != NO_PROVISIONER);
            let topologies = class.and_then(|c| c.allowed_topologies.as_deref()).unwrap_or(&[]);
            let allowed = topologies.is_empty()
                || topologies.iter().any(|t| {
                    let labels = node.labels();
                    t.match_label_expressions
                        .iter()
                        .flatten()
                        .all(|e| labels.get(&e.key).is_some_and(|v| e.values.contains(v)))
                });
            if !provisions || !allowed {
                return Err("node(s) didn't find available persistent volumes to bind");
            }
            plans.push(ClaimPlan::Provision { claim: name });
        }
        Ok(plans)
    }

    /// Whether an available volume satisfies a claim.
    fn suits(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
        let (Some(v), Some(c)) = (&volume.spec, &claim.spec) else { return false };
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let free = volume.metadata.deletion_timestamp.is_none()
            && phase.is_none_or(|p| p == "Available" || p == "Pending")
            && v.claim_ref.as_ref().is_none_or(|r| {
                r.name == claim.metadata.name
                    && r.namespace == claim.metadata.namespace
                    && (r.uid.is_none() || r.uid == claim.metadata.uid)
            });
        let class =
            v.storage_class_name.as_deref().unwrap_or_default() == c.storage_class_name.as_deref().unwrap_or_default();
        let mode = |m: &Option<String>| m.clone().unwrap_or_else(|| "Filesystem".into());
        let modes = c.access_modes.iter().flatten().all(|m| v.access_modes.iter().flatten().any(|x| x == m));
        let wanted = c
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref()?.get("storage"))
            .map_or(0, |q| parse_quantity(&q.0).unwrap_or(0));
        let selected =
            c.selector.as_ref().is_none_or(|s| selects(s, &volume.metadata.labels.clone().unwrap_or_default()));
        free && class && modes && mode(&v.volume_mode) == mode(&c.volume_mode) && capacity(volume) >= wanted && selected
    }
}

fn capacity(volume: &PersistentVolume) -> i128 {
    let size = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    size.map_or(0, |q| parse_quantity(&q.0).unwrap_or(0))
}

/// Whether a volume can be used on a node.
fn reaches(volume: &PersistentVolume, node: &podlab_api::core::Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    affinity.and_then(|a| a.required.as_ref()).is_none_or(|r| node_selector_matches(r, node))
}
