//! Workloads of the apps group. Source: k/k pkg/apis/apps/v1/defaults.go, pkg/apis/apps/validation.

use podlab_api::apps;
use serde_json::{Value, json};

use super::{BASE, Row, STATUS, Strategy, core::STATUS_AND_SCALE, workload};
use crate::{
    field::Errors,
    pod,
    selector::LabelSelector,
    table,
    tree::{at, each_mut, entries, fill, fill_text, get_mut, has, int, list, put, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<apps::Deployment>("deployment", &["deploy"], DEPLOYMENT).subs(STATUS_AND_SCALE).in_all(),
        Row::of::<apps::ReplicaSet>("replicaset", &["rs"], REPLICA_SET).subs(STATUS_AND_SCALE).in_all(),
        Row::of::<apps::DaemonSet>("daemonset", &["ds"], DAEMON_SET).subs(&[STATUS]).in_all(),
        Row::of::<apps::StatefulSet>("statefulset", &["sts"], STATEFUL_SET).subs(STATUS_AND_SCALE).in_all(),
        Row::of::<apps::ControllerRevision>("controllerrevision", &[], BASE),
    ]
}

const WORKLOAD: Strategy = Strategy {
    status: true,
    generation: true,
    validate: validate_workload,
    validate_update: |new, old, errors| {
        if at(new, "spec.selector") != at(old, "spec.selector") {
            errors.invalid("spec.selector", at(new, "spec.selector").clone(), "field is immutable");
        }
    },
    ..BASE
};

fn template(spec: &mut Value) {
    if let Some(pod_spec) = get_mut(spec, "template.spec") {
        pod::defaults::pod_spec(pod_spec);
    }
}

const DEPLOYMENT: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill(spec, "replicas", 1);
            if text(spec, "strategy.type").is_empty() {
                put(spec, "strategy.type", "RollingUpdate");
            }
            if text(spec, "strategy.type") == "RollingUpdate" {
                for field in ["maxUnavailable", "maxSurge"] {
                    let path = format!("strategy.rollingUpdate.{field}");
                    if !has(spec, &path) {
                        put(spec, &path, "25%");
                    }
                }
            }
            fill(spec, "revisionHistoryLimit", 10);
            fill(spec, "progressDeadlineSeconds", 600);
            template(spec);
        }
    },
    prepare_create: |o| put(o, "status", json!({})),
    table: table::apps::DEPLOYMENTS,
    ..WORKLOAD
};

const REPLICA_SET: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill(spec, "replicas", 1);
            template(spec);
        }
    },
    prepare_create: |o| put(o, "status", json!({"replicas": 0})),
    fields: &[("status.replicas", "status.replicas")],
    table: table::apps::REPLICA_SETS,
    ..WORKLOAD
};

const DAEMON_SET: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            if text(spec, "updateStrategy.type").is_empty() {
                put(spec, "updateStrategy.type", "RollingUpdate");
            }
            if text(spec, "updateStrategy.type") == "RollingUpdate" {
                for (field, value) in [("maxUnavailable", 1), ("maxSurge", 0)] {
                    let path = format!("updateStrategy.rollingUpdate.{field}");
                    if !has(spec, &path) {
                        put(spec, &path, value);
                    }
                }
            }
            fill(spec, "revisionHistoryLimit", 10);
            template(spec);
        }
    },
    prepare_create: |o| {
        let zero = ["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"];
        let status = zero.iter().map(|f| ((*f).to_owned(), Value::from(0))).collect();
        put(o, "status", Value::Object(status));
        workload::first_template(o);
    },
    prepare_update: workload::count_template,
    validate: |o, errors| {
        workload::daemon(o, errors);
        validate_workload(o, errors);
    },
    table: table::apps::DAEMON_SETS,
    ..WORKLOAD
};

const STATEFUL_SET: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill_text(spec, "podManagementPolicy", "OrderedReady");
            if text(spec, "updateStrategy.type").is_empty() {
                put(spec, "updateStrategy.type", "RollingUpdate");
            }
            if text(spec, "updateStrategy.type") == "RollingUpdate"
                && !has(spec, "updateStrategy.rollingUpdate.partition")
            {
                put(spec, "updateStrategy.rollingUpdate.partition", 0);
            }
            fill(spec, "replicas", 1);
            fill(spec, "revisionHistoryLimit", 10);
            let keep = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            fill(spec, "persistentVolumeClaimRetentionPolicy", keep);
            for claim in each_mut(spec, "volumeClaimTemplates") {
                fill_text(claim, "kind", "PersistentVolumeClaim");
                fill_text(claim, "apiVersion", "v1");
                put(claim, "status.phase", "Pending");
                if let Some(claim) = get_mut(claim, "spec") {
                    fill_text(claim, "volumeMode", "Filesystem");
                }
            }
            template(spec);
        }
    },
    prepare_create: |o| put(o, "status", json!({"replicas": 0, "availableReplicas": 0})),
    validate: |o, errors| {
        workload::stateful(o, errors);
        validate_workload(o, errors);
    },
    validate_update: workload::stateful_update,
    table: table::apps::STATEFUL_SETS,
    ..WORKLOAD
};

fn validate_workload(o: &Value, errors: &mut Errors) {
    if let Some(n) = int(o, "spec.replicas").filter(|n| *n < 0) {
        errors.invalid("spec.replicas", n, "must be greater than or equal to 0");
    }
    let selector = at(o, "spec.selector");
    if selector.is_null() {
        errors.required("spec.selector", "");
    } else if entries(selector, "matchLabels").next().is_none() && list(selector, "matchExpressions").is_empty() {
        let kind = match text(o, "kind") {
            "DaemonSet" => "daemonset",
            "StatefulSet" => "statefulset",
            _ => "deployment",
        };
        errors.invalid("spec.selector", selector.clone(), &format!("empty selector is invalid for {kind}"));
    }
    match LabelSelector::from_object(selector) {
        Some(parsed) if !parsed.matches(at(o, "spec.template")) => {
            let labels = at(o, "spec.template.metadata.labels");
            let labels = if labels.is_null() { json!({}) } else { labels.clone() };
            errors.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`");
        }
        None if !selector.is_null() => errors.invalid("spec.selector", selector.clone(), "invalid label selector"),
        _ => {}
    }
    crate::machine::validate_labels(o, "spec.template.metadata.labels", "spec.template.labels", errors);
    let spec = at(o, "spec.template.spec");
    pod::spec::spec(&workload::with_claims(o, spec), "spec.template.spec", errors);
    let policy = text(spec, "restartPolicy");
    if matches!(policy, "OnFailure" | "Never") {
        errors.not_supported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
    if has(spec, "activeDeadlineSeconds") {
        let kind = text(o, "kind");
        errors.forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            &format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}
