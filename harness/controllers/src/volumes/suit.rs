//! Which volume suits which claim. Pure. Source: k/k pkg/controller/volume/persistentvolume/index.go,
//! staging/src/k8s.io/component-helpers/storage/volume.

use podlab_api::{
    core::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    matching::selects,
    meta::ObjectMeta,
    parse_quantity,
};

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str)
}

pub(crate) fn phase_of_claim(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn phase_of_volume(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The name of the volume a claim names; empty for none.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

pub(crate) fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let old = annotation(&claim.metadata, "volume.beta.kubernetes.io/storage-class");
    old.or_else(|| claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref())).unwrap_or_default()
}

fn class_of_volume(volume: &PersistentVolume) -> &str {
    let old = annotation(&volume.metadata, "volume.beta.kubernetes.io/storage-class");
    old.or_else(|| volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref())).unwrap_or_default()
}

pub(crate) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref())
}

/// Whether a volume's claim reference is this claim: by name, and by UID where it has one.
pub(crate) fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|r| {
        let unset = r.uid.as_deref().unwrap_or_default().is_empty();
        r.name == claim.metadata.name
            && r.namespace == claim.metadata.namespace
            && (unset || r.uid == claim.metadata.uid)
    })
}

pub(crate) fn capacity(volume: &PersistentVolume) -> i128 {
    let size = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"));
    size.map_or(0, |q| parse_quantity(&q.0).unwrap_or(0))
}

fn requested(claim: &PersistentVolumeClaim) -> i128 {
    let wanted = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    wanted.map_or(0, |q| parse_quantity(&q.0).unwrap_or(0))
}

fn mode(m: Option<&String>) -> &str {
    m.map_or("Filesystem", String::as_str)
}

/// Whether both are file systems or both block devices.
pub(crate) fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let v = volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    let c = claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    mode(v) == mode(c)
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|s| s.access_modes.clone()).unwrap_or_default();
    claim.spec.iter().flat_map(|s| s.access_modes.iter().flatten()).all(|m| offered.contains(m))
}

fn attributes_class(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let v = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default();
    let c = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or_default();
    v == c
}

/// Why a volume that a claim names cannot be bound to it; `None` when it can.
pub(crate) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small");
    }
    if class_of_volume(volume) != class_of_claim(claim) {
        return Some("storageClassName does not match");
    }
    if !attributes_class(volume, claim) {
        return Some("VolumeAttributesClassName does not match");
    }
    if !same_mode(volume, claim) {
        return Some("incompatible volumeMode");
    }
    (!has_modes(volume, claim)).then_some("incompatible accessMode")
}

/// Whether a free volume suits a claim that names none.
pub(crate) fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let selected = selector.is_none_or(|s| selects(s, &volume.metadata.labels.clone().unwrap_or_default()));
    let available = phase_of_volume(volume) == "Available";
    available
        && selected
        && claim_ref(volume).is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && mismatch(volume, claim).is_none()
}

/// The volume to bind a claim to: one that is reserved for it, else (unless binding waits for a Pod) the smallest that
/// suits; of equals the first by name.
pub(crate) fn best<'a>(
    volumes: &'a [PersistentVolume],
    claim: &PersistentVolumeClaim,
    delay: bool,
) -> Option<&'a PersistentVolume> {
    let usable = |v: &&PersistentVolume| {
        same_mode(v, claim) && v.metadata.deletion_timestamp.is_none() && capacity(v) >= requested(claim)
    };
    let reserved = volumes.iter().filter(|v| is_for(v, claim)).filter(usable).min_by_key(|v| capacity(v));
    if reserved.is_some() || delay {
        return reserved;
    }
    volumes.iter().filter(|v| suits(v, claim)).min_by_key(|v| (capacity(v), v.metadata.name.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(name: &str, size: &str, more: Value) -> PersistentVolume {
        let mut tree = json!({"metadata": {"name": name}, "status": {"phase": "Available"},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "s"}});
        for (k, v) in more.as_object().unwrap() {
            tree["spec"][k] = v.clone();
        }
        serde_json::from_value(tree).unwrap()
    }

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut tree = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "resources": {"requests": {"storage": "2Gi"}}}});
        for (k, v) in more.as_object().unwrap() {
            tree["spec"][k] = v.clone();
        }
        serde_json::from_value(tree).unwrap()
    }

    #[test]
    fn the_smallest_volume_that_suits_is_taken() {
        let all = [
            volume("big", "5Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("b", "2Gi", json!({})),
            volume("a", "2Gi", json!({})),
        ];
        let name = |c: &PersistentVolumeClaim, delay| best(&all, c, delay).and_then(|v| v.metadata.name.clone());
        assert_eq!(name(&claim(json!({})), false).as_deref(), Some("a"));
        assert_eq!(name(&claim(json!({})), true), None);
        assert_eq!(name(&claim(json!({"storageClassName": "other"})), false), None);
        assert_eq!(name(&claim(json!({"accessModes": ["ReadWriteMany"]})), false), None);
        assert_eq!(name(&claim(json!({"volumeMode": "Block"})), false), None);
        assert_eq!(name(&claim(json!({"selector": {"matchLabels": {"x": "y"}}})), false), None);
    }

    #[test]
    fn a_volume_reserved_for_a_claim_wins_even_while_binding_waits() {
        let reserved =
            |uid: Value| volume("r", "9Gi", json!({"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}));
        for (uid, found) in [(json!(null), true), (json!("u"), true), (json!("other"), false)] {
            let all = [reserved(uid), volume("a", "2Gi", json!({}))];
            let name = best(&all, &claim(json!({})), true).and_then(|v| v.metadata.name.clone());
            assert_eq!(name.as_deref(), found.then_some("r"));
        }
    }

    #[test]
    fn a_mismatch_is_named_in_upstreams_words() {
        for (v, c, expected) in [
            (volume("v", "1Gi", json!({})), claim(json!({})), Some("requested PV is too small")),
            (
                volume("v", "2Gi", json!({})),
                claim(json!({"storageClassName": ""})),
                Some("storageClassName does not match"),
            ),
            (
                volume("v", "2Gi", json!({})),
                claim(json!({"accessModes": ["ReadOnlyMany"]})),
                Some("incompatible accessMode"),
            ),
            (volume("v", "2Gi", json!({"volumeMode": "Block"})), claim(json!({})), Some("incompatible volumeMode")),
            (volume("v", "2Gi", json!({})), claim(json!({})), None),
        ] {
            assert_eq!(mismatch(&v, &c), expected);
        }
    }
}
