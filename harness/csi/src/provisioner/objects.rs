//! Which claims and volumes are ours, and the objects made for them. Pure.

use std::collections::BTreeMap;

use podlab_api::{
    core::{
        CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
        PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
    },
    k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    meta::ObjectMeta,
    parse_quantity,
    storage::StorageClass,
};

use crate::v1::{Topology, Volume, volume_capability::access_mode::Mode};

/// Keeps a volume's object until the volume behind it has gone.
pub(super) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Parameters of a class that are for the provisioner, not for the driver.
const RESERVED: &str = "csi.storage.k8s.io/";

/// Namespace, name and UID.
pub(super) fn identity(claim: &PersistentVolumeClaim) -> (String, String, String) {
    let m = &claim.metadata;
    (m.namespace.clone().unwrap_or_default(), m.name.clone().unwrap_or_default(), m.uid.clone().unwrap_or_default())
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str).filter(|v| !v.is_empty())
}

/// What a claim asks for, in bytes.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let wanted = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    bytes(wanted)
}

fn bytes(q: Option<&Quantity>) -> i64 {
    q.and_then(|q| parse_quantity(&q.0).ok()).and_then(|n| i64::try_from(n).ok()).unwrap_or(0)
}

/// The node a claim was given to.
pub(super) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE)
}

/// Who we are.
#[derive(Debug, Clone)]
pub(crate) struct Mine {
    pub(crate) driver: String,
    pub(crate) node: String,
    pub(crate) topology: BTreeMap<String, String>,
}

impl Mine {
    /// Whether a claim waits for this node's driver.
    pub(super) fn provisions(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
        let meta = &claim.metadata;
        let asked = annotation(meta, PROVISIONER).or_else(|| annotation(meta, BETA_PROVISIONER)) == Some(&self.driver);
        let unbound = claim.spec.as_ref().is_some_and(|s| s.volume_name.as_deref().unwrap_or_default().is_empty());
        if !asked || !unbound || meta.deletion_timestamp.is_some() || class.provisioner != self.driver {
            return false;
        }
        match selected_node(claim) {
            Some(node) => node == self.node,
            None => class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") && self.allowed(class),
        }
    }

    /// Whether the class lets volumes be made here.
    fn allowed(&self, class: &StorageClass) -> bool {
        let terms = class.allowed_topologies.as_deref().unwrap_or(&[]);
        let fits = |t: &podlab_api::core::TopologySelectorTerm| {
            t.match_label_expressions
                .iter()
                .flatten()
                .all(|e| self.topology.get(&e.key).is_some_and(|v| e.values.contains(v)))
        };
        terms.is_empty() || terms.iter().any(fits)
    }

    /// Whether a volume was made by us, on this node.
    fn ours(&self, volume: &PersistentVolume) -> bool {
        let Some(spec) = &volume.spec else { return false };
        let required = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
        let here = required.is_none_or(|r| {
            r.node_selector_terms.iter().any(|t| {
                t.match_expressions.iter().flatten().all(|e| {
                    self.topology
                        .get(&e.key)
                        .is_some_and(|v| e.operator == "In" && e.values.iter().flatten().any(|x| x == v))
                })
            })
        });
        annotation(&volume.metadata, PROVISIONED_BY) == Some(&self.driver)
            && spec.csi.as_ref().is_some_and(|c| c.driver == self.driver)
            && here
    }

    /// Whether the volume behind this object is to be removed.
    pub(super) fn deletes(&self, volume: &PersistentVolume) -> bool {
        let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
        let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
        let held = held(volume);
        self.ours(volume)
            && released
            && policy == Some("Delete")
            && (volume.metadata.deletion_timestamp.is_none() || held)
    }

    /// Whether the object is being deleted and waits for us, though the volume is to be kept.
    pub(super) fn releases(&self, volume: &PersistentVolume) -> bool {
        let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
        self.ours(volume) && volume.metadata.deletion_timestamp.is_some() && held(volume) && policy == Some("Retain")
    }

    /// Whether a bound claim asks for more than its volume has.
    pub(super) fn expands(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
        let status = claim.status.as_ref();
        let bound = status.and_then(|s| s.phase.as_deref()) == Some("Bound");
        let has = bytes(status.and_then(|s| s.capacity.as_ref()?.get("storage")));
        bound && claim.metadata.deletion_timestamp.is_none() && has > 0 && requested(claim) > has && self.ours(volume)
    }

    /// The object of a volume made for a claim.
    pub(super) fn volume(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        made: &Volume,
    ) -> PersistentVolume {
        let spec = claim.spec.clone().unwrap_or_default();
        let (namespace, name, uid) = identity(claim);
        let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into());
        let mut attributes = made.volume_context.clone();
        attributes
            .insert("storage.kubernetes.io/csiProvisionerIdentity".into(), format!("{}-{}", self.node, self.driver));
        let size = if made.capacity_bytes > 0 { made.capacity_bytes } else { requested(claim) };
        let annotations = [
            (PROVISIONED_BY, self.driver.clone()),
            ("volume.kubernetes.io/provisioner-deletion-secret-name", String::new()),
            ("volume.kubernetes.io/provisioner-deletion-secret-namespace", String::new()),
        ];
        PersistentVolume {
            metadata: ObjectMeta {
                name: Some(format!("pvc-{uid}")),
                annotations: Some(annotations.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
                finalizers: (policy == "Delete").then(|| vec![FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes,
                capacity: Some([("storage".to_owned(), Quantity(binary(size)))].into()),
                claim_ref: Some(ObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("PersistentVolumeClaim".into()),
                    namespace: Some(namespace),
                    name: Some(name),
                    uid: Some(uid),
                    resource_version: claim.metadata.resource_version.clone(),
                    field_path: None,
                }),
                csi: Some(CSIPersistentVolumeSource {
                    driver: self.driver.clone(),
                    volume_handle: made.volume_id.clone(),
                    volume_attributes: Some(attributes),
                    fs_type: class.parameters.as_ref().and_then(|p| p.get(&format!("{RESERVED}fstype")).cloned()),
                    ..CSIPersistentVolumeSource::default()
                }),
                mount_options: class.mount_options.clone(),
                node_affinity: affinity(&made.accessible_topology),
                persistent_volume_reclaim_policy: Some(policy),
                storage_class_name: spec.storage_class_name,
                volume_mode: spec.volume_mode,
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        }
    }
}

fn held(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

/// Bytes as a quantity, in the largest binary unit that is exact.
pub(super) fn binary(bytes: i64) -> String {
    for (shift, unit) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes > 0 && bytes % (1_i64 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Where a volume can be used: on nodes that match any of its topologies.
fn affinity(topologies: &[Topology]) -> Option<VolumeNodeAffinity> {
    let term = |t: &Topology| {
        let one = |(k, v): (&String, &String)| NodeSelectorRequirement {
            key: k.clone(),
            operator: "In".into(),
            values: Some(vec![v.clone()]),
        };
        NodeSelectorTerm { match_expressions: Some(t.segments.iter().map(one).collect()), match_fields: None }
    };
    let terms: Vec<_> = topologies.iter().filter(|t| !t.segments.is_empty()).map(term).collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: terms }) })
}

/// What the driver is told of a class's parameters.
pub(super) fn parameters(class: &StorageClass) -> BTreeMap<String, String> {
    let all = class.parameters.iter().flatten().filter(|(k, _)| !k.starts_with(RESERVED));
    all.map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// CSI's word for a Kubernetes access mode. `tells_apart` is the SINGLE_NODE_MULTI_WRITER capability.
/// Source: k/k pkg/volume/csi/csi_client.go.
pub fn access_mode(mode: &str, tells_apart: bool) -> Mode {
    match (mode, tells_apart) {
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        _ => Mode::SingleNodeWriter,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mine() -> Mine {
        Mine { driver: "d".into(), node: "n1".into(), topology: BTreeMap::from([("t".to_owned(), "n1".to_owned())]) }
    }

    fn class(mode: &str) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "provisioner": "d", "volumeBindingMode": mode, "reclaimPolicy": "Delete"})).unwrap()
    }

    fn claim(node: Option<&str>) -> PersistentVolumeClaim {
        let mut annotations = json!({PROVISIONER: "d"});
        if let Some(n) = node {
            annotations[SELECTED_NODE] = n.into();
        }
        serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {"storageClassName": "c", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})).unwrap()
    }

    #[test]
    fn a_claim_is_for_its_selected_node_and_an_immediate_one_for_any() {
        for (node, mode, expected) in [
            (None, "WaitForFirstConsumer", false),
            (Some("n1"), "WaitForFirstConsumer", true),
            (Some("n2"), "WaitForFirstConsumer", false),
            (None, "Immediate", true),
            (Some("n2"), "Immediate", false),
        ] {
            assert_eq!(mine().provisions(&claim(node), &class(mode)), expected, "{node:?} {mode}");
        }
    }

    #[test]
    fn a_volume_says_whose_it_is_and_is_deleted_on_its_node_once_released() {
        let made = Volume {
            volume_id: "v".into(),
            accessible_topology: vec![Topology { segments: mine().topology }],
            ..Volume::default()
        };
        let mut pv = mine().volume(&claim(Some("n1")), &class("Immediate"), &made);
        let spec = pv.spec.clone().unwrap();
        assert_eq!(spec.capacity.unwrap()["storage"].0, "1Gi");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u"));
        assert!(!mine().deletes(&pv));
        pv.status = serde_json::from_value(json!({"phase": "Released"})).unwrap();
        assert!(mine().deletes(&pv));
        let other = Mine { topology: BTreeMap::from([("t".to_owned(), "n2".to_owned())]), ..mine() };
        assert!(!other.deletes(&pv));
        pv.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Retain".into());
        assert!(!mine().deletes(&pv) && !mine().releases(&pv));
    }
}
