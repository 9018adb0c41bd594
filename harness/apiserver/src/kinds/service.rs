//! Services and what they are made of: endpoints, slices, ingress, network policies.
//! Source: k/k pkg/apis/core/v1/defaults.go, pkg/apis/core/validation/validation.go ValidateService.

use std::collections::BTreeSet;

use podlab_api::{core, discovery, k8s_openapi::api::networking::v1 as networking};
use serde_json::{Value, json};

use super::{BASE, NameRule, Row, STATUS, Strategy, Sub, SubKind};
use crate::{
    field::Errors,
    names, table,
    tree::{at, each_mut, fill, fill_text, get_mut, has, int, list, map, put, text},
};

const SERVICE_SUBS: &[Sub] = &[
    STATUS,
    Sub {
        name: "proxy",
        kind: SubKind::Proxy,
        body: Some(("", "v1", "ServiceProxyOptions")),
        verbs: &["create", "delete", "get", "patch", "update"],
    },
];

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<core::Service>("service", &["svc"], SERVICE).subs(SERVICE_SUBS).in_all(),
        Row::of::<core::Endpoints>("endpoints", &["ep"], ENDPOINTS),
        Row::of::<discovery::EndpointSlice>("endpointslice", &[], SLICE),
        Row::of::<networking::NetworkPolicy>("networkpolicy", &["netpol"], NETWORK_POLICY),
        Row::of::<networking::Ingress>("ingress", &["ing"], INGRESS).subs(&[STATUS]),
        Row::of::<networking::IngressClass>(
            "ingressclass",
            &[],
            Strategy { table: table::core::INGRESS_CLASSES, ..BASE },
        ),
    ]
}

const SERVICE: Strategy = Strategy {
    status: true,
    names: NameRule::Label1035,
    default: default_service,
    prepare_create: |o| put(o, "status", json!({"loadBalancer": {}})),
    prepare_update: |old, new| {
        // Clients that send a manifest again leave out what was allocated for them.
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort"] {
            if !has(new, &format!("spec.{field}")) && text(new, "spec.type") == text(old, "spec.type") {
                crate::tree::copy(old, new, &format!("spec.{field}"));
            }
        }
        let ports = list(old, "spec.ports").to_vec();
        if matches!(text(new, "spec.type"), "NodePort" | "LoadBalancer") {
            for port in each_mut(new, "spec.ports") {
                let was = ports
                    .iter()
                    .find(|p| at(p, "port") == at(port, "port") && at(p, "protocol") == at(port, "protocol"));
                if let (Some(was), 0) = (was, int(port, "nodePort").unwrap_or(0)) {
                    crate::tree::copy(was, port, "nodePort");
                }
            }
        }
    },
    validate: validate_service,
    validate_update: |new, old, errors| {
        let (now, was) = (text(new, "spec.clusterIP"), text(old, "spec.clusterIP"));
        if !was.is_empty()
            && now != was
            && text(new, "spec.type") != "ExternalName"
            && text(old, "spec.type") != "ExternalName"
        {
            let list = json!([now]);
            errors.invalid("spec.clusterIPs[0]", list[0].clone(), "may not change once set");
        }
    },
    fields: &[("spec.clusterIP", "spec.clusterIP"), ("spec.type", "spec.type")],
    table: table::core::SERVICES,
    returns_deleted: true,
    ..BASE
};

fn default_service(service: &mut Value) {
    let Some(spec) = get_mut(service, "spec") else { return };
    fill_text(spec, "type", "ClusterIP");
    fill_text(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "ClientIP" && !has(spec, "sessionAffinityConfig.clientIP.timeoutSeconds") {
        put(spec, "sessionAffinityConfig.clientIP.timeoutSeconds", 10_800);
    }
    for port in each_mut(spec, "ports") {
        fill_text(port, "protocol", "TCP");
        let number = at(port, "port").clone();
        let unset = matches!(at(port, "targetPort"), Value::Null)
            || at(port, "targetPort") == 0
            || at(port, "targetPort") == "";
        if unset {
            map(port).insert("targetPort".into(), number);
        }
    }
    let kind = text(spec, "type").to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        fill_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        fill_text(spec, "internalTrafficPolicy", "Cluster");
    }
}

fn validate_service(service: &Value, errors: &mut Errors) {
    let kind = text(service, "spec.type");
    let headless = text(service, "spec.clusterIP") == "None";
    let ports = list(service, "spec.ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.required("spec.ports", "");
    }
    let (mut seen_names, mut seen_ports) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let here = format!("spec.ports[{i}]");
        let name = text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.required(format!("{here}.name"), "");
            }
        } else {
            errors.names(&format!("{here}.name"), name, &names::dns_label(name));
            if !seen_names.insert(name) {
                errors.duplicate(format!("{here}.name"), name);
            }
        }
        let number = int(port, "port").unwrap_or(0);
        let range = "must be between 1 and 65535, inclusive";
        if !(1..=65535).contains(&number) {
            errors.invalid(format!("{here}.port"), number, range);
        }
        let protocol = text(port, "protocol");
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            errors.not_supported(format!("{here}.protocol"), protocol, &["SCTP", "TCP", "UDP"]);
        }
        match at(port, "targetPort") {
            Value::Number(n) if !n.as_i64().is_some_and(|n| (1..=65535).contains(&n)) => {
                errors.invalid(format!("{here}.targetPort"), at(port, "targetPort").clone(), range);
            }
            Value::String(name) => errors.names(&format!("{here}.targetPort"), name, &names::port_name(name)),
            _ => {}
        }
        if kind == "ClusterIP" && int(port, "nodePort").unwrap_or(0) != 0 {
            errors.forbidden(format!("{here}.nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        if !seen_ports.insert((protocol, number)) {
            errors.duplicate(here, json!({"protocol": protocol, "port": number}));
        }
    }
    crate::machine::validate_labels(service, "spec.selector", "spec.selector", errors);
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName") {
        errors.not_supported("spec.type", kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    }
    if !matches!(text(service, "spec.sessionAffinity"), "None" | "ClientIP") {
        errors.not_supported("spec.sessionAffinity", text(service, "spec.sessionAffinity"), &["ClientIP", "None"]);
    }
    if kind == "ExternalName" {
        let target = text(service, "spec.externalName");
        if target.is_empty() {
            errors.required("spec.externalName", "");
        } else {
            errors.names("spec.externalName", target, &names::dns_subdomain(target));
        }
    }
    if matches!(kind, "NodePort" | "LoadBalancer") && headless {
        errors.invalid("spec.clusterIPs[0]", "None", &format!("may not be set to 'None' for {kind} services"));
    }
}

const ENDPOINTS: Strategy = Strategy {
    default: |o| {
        for subset in each_mut(o, "subsets") {
            for port in each_mut(subset, "ports") {
                fill_text(port, "protocol", "TCP");
            }
        }
    },
    table: table::core::ENDPOINTS,
    ..BASE
};

const SLICE: Strategy = Strategy {
    generation: true,
    default: |o| {
        for port in each_mut(o, "ports") {
            fill(port, "name", "");
            fill_text(port, "protocol", "TCP");
        }
    },
    validate: |o, errors| {
        let family = text(o, "addressType");
        if family.is_empty() {
            errors.required("addressType", "");
        } else if !matches!(family, "IPv4" | "IPv6" | "FQDN") {
            errors.not_supported("addressType", family, &["FQDN", "IPv4", "IPv6"]);
        }
    },
    validate_update: |new, old, errors| {
        if text(new, "addressType") != text(old, "addressType") {
            errors.invalid("addressType", text(new, "addressType"), "field is immutable");
        }
    },
    table: table::core::ENDPOINT_SLICES,
    ..BASE
};

const NETWORK_POLICY: Strategy = Strategy {
    generation: true,
    default: |o| {
        let egress = has(o, "spec.egress");
        if let Some(spec) = get_mut(o, "spec") {
            fill(spec, "podSelector", json!({}));
            if list(spec, "policyTypes").is_empty() {
                let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
                map(spec).insert("policyTypes".into(), types);
            }
            for rules in ["ingress", "egress"] {
                for rule in each_mut(spec, rules) {
                    for port in each_mut(rule, "ports") {
                        fill_text(port, "protocol", "TCP");
                    }
                }
            }
        }
    },
    table: table::core::NETWORK_POLICIES,
    ..BASE
};

const INGRESS: Strategy = Strategy {
    status: true,
    generation: true,
    prepare_create: |o| put(o, "status", json!({"loadBalancer": {}})),
    validate: |o, errors| {
        if !has(o, "spec.defaultBackend") && list(o, "spec.rules").is_empty() {
            errors.invalid("spec", json!([]), "either `defaultBackend` or `rules` must be specified");
        }
    },
    table: table::core::INGRESSES,
    ..BASE
};
