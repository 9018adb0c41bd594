//! The Pod subresources that write the spec: ephemeralcontainers and resize; and the rules of status.
//! Source: k/k pkg/registry/core/pod/strategy.go, pkg/apis/core/validation/validation.go.

use serde_json::Value;

use super::qos;
use crate::{
    field::Errors,
    kinds::SubKind,
    tree::{at, copy, each_mut, has, list, map, put, text},
};

/// Everything but the ephemeral containers stays as stored.
pub(crate) fn restore_ephemeral(old: &Value, new: &mut Value) {
    let containers = at(new, "spec.ephemeralContainers").clone();
    *new = old.clone();
    if !containers.is_null() {
        put(new, "spec.ephemeralContainers", containers);
    } else if has(old, "spec.ephemeralContainers") {
        put(new, "spec.ephemeralContainers", Value::Array(Vec::new()));
    }
}

/// Everything but container resources and resize policies stays as stored.
pub(crate) fn restore_resize(old: &Value, new: &mut Value) {
    let asked = at(new, "spec").clone();
    *new = old.clone();
    for field in ["containers", "initContainers"] {
        let path = format!("spec.{field}");
        for (kept, wanted) in each_mut(new, &path).zip(list(&asked, field)) {
            if text(kept, "name") == text(wanted, "name") {
                copy(wanted, kept, "resources");
                copy(wanted, kept, "resizePolicy");
            }
        }
    }
    // A changed list of containers must be seen by validation, not be mended silently.
    let names = |v: &Value| list(v, "containers").iter().map(|c| text(c, "name").to_owned()).collect::<Vec<_>>();
    if names(&asked) != names(at(old, "spec")) {
        put(new, "spec.containers", at(&asked, "containers").clone());
    }
    if has(&asked, "resources") {
        put(new, "spec.resources", at(&asked, "resources").clone());
    }
}

/// Checks a write to a subresource.
pub(crate) fn validate(sub: Option<SubKind>, new: &Value, old: &Value, errors: &mut Errors) {
    match sub {
        Some(SubKind::Ephemeral) => ephemeral(new, old, errors),
        Some(SubKind::Resize) => resize(new, old, errors),
        _ => {}
    }
}

fn ephemeral(new: &Value, old: &Value, errors: &mut Errors) {
    let now = list(new, "spec.ephemeralContainers");
    for was in list(old, "spec.ephemeralContainers") {
        let name = text(was, "name");
        match now.iter().find(|c| text(c, "name") == name) {
            None => {
                errors.forbidden(
                    "spec.ephemeralContainers",
                    &format!("existing ephemeral containers {name:?} may not be removed\n"),
                );
            }
            Some(found) if found != was => {
                errors.forbidden(
                    "spec.ephemeralContainers",
                    &format!("existing ephemeral containers {name:?} may not be changed\n"),
                );
            }
            Some(_) => {}
        }
    }
}

fn resize(new: &Value, old: &Value, errors: &mut Errors) {
    if has(old, "metadata.annotations") && at(old, "metadata.annotations").get("kubernetes.io/config.mirror").is_some()
    {
        errors.forbidden("", "static pods cannot be resized");
        return;
    }
    let (now, before) = (list(new, "spec.containers"), list(old, "spec.containers"));
    if now.len() != before.len() {
        errors.forbidden("spec.containers", "containers may not be added or removed on resize");
        return;
    }
    for (i, (a, b)) in now.iter().zip(before).enumerate() {
        if text(a, "name") != text(b, "name") {
            errors.forbidden(
                format!("spec.containers[{i}].name"),
                "containers may not be renamed or reordered on resize",
            );
            return;
        }
    }
    for field in ["containers", "initContainers"] {
        let pairs = list(new, &format!("spec.{field}")).iter().zip(list(old, &format!("spec.{field}")));
        for (i, (a, b)) in pairs.enumerate() {
            let here = format!("spec.{field}[{i}].resources");
            for which in ["requests", "limits"] {
                let other = |c: &Value| {
                    let mut q = at(c, "resources").get(which).cloned().unwrap_or(Value::Null);
                    if q.is_object() {
                        for standard in ["cpu", "memory"] {
                            map(&mut q).remove(standard);
                        }
                    }
                    if q.as_object().is_none_or(|m| m.is_empty()) { Value::Null } else { q }
                };
                if other(a) != other(b) {
                    errors.forbidden(format!("{here}.{which}"), "only cpu and memory resources are mutable");
                }
                for standard in ["cpu", "memory"] {
                    let get = |c: &Value| at(c, "resources").get(which).and_then(|q| q.get(standard)).is_some();
                    if get(b) && !get(a) {
                        errors.forbidden(format!("{here}.{which}"), &format!("resource {which} cannot be removed"));
                    }
                }
            }
            let sidecar = field == "containers" || text(b, "restartPolicy") == "Always";
            if !sidecar && at(a, "resources") != at(b, "resources") {
                errors.forbidden(here, "only sidecar init containers can be resized");
            }
        }
    }
    if qos::class(new) != text(old, "status.qosClass") && !text(old, "status.qosClass").is_empty() {
        errors.invalid("spec", qos::class(new), "Pod QOS Class may not change as a result of resizing");
    }
}

/// Checks a status write. Source: ValidatePodStatusUpdate.
pub(crate) fn validate_status(new: &Value, old: &Value, errors: &mut Errors) {
    let nominated = text(new, "status.nominatedNodeName");
    if !nominated.is_empty() {
        errors.names("status.nominatedNodeName", nominated, &crate::names::dns_subdomain(nominated));
    }
    let class = text(old, "status.qosClass");
    if !class.is_empty() && text(new, "status.qosClass") != class {
        errors.invalid("status.qosClass", text(new, "status.qosClass"), "field is immutable");
    }
    if text(new, "spec.restartPolicy") == "Always" {
        return;
    }
    for (i, was) in list(old, "status.containerStatuses").iter().enumerate() {
        let name = text(was, "name");
        let stays =
            text(new, "spec.restartPolicy") == "Never" || crate::tree::int(was, "state.terminated.exitCode") == Some(0);
        let own_policy =
            list(new, "spec.containers").iter().any(|c| text(c, "name") == name && has(c, "restartPolicy"));
        if !has(was, "state.terminated") || !stays || own_policy {
            continue;
        }
        let now = list(new, "status.containerStatuses").iter().find(|c| text(c, "name") == name);
        if now.is_some_and(|c| !has(c, "state.terminated")) {
            let why = "may not be transitioned to non-terminated state";
            errors.forbidden(format!("status.containerStatuses[{i}].state"), why);
        }
    }
}

/// The QoS class and the observed generation of conditions survive a client that does not send them.
pub(crate) fn prepare_update(old: &Value, new: &mut Value) {
    if text(new, "status.qosClass").is_empty() && has(old, "status.qosClass") {
        put(new, "status.qosClass", at(old, "status.qosClass").clone());
    }
}
