//! Nodes, their leases and runtime classes.

use podlab_api::{coordination, core, k8s_openapi::api::node::v1 as node};
use serde_json::Value;

use super::{BASE, Row, STATUS, Strategy, Sub, SubKind};
use crate::{
    field::Errors,
    names, table,
    tree::{at, get_mut, has, int, list, map, text},
};

const NODE_SUBS: &[Sub] = &[
    STATUS,
    Sub {
        name: "proxy",
        kind: SubKind::Proxy,
        body: Some(("", "v1", "NodeProxyOptions")),
        verbs: &["create", "delete", "get", "patch", "update"],
    },
];

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<core::Node>("node", &["no"], NODE).subs(NODE_SUBS),
        Row::of::<coordination::Lease>(
            "lease",
            &[],
            Strategy { table: table::core::LEASES, unconditional: false, validate: lease, ..BASE },
        ),
        Row::of::<node::RuntimeClass>("runtimeclass", &[], RUNTIME_CLASS),
    ]
}

const NODE: Strategy = Strategy {
    status: true,
    status_at_create: true,
    default: |o| {
        // A node that does not say what is left for Pods has everything left.
        if let Some(status) = get_mut(o, "status") {
            let capacity = at(status, "capacity").clone();
            if capacity.is_object() && !has(status, "allocatable") {
                map(status).insert("allocatable".into(), capacity);
            }
        }
    },
    validate: taints,
    validate_update: |new, old, errors| {
        let was = text(old, "spec.providerID");
        if !was.is_empty() && text(new, "spec.providerID") != was {
            errors.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
        }
        if has(old, "spec.podCIDR") && at(old, "spec.podCIDR") != at(new, "spec.podCIDR") {
            let why = "node updates may not change podCIDR except from \"\" to valid";
            errors.forbidden("spec.podCIDRs", why);
        }
    },
    fields: &[("spec.unschedulable", "spec.unschedulable")],
    table: table::core::NODES,
    ..BASE
};

fn taints(node: &Value, errors: &mut Errors) {
    for (i, taint) in list(node, "spec.taints").iter().enumerate() {
        let here = format!("metadata.taints[{i}]");
        errors.names(&format!("{here}.key"), text(taint, "key"), &names::qualified(text(taint, "key")));
        errors.names(&format!("{here}.value"), text(taint, "value"), &names::label_value(text(taint, "value")));
        let effect = text(taint, "effect");
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            if effect.is_empty() {
                errors.required(format!("{here}.effect"), "");
            } else {
                errors.not_supported(format!("{here}.effect"), effect, &known);
            }
        }
        let same = |t: &&Value| text(t, "key") == text(taint, "key") && text(t, "effect") == effect;
        if list(node, "spec.taints")[..i].iter().any(|t| same(&t)) {
            errors.duplicate(here, taint.clone());
        }
    }
}

fn lease(lease: &Value, errors: &mut Errors) {
    if let Some(seconds) = int(lease, "spec.leaseDurationSeconds").filter(|s| *s <= 0) {
        errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    if let Some(n) = int(lease, "spec.leaseTransitions").filter(|n| *n < 0) {
        errors.invalid("spec.leaseTransitions", n, "must be greater than or equal to 0");
    }
}

const RUNTIME_CLASS: Strategy = Strategy {
    validate: |o, errors| {
        let handler = text(o, "handler");
        errors.names("handler", handler, &names::dns_label(handler));
    },
    validate_update: |new, old, errors| {
        if text(new, "handler") != text(old, "handler") {
            errors.invalid("handler", text(new, "handler"), "field is immutable");
        }
    },
    table: table::core::RUNTIME_CLASSES,
    ..BASE
};
