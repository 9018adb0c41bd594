//! Validation of a PodSpec as a whole, in upstream's order.
//! Source: k/k pkg/apis/core/validation/validation.go ValidatePodSpec.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{container, volumes};
use crate::{
    field::Errors,
    names,
    tree::{at, entries, has, int, list, text, yes},
};

/// Checks a Pod.
pub(crate) fn pod(pod: &Value, errors: &mut Errors) {
    spec(at(pod, "spec"), "spec", errors);
}

/// Checks the spec of a Pod or a template; `path` is where it is.
pub(crate) fn spec(spec: &Value, path: &str, errors: &mut Errors) {
    let known = volumes::validate(spec, path, errors);
    let mut names_seen = BTreeSet::new();
    container::regular(spec, path, &known, &mut names_seen, errors);
    container::init(spec, path, &known, &mut names_seen, errors);
    container::ephemeral(spec, path, &known, &mut names_seen, errors);
    one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"], errors);
    one_of(spec, path, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    crate::machine::validate_labels(spec, "nodeSelector", &format!("{path}.nodeSelector"), errors);
    security(spec, path, errors);
    for (i, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            errors.required(format!("{path}.imagePullSecrets[{i}].name"), "");
        }
    }
    affinity(spec, path, errors);
    dns(spec, path, errors);
    for (i, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        errors.names(&format!("{path}.readinessGates[{i}].conditionType"), kind, &names::qualified(kind));
    }
    let mut gates = BTreeSet::new();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        errors.names(&format!("{path}.schedulingGates[{i}]"), name, &names::qualified(name));
        if !gates.insert(name) {
            errors.duplicate(format!("{path}.schedulingGates[{i}]"), name);
        }
    }
    spread(spec, path, errors);
    for field in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        let name = text(spec, field);
        if !name.is_empty() {
            errors.names(&format!("{path}.{field}"), name, &names::dns_subdomain(name));
        }
    }
    if let Some(deadline) = int(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&deadline)
    {
        let why = "must be between 1 and 2147483647, inclusive";
        errors.invalid(format!("{path}.activeDeadlineSeconds"), deadline, why);
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, field);
        if !name.is_empty() {
            errors.names(&format!("{path}.{field}"), name, &names::dns_label(name));
        }
    }
    tolerations(spec, path, errors);
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        let ip = text(alias, "ip");
        if ip.parse::<std::net::IpAddr>().is_err() {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(format!("{path}.hostAliases[{i}].ip"), ip, why);
        }
        for (j, host) in list(alias, "hostnames").iter().enumerate() {
            let host = host.as_str().unwrap_or_default();
            errors.names(&format!("{path}.hostAliases[{i}].hostnames[{j}]"), host, &names::dns_subdomain(host));
        }
    }
    if !text(spec, "preemptionPolicy").is_empty() {
        one_of(spec, path, "preemptionPolicy", &["Never", "PreemptLowerPriority"], errors);
    }
}

/// What is said of a negative number.
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Checks a field that must have one of a few values.
pub(crate) fn one_of(value: &Value, path: &str, field: &str, allowed: &[&str], errors: &mut Errors) {
    let found = text(value, field);
    if found.is_empty() {
        errors.required(format!("{path}.{field}"), "");
    } else if !allowed.contains(&found) {
        errors.not_supported(format!("{path}.{field}"), found, allowed);
    }
}

fn security(spec: &Value, path: &str, errors: &mut Errors) {
    let at_path = format!("{path}.securityContext");
    if yes(spec, "hostNetwork") {
        let containers = list(spec, "containers");
        super::container_parts::ports::host_network(containers, &format!("{path}.containers"), errors);
    }
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = int(spec, &format!("securityContext.{field}"))
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            errors.invalid(format!("{at_path}.{field}"), id, "must be between 0 and 2147483647, inclusive");
        }
    }
    let mut sysctls = BTreeSet::new();
    for (i, sysctl) in list(spec, "securityContext.sysctls").iter().enumerate() {
        let name = text(sysctl, "name");
        if name.is_empty() {
            errors.required(format!("{at_path}.sysctls[{i}].name"), "");
        } else if !names::sysctl(name).is_empty() {
            errors.names(&format!("{at_path}.sysctls[{i}].name"), name, &names::sysctl(name));
        } else if !sysctls.insert(name) {
            errors.duplicate(format!("{at_path}.sysctls[{i}].name"), name);
        }
    }
    let policy = text(spec, "securityContext.fsGroupChangePolicy");
    if !policy.is_empty() && !matches!(policy, "OnRootMismatch" | "Always") {
        errors.not_supported(format!("{at_path}.fsGroupChangePolicy"), policy, &["OnRootMismatch", "Always"]);
    }
    if at(spec, "hostUsers").as_bool() == Some(false) {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            if yes(spec, field) {
                errors
                    .forbidden(format!("{path}.{field}"), &format!("when `hostUsers` is false {field} must be false"));
            }
        }
    }
    if yes(spec, "shareProcessNamespace") && yes(spec, "hostPID") {
        errors.invalid(
            format!("{path}.shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
}

fn dns(spec: &Value, path: &str, errors: &mut Errors) {
    let servers = list(spec, "dnsConfig.nameservers");
    if text(spec, "dnsPolicy") == "None" {
        if !has(spec, "dnsConfig") {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.required(format!("{path}.dnsConfig"), why);
        } else if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(format!("{path}.dnsConfig.nameservers"), why);
        }
    }
    if servers.len() > 3 {
        let value = at(spec, "dnsConfig.nameservers").clone();
        errors.invalid(format!("{path}.dnsConfig.nameservers"), value, "must not have more than 3 nameservers");
    }
    for (i, server) in servers.iter().enumerate() {
        let server = server.as_str().unwrap_or_default();
        if server.parse::<std::net::IpAddr>().is_err() {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(format!("{path}.dnsConfig.nameservers[{i}]"), server, why);
        }
    }
    let searches = list(spec, "dnsConfig.searches");
    if searches.len() > 32 {
        let value = at(spec, "dnsConfig.searches").clone();
        errors.invalid(format!("{path}.dnsConfig.searches"), value, "must not have more than 32 search paths");
    }
    let total: usize = searches.iter().filter_map(Value::as_str).map(|s| s.len() + 1).sum();
    if total > 2049 {
        let value = at(spec, "dnsConfig.searches").clone();
        let why = "must not have more than 2048 characters (including spaces) in the search list";
        errors.invalid(format!("{path}.dnsConfig.searches"), value, why);
    }
    for (i, option) in list(spec, "dnsConfig.options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.required(format!("{path}.dnsConfig.options[{i}]"), "must not be empty");
        }
    }
}

fn tolerations(spec: &Value, path: &str, errors: &mut Errors) {
    for (i, toleration) in list(spec, "tolerations").iter().enumerate() {
        let here = format!("{path}.tolerations[{i}]");
        let (key, operator, effect) =
            (text(toleration, "key"), text(toleration, "operator"), text(toleration, "effect"));
        if !key.is_empty() {
            errors.names(&format!("{here}.key"), key, &names::qualified(key));
        }
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(format!("{here}.operator"), operator, why);
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(format!("{here}.effect"), effect, why);
        }
        match operator {
            "" | "Equal" => {
                let value = text(toleration, "value");
                errors.names(&format!("{here}.operator"), value, &names::label_value(value));
            }
            "Exists" if !text(toleration, "value").is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.invalid(format!("{here}.operator"), text(toleration, "value"), why);
            }
            "Exists" => {}
            other => errors.not_supported(format!("{here}.operator"), other, &["Equal", "Exists"]),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            errors.not_supported(format!("{here}.effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

fn spread(spec: &Value, path: &str, errors: &mut Errors) {
    for (i, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let here = format!("{path}.topologySpreadConstraints[{i}]");
        let skew = int(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            errors.invalid(format!("{here}.maxSkew"), skew, "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            errors.required(format!("{here}.topologyKey"), "can not be empty");
        } else {
            errors.names(&format!("{here}.topologyKey"), key, &names::qualified(key));
        }
        one_of(constraint, &here, "whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"], errors);
        if let Some(domains) = int(constraint, "minDomains") {
            if domains <= 0 {
                errors.invalid(format!("{here}.minDomains"), domains, "must be greater than zero");
            }
            if text(constraint, "whenUnsatisfiable") != "DoNotSchedule" {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    text(constraint, "whenUnsatisfiable")
                );
                errors.invalid(format!("{here}.minDomains"), domains, &why);
            }
        }
    }
}

fn affinity(spec: &Value, path: &str, errors: &mut Errors) {
    let node = at(spec, "affinity.nodeAffinity");
    let here = format!("{path}.affinity.nodeAffinity");
    let required = at(node, "requiredDuringSchedulingIgnoredDuringExecution");
    if !required.is_null() {
        let field = format!("{here}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        let terms = list(required, "nodeSelectorTerms");
        if terms.is_empty() {
            errors.required(field.clone(), "must have at least one node selector term");
        }
        for (i, term) in terms.iter().enumerate() {
            node_term(term, &format!("{field}[{i}]"), errors);
        }
    }
    for (i, preferred) in list(node, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
        let field = format!("{here}.preferredDuringSchedulingIgnoredDuringExecution[{i}]");
        weight(preferred, &field, errors);
        node_term(at(preferred, "preference"), &format!("{field}.preference"), errors);
    }
    for side in ["podAffinity", "podAntiAffinity"] {
        let here = format!("{path}.affinity.{side}");
        let terms = at(spec, &format!("affinity.{side}"));
        for (i, term) in list(terms, "requiredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            pod_term(term, &format!("{here}.requiredDuringSchedulingIgnoredDuringExecution[{i}]"), errors);
        }
        for (i, term) in list(terms, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate() {
            let field = format!("{here}.preferredDuringSchedulingIgnoredDuringExecution[{i}]");
            weight(term, &field, errors);
            pod_term(at(term, "podAffinityTerm"), &format!("{field}.podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &Value, path: &str, errors: &mut Errors) {
    let weight = int(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(format!("{path}.weight"), weight, "must be in the range 1-100");
    }
}

fn pod_term(term: &Value, path: &str, errors: &mut Errors) {
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(format!("{path}.topologyKey"), "can not be empty");
    }
    errors.names(&format!("{path}.topologyKey"), key, &names::qualified(key));
    for (label, value) in entries(term, "labelSelector.matchLabels") {
        errors.names(&format!("{path}.labelSelector.matchLabels"), label, &names::qualified(label));
        let value = value.as_str().unwrap_or_default();
        errors.names(&format!("{path}.labelSelector.matchLabels"), value, &names::label_value(value));
    }
}

fn node_term(term: &Value, path: &str, errors: &mut Errors) {
    for group in ["matchExpressions", "matchFields"] {
        for (i, requirement) in list(term, group).iter().enumerate() {
            let here = format!("{path}.{group}[{i}]");
            let values = list(requirement, "values");
            match text(requirement, "operator") {
                "In" | "NotIn" => {
                    if values.is_empty() {
                        let why = "must be specified when `operator` is 'In' or 'NotIn'";
                        errors.required(format!("{here}.values"), why);
                    }
                }
                "Exists" | "DoesNotExist" => {
                    if !values.is_empty() {
                        let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                        errors.forbidden(format!("{here}.values"), why);
                    }
                }
                "Gt" | "Lt" => {
                    if values.len() != 1 {
                        let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                        errors.required(format!("{here}.values"), why);
                    }
                }
                other => errors.invalid(format!("{here}.operator"), other, "not a valid selector operator"),
            }
            let key = text(requirement, "key");
            if group == "matchExpressions" {
                errors.names(&format!("{here}.key"), key, &names::qualified(key));
            } else if key != "metadata.name" {
                errors.not_supported(format!("{here}.key"), key, &["metadata.name"]);
            }
        }
    }
}
