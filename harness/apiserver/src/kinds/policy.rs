//! Disruption budgets and priority classes.

use podlab_api::{policy, scheduling};
use serde_json::json;

use super::{BASE, Row, STATUS, Strategy};
use crate::{
    table,
    tree::{at, fill_text, has, int, put, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<policy::PodDisruptionBudget>("poddisruptionbudget", &["pdb"], BUDGET).subs(&[STATUS]),
        Row::of::<scheduling::PriorityClass>("priorityclass", &["pc"], PRIORITY),
    ]
}

const BUDGET: Strategy = Strategy {
    status: true,
    generation: true,
    prepare_create: |o| {
        let zero = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
        put(o, "status", zero);
    },
    validate: |o, errors| {
        if has(o, "spec.minAvailable") && has(o, "spec.maxUnavailable") {
            let why = "minAvailable and maxUnavailable cannot be both set";
            errors.invalid("spec", at(o, "spec").clone(), why);
        }
    },
    table: table::core::BUDGETS,
    ..BASE
};

/// User classes stay below this. Source: k/k pkg/apis/scheduling/types.go HighestUserDefinablePriority.
const HIGHEST_USER: i64 = 1_000_000_000;

const PRIORITY: Strategy = Strategy {
    generation: true,
    default: |o| fill_text(o, "preemptionPolicy", "PreemptLowerPriority"),
    validate: |o, errors| {
        let (name, value) = (text(o, "metadata.name"), int(o, "value").unwrap_or(0));
        let system = matches!(name, "system-cluster-critical" | "system-node-critical");
        if name.starts_with("system-") && !system {
            let why = "priority class names with 'system-' prefix are reserved for system use only";
            errors.forbidden("metadata.name", why);
        }
        if !system && value > HIGHEST_USER {
            let why = format!("maximum allowed value of a user defined priority is {HIGHEST_USER}");
            errors.forbidden("value", &why);
        }
        let policy = text(o, "preemptionPolicy");
        if !matches!(policy, "PreemptLowerPriority" | "Never") {
            errors.not_supported("preemptionPolicy", policy, &["Never", "PreemptLowerPriority"]);
        }
    },
    validate_update: |new, old, errors| {
        if int(new, "value") != int(old, "value") {
            errors.forbidden("value", "may not be changed in an update.");
        }
        if text(new, "preemptionPolicy") != text(old, "preemptionPolicy") {
            errors.invalid("preemptionPolicy", text(new, "preemptionPolicy"), "field is immutable");
        }
    },
    table: table::core::PRIORITY_CLASSES,
    ..BASE
};
