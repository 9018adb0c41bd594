//! Rows of workloads. Source: k/k pkg/printers/internalversion/printers.go.

use podlab_api::jiff::Timestamp;
use serde_json::Value;

use super::{Table, age::age, human_duration, since};
use crate::{
    machine::selector_text,
    tree::{at, entries, has, int, list, text, yes},
};

fn number(o: &Value, path: &str) -> i64 {
    int(o, path).unwrap_or(0)
}

fn containers(o: &Value, path: &str, field: &str) -> Value {
    list(o, path).iter().map(|c| text(c, field)).collect::<Vec<_>>().join(",").into()
}

fn selector(o: &Value) -> Value {
    let found = selector_text(at(o, "spec.selector"));
    if found.is_empty() { "<none>".into() } else { found.into() }
}

const POD_CONTAINERS: &str = "spec.template.spec.containers";

pub(crate) const DEPLOYMENTS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        vec![
            at(o, "metadata.name").clone(),
            format!("{}/{}", number(o, "status.readyReplicas"), number(o, "spec.replicas")).into(),
            number(o, "status.updatedReplicas").into(),
            number(o, "status.availableReplicas").into(),
            age(o, now),
            containers(o, POD_CONTAINERS, "name"),
            containers(o, POD_CONTAINERS, "image"),
            selector(o),
        ]
    },
};

const SET_COLUMNS: &[super::Column] = &[
    ("Name", "string", 0),
    ("Desired", "integer", 0),
    ("Current", "integer", 0),
    ("Ready", "integer", 0),
    ("Age", "string", 0),
    ("Containers", "string", 1),
    ("Images", "string", 1),
    ("Selector", "string", 1),
];

fn set_cells(o: &Value, now: super::Now) -> Vec<Value> {
    vec![
        at(o, "metadata.name").clone(),
        number(o, "spec.replicas").into(),
        number(o, "status.replicas").into(),
        number(o, "status.readyReplicas").into(),
        age(o, now),
        containers(o, POD_CONTAINERS, "name"),
        containers(o, POD_CONTAINERS, "image"),
        selector(o),
    ]
}

pub(crate) const REPLICA_SETS: Table = Table { columns: SET_COLUMNS, cells: set_cells };
pub(crate) const REPLICATION_CONTROLLERS: Table = Table { columns: SET_COLUMNS, cells: set_cells };

pub(crate) const DAEMON_SETS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Up-to-date", "integer", 0),
        ("Available", "integer", 0),
        ("Node Selector", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let nodes: Vec<String> = entries(o, "spec.template.spec.nodeSelector")
            .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
            .collect();
        vec![
            at(o, "metadata.name").clone(),
            number(o, "status.desiredNumberScheduled").into(),
            number(o, "status.currentNumberScheduled").into(),
            number(o, "status.numberReady").into(),
            number(o, "status.updatedNumberScheduled").into(),
            number(o, "status.numberAvailable").into(),
            if nodes.is_empty() { "<none>".into() } else { nodes.join(",").into() },
            age(o, now),
            containers(o, POD_CONTAINERS, "name"),
            containers(o, POD_CONTAINERS, "image"),
            selector(o),
        ]
    },
};

pub(crate) const STATEFUL_SETS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
    ],
    cells: |o, now| {
        vec![
            at(o, "metadata.name").clone(),
            format!("{}/{}", number(o, "status.readyReplicas"), number(o, "spec.replicas")).into(),
            age(o, now),
            containers(o, POD_CONTAINERS, "name"),
            containers(o, POD_CONTAINERS, "image"),
        ]
    },
};

pub(crate) const JOBS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Completions", "string", 0),
        ("Duration", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let done = number(o, "status.succeeded");
        let completions = match (int(o, "spec.completions"), number(o, "spec.parallelism")) {
            (Some(wanted), _) => format!("{done}/{wanted}"),
            (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
            (None, _) => format!("{done}/1"),
        };
        let started = text(o, "status.startTime").parse::<Timestamp>().ok();
        let ended = text(o, "status.completionTime").parse::<Timestamp>().unwrap_or(now);
        let duration = started.map_or(String::new(), |s| human_duration(ended.as_second() - s.as_second()));
        let holds = |kind: &str| {
            list(o, "status.conditions").iter().any(|c| text(c, "type") == kind && text(c, "status") == "True")
        };
        let status = if holds("Complete") {
            "Complete"
        } else if holds("Failed") {
            "Failed"
        } else if has(o, "metadata.deletionTimestamp") {
            "Terminating"
        } else if holds("Suspended") {
            "Suspended"
        } else if holds("FailureTarget") {
            "FailureTarget"
        } else if holds("SuccessCriteriaMet") {
            "SuccessCriteriaMet"
        } else {
            "Running"
        };
        vec![
            at(o, "metadata.name").clone(),
            status.into(),
            completions.into(),
            duration.into(),
            age(o, now),
            containers(o, POD_CONTAINERS, "name"),
            containers(o, POD_CONTAINERS, "image"),
            selector(o),
        ]
    },
};

pub(crate) const CRON_JOBS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Schedule", "string", 0),
        ("Timezone", "string", 0),
        ("Suspend", "boolean", 0),
        ("Active", "integer", 0),
        ("Last Schedule", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let last = text(o, "status.lastScheduleTime");
        let zone = text(o, "spec.timeZone");
        vec![
            at(o, "metadata.name").clone(),
            text(o, "spec.schedule").into(),
            if zone.is_empty() { "<none>".into() } else { zone.into() },
            if yes(o, "spec.suspend") { "True".into() } else { "False".into() },
            list(o, "status.active").len().into(),
            if last.is_empty() { "<none>".into() } else { since(last, now).into() },
            age(o, now),
        ]
    },
};
