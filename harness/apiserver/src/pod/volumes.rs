//! Validation of a Pod's volumes. Source: k/k pkg/apis/core/validation/validation.go ValidateVolumes.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    field::Errors,
    names,
    tree::{at, has, int, list, text},
};

/// Sources a volume may have, in upstream's order of checking.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "azureFile",
    "configMap",
    "vsphereVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "portworxVolume",
    "cinder",
    "photonPersistentDisk",
    "csi",
    "ephemeral",
    "image",
    "flexVolume",
];

/// Checks the volumes and returns the names of the good ones.
pub(crate) fn validate<'a>(spec: &'a Value, path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let here = format!("{path}.volumes[{i}]");
        let before = errors.len();
        source(volume, &here, errors);
        let name = text(volume, "name");
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        } else {
            errors.names(&format!("{here}.name"), name, &names::dns_label(name));
        }
        if known.contains(name) {
            errors.duplicate(format!("{here}.name"), name);
        }
        if errors.len() == before {
            known.insert(name);
        }
    }
    known
}

fn source(volume: &Value, path: &str, errors: &mut Errors) {
    let mut found = 0;
    for source in SOURCES {
        if !has(volume, source) {
            continue;
        }
        found += 1;
        if found > 1 {
            errors.forbidden(format!("{path}.{source}"), "may not specify more than 1 volume type");
            continue;
        }
        let here = format!("{path}.{source}");
        let body = at(volume, source);
        match source {
            "emptyDir" => {
                let limit = text(body, "sizeLimit");
                if limit.starts_with('-') {
                    errors.forbidden(format!("{here}.sizeLimit"), "SizeLimit field must be a valid resource quantity");
                }
            }
            "hostPath" => host_path(body, &here, errors),
            "secret" => {
                if text(body, "secretName").is_empty() {
                    errors.required(format!("{here}.secretName"), "");
                }
                mode_and_items(body, &here, errors);
            }
            "configMap" => {
                if text(body, "name").is_empty() {
                    errors.required(format!("{here}.name"), "");
                }
                mode_and_items(body, &here, errors);
            }
            "downwardAPI" => downward(body, &here, errors),
            "projected" => projected(body, &here, errors),
            "persistentVolumeClaim" if text(body, "claimName").is_empty() => {
                errors.required(format!("{here}.claimName"), "");
            }
            "csi" if text(body, "driver").is_empty() => {
                errors.required(format!("{here}.driver"), "");
            }
            "ephemeral" if !has(body, "volumeClaimTemplate") => {
                errors.required(format!("{here}.volumeClaimTemplate"), "");
            }
            "nfs" => {
                for field in ["server", "path"] {
                    if text(body, field).is_empty() {
                        errors.required(format!("{here}.{field}"), "");
                    }
                }
            }
            _ => {}
        }
    }
    if found == 0 {
        errors.required(path.to_owned(), "must specify a volume type");
    }
}

fn host_path(body: &Value, path: &str, errors: &mut Errors) {
    let host = text(body, "path");
    if host.is_empty() {
        errors.required(format!("{path}.path"), "");
    } else if host.split('/').any(|part| part == "..") {
        errors.invalid(format!("{path}.path"), host, "must not contain '..'");
    }
    let kinds = ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
    let kind = text(body, "type");
    if !kinds.contains(&kind) {
        errors.not_supported(format!("{path}.type"), kind, &kinds[1..]);
    }
}

fn mode(value: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = int(value, field).filter(|m| !(0..=0o777).contains(m)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(format!("{path}.{field}"), mode, why);
    }
}

fn mode_and_items(body: &Value, path: &str, errors: &mut Errors) {
    mode(body, "defaultMode", path, errors);
    for (i, item) in list(body, "items").iter().enumerate() {
        let here = format!("{path}.items[{i}]");
        if text(item, "key").is_empty() {
            errors.required(format!("{here}.key"), "");
        }
        local_path(item, &here, errors);
        mode(item, "mode", &here, errors);
    }
}

fn local_path(item: &Value, path: &str, errors: &mut Errors) {
    let target = text(item, "path");
    if target.is_empty() {
        errors.required(format!("{path}.path"), "");
    } else if target.starts_with('/') {
        errors.invalid(format!("{path}.path"), target, "must be a relative path");
    } else if target.split('/').any(|part| part == "..") {
        errors.invalid(format!("{path}.path"), target, "must not contain '..'");
    } else if target.starts_with("..") {
        errors.invalid(format!("{path}.path"), target, "must not start with '..'");
    }
}

fn downward(body: &Value, path: &str, errors: &mut Errors) {
    mode(body, "defaultMode", path, errors);
    for (i, item) in list(body, "items").iter().enumerate() {
        let here = format!("{path}.items[{i}]");
        local_path(item, &here, errors);
        match (has(item, "fieldRef"), has(item, "resourceFieldRef")) {
            (true, true) => {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(here.clone(), "resource", why);
            }
            (false, false) => errors.required(here.clone(), "one of fieldRef and resourceFieldRef is required"),
            _ => {}
        }
        mode(item, "mode", &here, errors);
    }
}

fn projected(body: &Value, path: &str, errors: &mut Errors) {
    mode(body, "defaultMode", path, errors);
    let kinds = ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
    for (i, source) in list(body, "sources").iter().enumerate() {
        let here = format!("{path}.sources[{i}]");
        let given: Vec<&str> = kinds.iter().copied().filter(|k| has(source, k)).collect();
        for extra in given.iter().skip(1) {
            errors.forbidden(format!("{here}.{extra}"), "may not specify more than 1 volume type");
        }
        match given.first() {
            // Upstream lets a source of nothing be.
            None => {}
            Some(kind @ (&"secret" | &"configMap")) => {
                if text(at(source, kind), "name").is_empty() {
                    errors.required(format!("{here}.{kind}.name"), "");
                }
                mode_and_items(at(source, kind), &format!("{here}.{kind}"), errors);
            }
            Some(&"downwardAPI") => downward(at(source, "downwardAPI"), &format!("{here}.downwardAPI"), errors),
            Some(&"serviceAccountToken") => {
                let token = at(source, "serviceAccountToken");
                let here = format!("{here}.serviceAccountToken");
                let seconds = int(token, "expirationSeconds").unwrap_or(0);
                if seconds < 600 {
                    let why = "may not specify a duration less than 10 minutes";
                    errors.invalid(format!("{here}.expirationSeconds"), seconds, why);
                }
                if text(token, "path").is_empty() {
                    errors.required(format!("{here}.path"), "");
                }
            }
            Some(_) => {}
        }
    }
}
