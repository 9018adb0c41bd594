//! Validation of the parts of a container: ports, environment, mounts, resources, probes, hooks, security.

use std::collections::BTreeSet;

use podlab_api::parse_milli;
use serde_json::Value;

use super::spec::NOT_NEGATIVE;
use crate::{
    field::Errors,
    names,
    tree::{at, entries, has, int, list, text, yes},
};

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// Ports.
pub(crate) mod ports {
    use super::{BTreeSet, Errors, PORT_RANGE, Value, int, list, names, text};

    /// Checks one container's ports.
    pub(crate) fn validate(container: &Value, path: &str, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for (i, port) in list(container, "ports").iter().enumerate() {
            let here = format!("{path}.ports[{i}]");
            let name = text(port, "name");
            if !name.is_empty() {
                let broken = names::port_name(name);
                errors.names(&format!("{here}.name"), name, &broken);
                if broken.is_empty() && !seen.insert(name) {
                    errors.duplicate(format!("{here}.name"), name);
                }
            }
            match int(port, "containerPort").unwrap_or(0) {
                0 => errors.required(format!("{here}.containerPort"), ""),
                n if !(1..=65535).contains(&n) => errors.invalid(format!("{here}.containerPort"), n, PORT_RANGE),
                _ => {}
            }
            if let Some(n) = int(port, "hostPort").filter(|n| *n != 0 && !(1..=65535).contains(n)) {
                errors.invalid(format!("{here}.hostPort"), n, PORT_RANGE);
            }
            super::super::spec::one_of(port, &here, "protocol", &["SCTP", "TCP", "UDP"], errors);
        }
    }

    /// On the host's network a port is the host's.
    pub(crate) fn host_network(containers: &[Value], path: &str, errors: &mut Errors) {
        for (i, container) in containers.iter().enumerate() {
            for (j, port) in list(container, "ports").iter().enumerate() {
                let (host, own) = (int(port, "hostPort").unwrap_or(0), int(port, "containerPort").unwrap_or(0));
                if host != own {
                    let why = "must match `hostPort` when `hostNetwork` is true";
                    errors.invalid(format!("{path}[{i}].ports[{j}].containerPort"), own, why);
                }
            }
        }
    }

    /// Two containers of a Pod cannot have one port of the host.
    pub(crate) fn host_conflicts(containers: &[Value], path: &str, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for (i, container) in containers.iter().enumerate() {
            for (j, port) in list(container, "ports").iter().enumerate() {
                let number = int(port, "hostPort").unwrap_or(0);
                if number == 0 {
                    continue;
                }
                let id = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
                if !seen.insert(id.clone()) {
                    errors.duplicate(format!("{path}[{i}].ports[{j}].hostPort"), id);
                }
            }
        }
    }
}

/// Checks `env` and `envFrom`.
pub(crate) fn env(container: &Value, path: &str, errors: &mut Errors) {
    for (i, var) in list(container, "env").iter().enumerate() {
        let here = format!("{path}.env[{i}]");
        let name = text(var, "name");
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        } else {
            errors.names(&format!("{here}.name"), name, &names::env_name(name));
        }
        let from = at(var, "valueFrom");
        if from.is_null() {
            continue;
        }
        let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
        let given = sources.iter().filter(|s| has(from, s)).count();
        if given == 0 {
            let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.invalid(format!("{here}.valueFrom"), "", why);
        } else if !text(var, "value").is_empty() {
            errors.invalid(format!("{here}.valueFrom"), "", "may not be specified when `value` is not empty");
        } else if given > 1 {
            errors.invalid(format!("{here}.valueFrom"), "", "may not have more than one field specified at a time");
        }
        for source in ["configMapKeyRef", "secretKeyRef"] {
            let reference = at(from, source);
            if reference.is_null() {
                continue;
            }
            if text(reference, "name").is_empty() {
                errors.required(format!("{here}.valueFrom.{source}.name"), "");
            }
            let key = text(reference, "key");
            if key.is_empty() {
                errors.required(format!("{here}.valueFrom.{source}.key"), "");
            } else {
                errors.names(&format!("{here}.valueFrom.{source}.key"), key, &names::config_key(key));
            }
        }
        let field = text(from, "fieldRef.fieldPath");
        if has(from, "fieldRef") && !field_path(field) {
            let known = [
                "metadata.name",
                "metadata.namespace",
                "metadata.uid",
                "spec.nodeName",
                "spec.serviceAccountName",
                "status.hostIP",
                "status.hostIPs",
                "status.podIP",
                "status.podIPs",
            ];
            // Paths that a list could be filtered by, though no variable can hold them.
            let convertible = [
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.hostNetwork",
                "status.phase",
                "status.nominatedNodeName",
            ];
            if field.is_empty() {
                errors.required(format!("{here}.valueFrom.fieldRef.fieldPath"), "");
            } else if !convertible.contains(&field) {
                let why = format!("error converting fieldPath: field label not supported: {field}");
                errors.invalid(format!("{here}.valueFrom.fieldRef.fieldPath"), field, &why);
            } else {
                errors.not_supported(format!("{here}.valueFrom.fieldRef.fieldPath"), field, &known);
            }
        }
    }
    for (i, source) in list(container, "envFrom").iter().enumerate() {
        let here = format!("{path}.envFrom[{i}]");
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errors.names(&format!("{here}.prefix"), prefix, &names::env_name(prefix));
        }
        let given: Vec<&str> = ["configMapRef", "secretRef"].into_iter().filter(|s| has(source, s)).collect();
        match given[..] {
            [] => errors.invalid(here, "", "must specify one of: `configMapRef` or `secretRef`"),
            [one] => {
                if text(at(source, one), "name").is_empty() {
                    errors.required(format!("{here}.{one}.name"), "");
                }
            }
            _ => errors.invalid(here, "", "may not have more than one field specified at a time"),
        }
    }
}

/// Fields the downward API can put into a variable.
fn field_path(path: &str) -> bool {
    const KNOWN: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let subscript = ["metadata.labels['", "metadata.annotations['"];
    KNOWN.contains(&path) || subscript.iter().any(|s| path.starts_with(s) && path.ends_with("']"))
}

/// Checks `volumeMounts` and `volumeDevices`.
pub(crate) fn mounts(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    let mut points = BTreeSet::new();
    for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
        let here = format!("{path}.volumeMounts[{i}]");
        let name = text(mount, "name");
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        }
        if !volumes.contains(name) {
            errors.not_found(format!("{here}.name"), name);
        }
        let point = text(mount, "mountPath");
        if point.is_empty() {
            errors.required(format!("{here}.mountPath"), "");
        } else if !points.insert(point) {
            errors.invalid(format!("{here}.mountPath"), point, "must be unique");
        }
        let (sub, expr) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        for (field, value) in [("subPath", sub), ("subPathExpr", expr)] {
            if value.starts_with('/') {
                // Upstream leaves the index out here.
                errors.invalid(format!("{path}.volumeMounts.{field}"), value, "must be a relative path");
            } else if value.split('/').any(|part| part == "..") {
                errors.invalid(format!("{path}.volumeMounts.{field}"), value, "must not contain '..'");
            }
        }
        if !sub.is_empty() && !expr.is_empty() {
            errors.invalid(format!("{here}.subPathExpr"), expr, "subPathExpr and subPath are mutually exclusive");
        }
        let propagation = text(mount, "mountPropagation");
        if !propagation.is_empty() && !matches!(propagation, "None" | "HostToContainer" | "Bidirectional") {
            let known = ["Bidirectional", "HostToContainer", "None"];
            errors.not_supported(format!("{here}.mountPropagation"), propagation, &known);
        }
        if propagation == "Bidirectional" && !yes(container, "securityContext.privileged") {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(format!("{here}.mountPropagation"), why);
        }
    }
    for (i, device) in list(container, "volumeDevices").iter().enumerate() {
        let here = format!("{path}.volumeDevices[{i}]");
        if !volumes.contains(text(device, "name")) {
            errors.not_found(format!("{here}.name"), text(device, "name"));
        }
        if text(device, "devicePath").is_empty() {
            errors.required(format!("{here}.devicePath"), "");
        }
    }
}

/// Checks requests and limits.
pub(crate) fn resources(resources: &Value, path: &str, errors: &mut Errors) {
    let amount = |v: &Value| v.as_str().and_then(|s| parse_milli(s).ok());
    let extended =
        |name: &str| name.contains('/') && !name.starts_with("kubernetes.io/") && !name.starts_with("requests.");
    for which in ["limits", "requests"] {
        for (name, quantity) in entries(resources, which) {
            let here = format!("{path}.{which}[{name}]");
            errors.names(&here, name, &names::qualified(name));
            let standard =
                matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
            if !standard && !name.contains('/') {
                errors.invalid(here.clone(), name.as_str(), "must be a standard resource type or fully qualified");
                errors.invalid(here.clone(), name.as_str(), "must be a standard resource for containers");
            }
            if amount(quantity).is_some_and(|m| m < 0) {
                errors.invalid(here.clone(), quantity.clone(), NOT_NEGATIVE);
            }
            if (extended(name) || name.starts_with("hugepages-")) && amount(quantity).is_some_and(|m| m % 1000 != 0) {
                errors.invalid(here, quantity.clone(), "must be an integer");
            }
        }
    }
    for (name, request) in entries(resources, "requests") {
        let limit = at(resources, "limits").get(name);
        let fixed = extended(name) || name.starts_with("hugepages-");
        match (limit, amount(request)) {
            (None, _) if fixed => {
                errors.required(format!("{path}.limits"), "Limit must be set for non overcommitable resources");
            }
            (Some(limit), Some(wanted)) => {
                let most = amount(limit).unwrap_or(0);
                let shown = limit.as_str().unwrap_or_default();
                if fixed && wanted != most {
                    let why = format!("must be equal to {name} limit of {shown}");
                    errors.invalid(format!("{path}.requests"), request.clone(), &why);
                } else if wanted > most {
                    let why = format!("must be less than or equal to {name} limit of {shown}");
                    errors.invalid(format!("{path}.requests"), request.clone(), &why);
                }
            }
            _ => {}
        }
    }
    for (i, claim) in list(resources, "claims").iter().enumerate() {
        if text(claim, "name").is_empty() {
            errors.required(format!("{path}.claims[{i}].name"), "");
        }
    }
}

/// Checks one probe.
pub(crate) fn probe(container: &Value, path: &str, field: &str, errors: &mut Errors) {
    let probe = at(container, field);
    if probe.is_null() {
        return;
    }
    let here = format!("{path}.{field}");
    handler(probe, &here, errors);
    for number in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        if let Some(n) = int(probe, number).filter(|n| *n < 0) {
            errors.invalid(format!("{here}.{number}"), n, NOT_NEGATIVE);
        }
    }
    if let Some(grace) = int(probe, "terminationGracePeriodSeconds") {
        if field == "readinessProbe" {
            let why = "must not be set for readinessProbes";
            errors.invalid(format!("{here}.terminationGracePeriodSeconds"), grace, why);
        } else if grace <= 0 {
            errors.invalid(format!("{here}.terminationGracePeriodSeconds"), grace, "must be greater than 0");
        }
    }
    let threshold = int(probe, "successThreshold").unwrap_or(1);
    if field != "readinessProbe" && threshold != 1 && threshold >= 0 {
        errors.invalid(format!("{here}.successThreshold"), threshold, "must be 1");
    }
}

fn handler(value: &Value, path: &str, errors: &mut Errors) {
    let given: Vec<&str> =
        ["exec", "httpGet", "tcpSocket", "grpc", "sleep"].into_iter().filter(|h| has(value, h)).collect();
    if given.is_empty() {
        errors.required(path.to_owned(), "must specify a handler type");
    }
    let Some(first) = given.first() else { return };
    one_handler(first, value, path, errors);
    for extra in given.iter().skip(1) {
        errors.forbidden(format!("{path}.{extra}"), "may not specify more than 1 handler type");
    }
}

fn one_handler(first: &str, value: &Value, path: &str, errors: &mut Errors) {
    let (here, body) = (format!("{path}.{first}"), at(value, first));
    match first {
        "exec" if list(body, "command").is_empty() => errors.required(format!("{here}.command"), ""),
        "httpGet" => {
            if text(body, "path").is_empty() {
                errors.required(format!("{here}.path"), "");
            }
            port(at(body, "port"), &format!("{here}.port"), errors);
            let scheme = text(body, "scheme");
            if !matches!(scheme, "HTTP" | "HTTPS") {
                errors.not_supported(format!("{here}.scheme"), scheme, &["HTTP", "HTTPS"]);
            }
            for (i, header) in list(body, "httpHeaders").iter().enumerate() {
                if text(header, "name").is_empty() {
                    errors.required(format!("{here}.httpHeaders[{i}].name"), "");
                }
            }
        }
        "tcpSocket" | "grpc" => port(at(body, "port"), &format!("{here}.port"), errors),
        _ => {}
    }
}

fn port(port: &Value, path: &str, errors: &mut Errors) {
    match port {
        Value::Number(n) => {
            if !n.as_i64().is_some_and(|n| (1..=65535).contains(&n)) {
                errors.invalid(path.to_owned(), port.clone(), PORT_RANGE);
            }
        }
        Value::String(name) => errors.names(path, name, &names::port_name(name)),
        _ => errors.required(path.to_owned(), ""),
    }
}

/// Checks the hooks.
pub(crate) fn lifecycle(container: &Value, path: &str, errors: &mut Errors) {
    for hook in ["postStart", "preStop"] {
        let found = at(container, "lifecycle").get(hook);
        if let Some(hook_body) = found.filter(|h| !h.is_null()) {
            handler(hook_body, &format!("{path}.lifecycle.{hook}"), errors);
        }
    }
}

/// Checks a container's securityContext.
pub(crate) fn security(container: &Value, path: &str, errors: &mut Errors) {
    let here = format!("{path}.securityContext");
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = int(container, &format!("securityContext.{field}"))
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            errors.invalid(format!("{here}.{field}"), id, "must be between 0 and 2147483647, inclusive");
        }
    }
    let context = at(container, "securityContext");
    if at(context, "allowPrivilegeEscalation").as_bool() == Some(false) {
        if yes(context, "privileged") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(here.clone(), context.clone(), why);
        }
        let adds_admin = list(context, "capabilities.add").iter().any(|c| c == "CAP_SYS_ADMIN");
        if adds_admin {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid(here, context.clone(), why);
        }
    }
}
