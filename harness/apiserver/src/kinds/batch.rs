//! Jobs and CronJobs, as stored objects. Source: k/k pkg/apis/batch/v1/defaults.go, pkg/registry/batch/job/strategy.go.

use podlab_api::k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};

use super::{BASE, Row, STATUS, Strategy, job};
use crate::{
    names, pod, table,
    tree::{at, each_mut, fill, fill_text, get_mut, int, map_at, put, text, yes},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<batch::Job>("job", &[], JOB).subs(&[STATUS]).in_all(),
        Row::of::<batch::CronJob>("cronjob", &["cj"], CRON_JOB).subs(&[STATUS]).in_all(),
    ]
}

fn default_job_spec(spec: &mut Value) {
    if at(spec, "completions").is_null() && at(spec, "parallelism").is_null() {
        fill(spec, "completions", 1);
    }
    fill(spec, "parallelism", 1);
    let per_index = !at(spec, "backoffLimitPerIndex").is_null();
    fill(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    fill_text(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    if text(spec, "podReplacementPolicy").is_empty() {
        let policy = if at(spec, "podFailurePolicy").is_null() { "TerminatingOrFailed" } else { "Failed" };
        put(spec, "podReplacementPolicy", policy);
    }
    for rule in each_mut(spec, "podFailurePolicy.rules") {
        for pattern in each_mut(rule, "onPodConditions") {
            fill_text(pattern, "status", "True");
        }
    }
    if let Some(template) = get_mut(spec, "template.spec") {
        pod::defaults::pod_spec(template);
    }
}

const JOB: Strategy = Strategy {
    status: true,
    generation: true,
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            default_job_spec(spec);
        }
    },
    prepare_create: |o| {
        put(o, "status", json!({}));
        if yes(o, "spec.manualSelector") {
            return;
        }
        let uid = at(o, "metadata.uid").clone();
        let name = at(o, "metadata.name").clone();
        let labels = map_at(o, "spec.template.metadata.labels");
        for (key, value) in [
            ("controller-uid", &uid),
            ("job-name", &name),
            ("batch.kubernetes.io/controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
        ] {
            labels.insert(key.into(), value.clone());
        }
        map_at(o, "spec.selector.matchLabels").insert("batch.kubernetes.io/controller-uid".into(), uid);
    },
    validate: |o, errors| {
        job::spec(at(o, "spec"), "spec", errors);
        let (name, last) = (text(o, "metadata.name"), int(o, "spec.completions").unwrap_or(0) - 1);
        if text(o, "spec.completionMode") == "Indexed" && last >= 0 {
            // The Pods are called so.
            let host = format!("{name}-{last}");
            if !names::dns_label(&host).is_empty() {
                let detail = format!("will not able to create pod with invalid DNS label: {host}");
                errors.invalid("metadata.name", name, &detail);
            }
        }
    },
    validate_update: job::update,
    fields: &[("status.successful", "status.succeeded")],
    table: table::apps::JOBS,
    ..BASE
};

const CRON_JOB: Strategy = Strategy {
    status: true,
    generation: true,
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            fill_text(spec, "concurrencyPolicy", "Allow");
            fill(spec, "suspend", false);
            fill(spec, "successfulJobsHistoryLimit", 3);
            fill(spec, "failedJobsHistoryLimit", 1);
            if let Some(job) = get_mut(spec, "jobTemplate.spec") {
                // A template is no Job yet: only its Pod template is completed here.
                if let Some(template) = get_mut(job, "template.spec") {
                    pod::defaults::pod_spec(template);
                }
            }
        }
    },
    prepare_create: |o| put(o, "status", json!({})),
    validate: job::cron_job,
    table: table::apps::CRON_JOBS,
    ..BASE
};
