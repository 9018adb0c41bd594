//! Storage kinds. Source: k/k pkg/apis/{core,storage}/v1/defaults.go, pkg/registry/{core,storage}.

use podlab_api::{core, storage};
use serde_json::{Value, json};

use super::{BASE, Row, STATUS, Strategy};
use crate::{
    field::Errors,
    names, table,
    tree::{at, entries, fill, fill_text, get_mut, has, list, put, remove, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<core::PersistentVolume>("persistentvolume", &["pv"], VOLUME).subs(&[STATUS]),
        Row::of::<core::PersistentVolumeClaim>("persistentvolumeclaim", &["pvc"], CLAIM).subs(&[STATUS]),
        Row::of::<storage::StorageClass>("storageclass", &["sc"], CLASS),
        Row::of::<storage::CSIDriver>("csidriver", &[], DRIVER),
        Row::of::<storage::CSINode>("csinode", &[], CSI_NODE),
        Row::of::<storage::VolumeAttachment>("volumeattachment", &[], ATTACHMENT).subs(&[STATUS]),
        Row::of::<storage::CSIStorageCapacity>("csistoragecapacity", &[], BASE),
        Row::of::<storage::VolumeAttributesClass>("volumeattributesclass", &["vac"], BASE),
    ]
}

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Value, path: &str, errors: &mut Errors) {
    let modes = list(spec, "accessModes");
    if modes.is_empty() {
        errors.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    for mode in modes.iter().filter_map(Value::as_str).filter(|m| !MODES.contains(m)) {
        errors.not_supported(format!("{path}.accessModes"), mode, &MODES);
    }
    if modes.len() > 1 && modes.iter().any(|m| m == "ReadWriteOncePod") {
        errors.forbidden(format!("{path}.accessModes"), "may not use ReadWriteOncePod with other access modes");
    }
}

const VOLUME: Strategy = Strategy {
    status: true,
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill_text(spec, "persistentVolumeReclaimPolicy", "Retain");
            fill_text(spec, "volumeMode", "Filesystem");
            if let Some(host) = get_mut(spec, "hostPath") {
                fill(host, "type", "");
            }
        }
    },
    prepare_create: |o| put(o, "status", json!({"phase": "Pending"})),
    validate: |o, errors| {
        let spec = at(o, "spec");
        access_modes(spec, "spec", errors);
        if entries(spec, "capacity").next().is_none() {
            errors.required("spec.capacity", "");
        } else if !has(spec, "capacity.storage") {
            let found: Vec<&str> = entries(spec, "capacity").map(|(k, _)| k.as_str()).collect();
            errors.not_supported("spec.capacity", &found.join(","), &["storage"]);
        }
        let sources = [
            "hostPath",
            "csi",
            "local",
            "nfs",
            "iscsi",
            "rbd",
            "cephfs",
            "fc",
            "gcePersistentDisk",
            "awsElasticBlockStore",
            "azureDisk",
            "azureFile",
            "cinder",
            "flexVolume",
            "flocker",
            "glusterfs",
            "photonPersistentDisk",
            "portworxVolume",
            "quobyte",
            "scaleIO",
            "storageos",
            "vsphereVolume",
        ];
        match sources.iter().filter(|s| has(spec, s)).count() {
            0 => errors.required("spec", "must specify a volume type"),
            1 => {}
            _ => errors.forbidden("spec", "may not specify more than 1 volume type"),
        }
        let policy = text(spec, "persistentVolumeReclaimPolicy");
        if !matches!(policy, "Retain" | "Delete" | "Recycle") {
            errors.not_supported("spec.persistentVolumeReclaimPolicy", policy, &["Delete", "Recycle", "Retain"]);
        }
    },
    validate_update: |new, old, errors| {
        for source in ["hostPath", "csi", "local", "nfs"] {
            let (now, was) = (at(new, "spec").get(source), at(old, "spec").get(source));
            if now != was {
                errors.forbidden(
                    "spec.persistentvolumesource",
                    "spec.persistentvolumesource is immutable after creation",
                );
            }
        }
        if text(new, "spec.volumeMode") != text(old, "spec.volumeMode") {
            errors.invalid("spec.volumeMode", text(new, "spec.volumeMode"), "field is immutable");
        }
    },
    table: table::storage::VOLUMES,
    returns_deleted: true,
    ..BASE
};

const CLAIM: Strategy = Strategy {
    status: true,
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill_text(spec, "volumeMode", "Filesystem");
            // The two forms of a data source say the same. Source: k/k pkg/registry/core/persistentvolumeclaim.
            if has(spec, "dataSource") && !has(spec, "dataSourceRef") {
                let source = at(spec, "dataSource").clone();
                put(spec, "dataSourceRef", source);
            }
        }
    },
    prepare_create: |o| put(o, "status", json!({"phase": "Pending"})),
    validate: |o, errors| {
        let spec = at(o, "spec");
        access_modes(spec, "spec", errors);
        match at(spec, "resources.requests").get("storage").and_then(Value::as_str) {
            None => errors.required("spec.resources[storage]", ""),
            Some(size) if size.starts_with('-') || size == "0" => {
                errors.invalid("spec.resources[storage]", size, "must be greater than zero");
            }
            Some(_) => {}
        }
        let class = text(spec, "storageClassName");
        if !class.is_empty() {
            errors.names("spec.storageClassName", class, &names::dns_subdomain(class));
        }
    },
    validate_update: claim_update,
    table: table::storage::CLAIMS,
    returns_deleted: true,
    ..BASE
};

fn claim_update(new: &Value, old: &Value, errors: &mut Errors) {
    let mut munged = at(new, "spec").clone();
    let before = at(old, "spec");
    if text(before, "volumeName").is_empty() {
        crate::tree::copy(before, &mut munged, "volumeName");
    }
    if !has(before, "storageClassName") {
        remove(&mut munged, "storageClassName");
    }
    if text(old, "status.phase") == "Bound" {
        crate::tree::copy(before, &mut munged, "resources.requests");
    }
    crate::tree::copy(before, &mut munged, "volumeAttributesClassName");
    if munged != *before {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden("spec", why);
    }
    let size = |v: &Value| {
        at(v, "spec.resources.requests")
            .get("storage")
            .and_then(Value::as_str)
            .and_then(|s| podlab_api::parse_quantity(s).ok())
    };
    if size(new) < size(old) {
        errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
}

const CLASS: Strategy = Strategy {
    default: |o| {
        fill_text(o, "reclaimPolicy", "Delete");
        fill_text(o, "volumeBindingMode", "Immediate");
    },
    validate: |o, errors| {
        if text(o, "provisioner").is_empty() {
            errors.required("provisioner", "");
        }
        let policy = text(o, "reclaimPolicy");
        if !matches!(policy, "Delete" | "Retain") {
            errors.not_supported("reclaimPolicy", policy, &["Delete", "Retain"]);
        }
        let mode = text(o, "volumeBindingMode");
        if !matches!(mode, "Immediate" | "WaitForFirstConsumer") {
            errors.not_supported("volumeBindingMode", mode, &["Immediate", "WaitForFirstConsumer"]);
        }
    },
    validate_update: |new, old, errors| {
        if at(new, "parameters") != at(old, "parameters") {
            errors.forbidden("parameters", "updates to parameters are forbidden.");
        }
        for field in ["provisioner", "reclaimPolicy", "volumeBindingMode"] {
            if text(new, field) != text(old, field) {
                errors.forbidden(field, &format!("updates to {field} are forbidden."));
            }
        }
    },
    table: table::storage::CLASSES,
    returns_deleted: true,
    ..BASE
};

const DRIVER: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill(spec, "attachRequired", true);
            fill(spec, "podInfoOnMount", false);
            fill(spec, "storageCapacity", false);
            fill_text(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            fill(spec, "requiresRepublish", false);
            fill(spec, "seLinuxMount", false);
            if list(spec, "volumeLifecycleModes").is_empty() {
                put(spec, "volumeLifecycleModes", json!(["Persistent"]));
            }
        }
    },
    table: table::storage::DRIVERS,
    returns_deleted: true,
    ..BASE
};

const CSI_NODE: Strategy = Strategy {
    validate: |o, errors| {
        for (i, driver) in list(o, "spec.drivers").iter().enumerate() {
            for field in ["name", "nodeID"] {
                if text(driver, field).is_empty() {
                    errors.required(format!("spec.drivers[{i}].{field}"), "");
                }
            }
        }
    },
    table: table::storage::CSI_NODES,
    returns_deleted: true,
    ..BASE
};

const ATTACHMENT: Strategy = Strategy {
    status: true,
    prepare_create: |o| put(o, "status", json!({"attached": false})),
    validate: |o, errors| {
        for field in ["attacher", "nodeName"] {
            if text(o, &format!("spec.{field}")).is_empty() {
                errors.required(format!("spec.{field}"), "");
            }
        }
        if !has(o, "spec.source.persistentVolumeName") && !has(o, "spec.source.inlineVolumeSpec") {
            errors.required("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
    },
    validate_update: |new, old, errors| {
        if at(new, "spec") != at(old, "spec") {
            errors.invalid("spec", at(new, "spec").clone(), "field is immutable");
        }
    },
    table: table::storage::ATTACHMENTS,
    returns_deleted: true,
    ..BASE
};
