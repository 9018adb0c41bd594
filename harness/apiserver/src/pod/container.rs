//! Validation of containers. Source: k/k pkg/apis/core/validation/validation.go validateContainers.

use std::collections::BTreeSet;

use serde_json::Value;

use super::container_parts::{env, lifecycle, mounts, ports, probe, resources, security};
use crate::{
    field::Errors,
    names,
    tree::{at, has, list, text},
};

/// Checks the regular containers.
pub(crate) fn regular<'a>(
    spec: &'a Value,
    path: &str,
    volumes: &BTreeSet<&str>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    let containers = list(spec, "containers");
    if containers.is_empty() {
        errors.required(format!("{path}.containers"), "");
    }
    for (i, container) in containers.iter().enumerate() {
        let here = format!("{path}.containers[{i}]");
        common(container, &here, volumes, errors);
        unique(container, &here, seen, errors);
        lifecycle(container, &here, errors);
        probe(container, &here, "livenessProbe", errors);
        probe(container, &here, "readinessProbe", errors);
        probe(container, &here, "startupProbe", errors);
        restart_rules(container, &here, false, errors);
    }
    ports::host_conflicts(containers, &format!("{path}.containers"), errors);
}

/// Checks the init containers; a sidecar (`restartPolicy: Always`) may have probes and hooks.
pub(crate) fn init<'a>(
    spec: &'a Value,
    path: &str,
    volumes: &BTreeSet<&str>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    for (i, container) in list(spec, "initContainers").iter().enumerate() {
        let here = format!("{path}.initContainers[{i}]");
        common(container, &here, volumes, errors);
        unique(container, &here, seen, errors);
        let sidecar = text(container, "restartPolicy") == "Always";
        if sidecar {
            lifecycle(container, &here, errors);
        } else if has(container, "lifecycle") {
            errors.forbidden(
                format!("{here}.lifecycle"),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
        for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if sidecar {
                probe(container, &here, field, errors);
            } else if has(container, field) {
                let why = "may not be set for init containers without restartPolicy=Always";
                errors.forbidden(format!("{here}.{field}"), why);
            }
        }
        restart_rules(container, &here, true, errors);
    }
}

/// Checks the ephemeral containers.
pub(crate) fn ephemeral<'a>(
    spec: &'a Value,
    path: &str,
    volumes: &BTreeSet<&str>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    const FORBIDDEN: [&str; 6] =
        ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy"];
    for (i, container) in list(spec, "ephemeralContainers").iter().enumerate() {
        let here = format!("{path}.ephemeralContainers[{i}]");
        common(container, &here, volumes, errors);
        unique(container, &here, seen, errors);
        let target = text(container, "targetContainerName");
        let known =
            ["containers", "initContainers"].iter().any(|f| list(spec, f).iter().any(|c| text(c, "name") == target));
        if !target.is_empty() && !known {
            errors.not_found(format!("{here}.targetContainerName"), target);
        }
        for field in FORBIDDEN {
            if !list(container, field).is_empty() || at(container, field).is_object() {
                errors.forbidden(format!("{here}.{field}"), "cannot be set for an Ephemeral Container");
            }
        }
        if at(container, "resources").as_object().is_some_and(|r| !r.is_empty()) {
            errors.forbidden(format!("{here}.resources"), "cannot be set for an Ephemeral Container");
        }
        for (j, mount) in list(container, "volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount, field).is_empty() {
                    let why = "cannot be set for an Ephemeral Container";
                    errors.forbidden(format!("{here}.volumeMounts[{j}].{field}"), why);
                }
            }
        }
    }
}

fn unique<'a>(container: &'a Value, path: &str, seen: &mut BTreeSet<&'a str>, errors: &mut Errors) {
    let name = text(container, "name");
    if !name.is_empty() && !seen.insert(name) {
        errors.duplicate(format!("{path}.name"), name);
    }
}

fn common(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    let name = text(container, "name");
    if name.is_empty() {
        errors.required(format!("{path}.name"), "");
    } else {
        errors.names(&format!("{path}.name"), name, &names::dns_label(name));
    }
    let image = text(container, "image");
    if image.is_empty() {
        errors.required(format!("{path}.image"), "");
    } else if image.trim() != image {
        errors.invalid(format!("{path}.image"), image, "must not have leading or trailing whitespace");
    }
    one_of(container, path, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], errors);
    ports::validate(container, path, errors);
    env(container, path, errors);
    mounts(container, path, volumes, errors);
    one_of(container, path, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], errors);
    resources(at(container, "resources"), &format!("{path}.resources"), errors);
    security(container, path, errors);
}

fn one_of(value: &Value, path: &str, field: &str, allowed: &[&str], errors: &mut Errors) {
    super::spec::one_of(value, path, field, allowed, errors);
}

fn restart_rules(container: &Value, path: &str, init: bool, errors: &mut Errors) {
    let policy = text(container, "restartPolicy");
    let rules = list(container, "restartPolicyRules");
    if !policy.is_empty() && !matches!(policy, "Always" | "OnFailure" | "Never") {
        errors.not_supported(format!("{path}.restartPolicy"), policy, &["Always", "OnFailure", "Never"]);
    }
    if rules.is_empty() {
        return;
    }
    if policy.is_empty() {
        errors.required(format!("{path}.restartPolicy"), "must specify restartPolicy when restart rules are used");
    }
    if init && policy == "Always" {
        errors.forbidden(
            format!("{path}.restartPolicyRules"),
            "restartPolicyRules are not allowed for init containers with restart policy Always",
        );
    }
    if rules.len() > 20 {
        errors.too_many(format!("{path}.restartPolicyRules"), rules.len(), 20);
    }
    for (i, rule) in rules.iter().enumerate() {
        let here = format!("{path}.restartPolicyRules[{i}]");
        one_of(rule, &here, "action", &["Restart", "RestartAllContainers"], errors);
        let codes = at(rule, "exitCodes");
        if codes.is_null() {
            errors.required(format!("{here}.exitCodes"), "must be specified");
        } else {
            one_of(codes, &format!("{here}.exitCodes"), "operator", &["In", "NotIn"], errors);
            if list(codes, "values").len() > 255 {
                errors.too_many(format!("{here}.exitCodes.values"), list(codes, "values").len(), 255);
            }
        }
    }
}
