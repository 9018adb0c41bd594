//! Rows of storage kinds. Source: k/k pkg/printers/internalversion/printers.go.

use serde_json::Value;

use super::{Table, age::age};
use crate::tree::{at, entries, has, list, text, yes};

pub(crate) const VOLUMES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("Reclaim Policy", "string", 0),
        ("Status", "string", 0),
        ("Claim", "string", 0),
        ("StorageClass", "string", 0),
        ("VolumeAttributesClass", "string", 0),
        ("Reason", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |o, now| {
        let claim = at(o, "spec.claimRef");
        let claim = if claim.is_null() {
            String::new()
        } else {
            format!("{}/{}", text(claim, "namespace"), text(claim, "name"))
        };
        vec![
            at(o, "metadata.name").clone(),
            text(o, "spec.capacity.storage").into(),
            modes(o, "spec.accessModes").into(),
            text(o, "spec.persistentVolumeReclaimPolicy").into(),
            phase(o).into(),
            claim.into(),
            text(o, "spec.storageClassName").into(),
            unset(text(o, "spec.volumeAttributesClassName")),
            text(o, "status.reason").into(),
            age(o, now),
            unset(text(o, "spec.volumeMode")),
        ]
    },
};

pub(crate) const CLAIMS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Volume", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("StorageClass", "string", 0),
        ("VolumeAttributesClass", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |o, now| {
        let bound = !text(o, "spec.volumeName").is_empty();
        let (capacity, access) = if bound {
            (text(o, "status.capacity.storage").to_owned(), modes(o, "status.accessModes"))
        } else {
            Default::default()
        };
        vec![
            at(o, "metadata.name").clone(),
            phase(o).into(),
            text(o, "spec.volumeName").into(),
            capacity.into(),
            access.into(),
            text(o, "spec.storageClassName").into(),
            unset(text(o, "spec.volumeAttributesClassName")),
            age(o, now),
            unset(text(o, "spec.volumeMode")),
        ]
    },
};

pub(crate) const CLASSES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Provisioner", "string", 0),
        ("ReclaimPolicy", "string", 0),
        ("VolumeBindingMode", "string", 0),
        ("AllowVolumeExpansion", "boolean", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let default = at(o, "metadata.annotations").get("storageclass.kubernetes.io/is-default-class");
        let mark = if default.and_then(Value::as_str) == Some("true") { " (default)" } else { "" };
        vec![
            format!("{}{mark}", text(o, "metadata.name")).into(),
            text(o, "provisioner").into(),
            text(o, "reclaimPolicy").into(),
            text(o, "volumeBindingMode").into(),
            yes(o, "allowVolumeExpansion").into(),
            age(o, now),
        ]
    },
};

pub(crate) const ATTACHMENTS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Attacher", "string", 0),
        ("PV", "string", 0),
        ("Node", "string", 0),
        ("Attached", "boolean", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            at(o, "metadata.name").clone(),
            text(o, "spec.attacher").into(),
            text(o, "spec.source.persistentVolumeName").into(),
            text(o, "spec.nodeName").into(),
            yes(o, "status.attached").into(),
            age(o, now),
        ]
    },
};

pub(crate) const DRIVERS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("AttachRequired", "boolean", 0),
        ("PodInfoOnMount", "boolean", 0),
        ("StorageCapacity", "boolean", 0),
        ("TokenRequests", "string", 0),
        ("RequiresRepublish", "boolean", 0),
        ("Modes", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let tokens: Vec<&str> = list(o, "spec.tokenRequests").iter().map(|t| text(t, "audience")).collect();
        let modes: Vec<&str> = list(o, "spec.volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
        vec![
            at(o, "metadata.name").clone(),
            yes(o, "spec.attachRequired").into(),
            yes(o, "spec.podInfoOnMount").into(),
            yes(o, "spec.storageCapacity").into(),
            unset(&tokens.join(",")),
            yes(o, "spec.requiresRepublish").into(),
            if modes.is_empty() { "<none>".into() } else { modes.join(",").into() },
            age(o, now),
        ]
    },
};

pub(crate) const CSI_NODES: Table = Table {
    columns: &[("Name", "string", 0), ("Drivers", "integer", 0), ("Age", "string", 0)],
    cells: |o, now| vec![at(o, "metadata.name").clone(), list(o, "spec.drivers").len().into(), age(o, now)],
};

fn phase(o: &Value) -> &str {
    if has(o, "metadata.deletionTimestamp") { "Terminating" } else { text(o, "status.phase") }
}

fn unset(value: &str) -> Value {
    if value.is_empty() { "<unset>".into() } else { value.into() }
}

/// `RWO,ROX,…` in upstream's order.
fn modes(o: &Value, path: &str) -> String {
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let given = list(o, path);
    let found = short.iter().filter(|(long, _)| given.iter().any(|m| m == long)).map(|(_, s)| *s);
    found.collect::<Vec<_>>().join(",")
}

/// The size of a map, for kinds that show how much they hold.
pub(crate) fn count(o: &Value, path: &str) -> usize {
    entries(o, path).count()
}
