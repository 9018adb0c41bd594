//! Core kinds with little behaviour of their own, and Pods, whose behaviour is in [`crate::pod`].

use podlab_api::{core, k8s_openapi::api::core::v1 as all_core};
use serde_json::{Value, json};

use super::{BASE, Row, STATUS, Strategy, Sub, SubKind};
use crate::{
    field::Errors,
    names, pod, table,
    tree::{at, entries, fill, fill_text, get_mut, list, map_at, put, text, yes},
};

const READ_WRITE: &[&str] = &["get", "patch", "update"];

const POD_SUBS: &[Sub] = &[
    STATUS,
    Sub { name: "binding", kind: SubKind::Binding, body: Some(("", "v1", "Binding")), verbs: &["create"] },
    Sub { name: "eviction", kind: SubKind::Eviction, body: Some(("policy", "v1", "Eviction")), verbs: &["create"] },
    Sub { name: "ephemeralcontainers", kind: SubKind::Ephemeral, body: None, verbs: READ_WRITE },
    Sub { name: "resize", kind: SubKind::Resize, body: None, verbs: READ_WRITE },
    Sub { name: "log", kind: SubKind::Log, body: None, verbs: &["get"] },
    Sub { name: "exec", kind: SubKind::Exec, body: Some(("", "v1", "PodExecOptions")), verbs: &["create", "get"] },
    Sub {
        name: "attach",
        kind: SubKind::Attach,
        body: Some(("", "v1", "PodAttachOptions")),
        verbs: &["create", "get"],
    },
    Sub {
        name: "portforward",
        kind: SubKind::PortForward,
        body: Some(("", "v1", "PodPortForwardOptions")),
        verbs: &["create", "get"],
    },
    Sub {
        name: "proxy",
        kind: SubKind::Proxy,
        body: Some(("", "v1", "PodProxyOptions")),
        verbs: &["create", "delete", "get", "patch", "update"],
    },
];

const TOKEN: &[Sub] = &[Sub {
    name: "token",
    kind: SubKind::Token,
    body: Some(("authentication.k8s.io", "v1", "TokenRequest")),
    verbs: &["create"],
}];

pub(super) const STATUS_AND_SCALE: &[Sub] = &[
    STATUS,
    Sub { name: "scale", kind: SubKind::Scale, body: Some(("autoscaling", "v1", "Scale")), verbs: READ_WRITE },
];

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<core::Pod>("pod", &["po"], POD).subs(POD_SUBS).in_all(),
        Row::of::<core::ConfigMap>("configmap", &["cm"], CONFIG_MAP),
        Row::of::<core::Secret>("secret", &[], SECRET),
        Row::of::<core::ServiceAccount>("serviceaccount", &["sa"], SERVICE_ACCOUNT).subs(TOKEN),
        Row::of::<core::PodTemplate>("podtemplate", &[], POD_TEMPLATE),
        Row::of::<core::ReplicationController>("replicationcontroller", &["rc"], REPLICATION_CONTROLLER)
            .subs(STATUS_AND_SCALE)
            .in_all(),
        Row::of::<core::LimitRange>("limitrange", &["limits"], LIMIT_RANGE),
        Row::of::<all_core::ResourceQuota>("resourcequota", &["quota"], QUOTA).subs(&[STATUS]),
    ]
}

const POD: Strategy = Strategy {
    status: true,
    generation: true,
    default: pod::defaults::pod,
    prepare_create: pod::prepare_create,
    prepare_update: pod::subresource::prepare_update,
    validate: pod::spec::pod,
    validate_update: pod::update::validate,
    validate_status: pod::subresource::validate_status,
    fields: &[
        ("spec.nodeName", "spec.nodeName"),
        ("spec.host", "spec.nodeName"),
        ("spec.restartPolicy", "spec.restartPolicy"),
        ("spec.schedulerName", "spec.schedulerName"),
        ("spec.serviceAccountName", "spec.serviceAccountName"),
        ("spec.hostNetwork", "spec.hostNetwork"),
        ("status.phase", "status.phase"),
        ("status.podIP", "status.podIP"),
        ("status.podIPs", "status.podIPs"),
        ("status.nominatedNodeName", "status.nominatedNodeName"),
    ],
    table: table::pod::PODS,
    returns_deleted: true,
    ..BASE
};

const CONFIG_MAP: Strategy = Strategy {
    validate: |o, errors| data_keys(o, &["data", "binaryData"], errors),
    validate_update: |new, old, errors| immutable_data(new, old, &["data", "binaryData"], errors),
    table: table::core::CONFIG_MAPS,
    ..BASE
};

const SECRET: Strategy = Strategy {
    default: |o| {
        // stringData is write-only: it is folded into data.
        if let Some(Value::Object(plain)) = crate::tree::remove(o, "stringData") {
            use base64::{Engine, engine::general_purpose::STANDARD};
            let data = map_at(o, "data");
            for (key, value) in plain {
                data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
            }
        }
        fill_text(o, "type", "Opaque");
    },
    validate: |o, errors| {
        data_keys(o, &["data"], errors);
        secret_type(o, errors);
    },
    validate_update: |new, old, errors| {
        if text(new, "type") != text(old, "type") {
            errors.invalid("type", text(new, "type"), "field is immutable");
        }
        immutable_data(new, old, &["data"], errors);
    },
    fields: &[("type", "type")],
    table: table::core::SECRETS,
    ..BASE
};

fn secret_type(secret: &Value, errors: &mut Errors) {
    let need = |key: &str, errors: &mut Errors| {
        if at(secret, "data").get(key).is_none() {
            errors.required(format!("data[{key}]"), "");
        }
    };
    match text(secret, "type") {
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson", errors),
        "kubernetes.io/dockercfg" => need(".dockercfg", errors),
        "kubernetes.io/tls" => {
            need("tls.crt", errors);
            need("tls.key", errors);
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey", errors),
        "kubernetes.io/service-account-token"
            if at(secret, "metadata.annotations").get("kubernetes.io/service-account.name").is_none() =>
        {
            errors.required("metadata.annotations[kubernetes.io/service-account.name]", "");
        }
        _ => {}
    }
}

fn data_keys(object: &Value, fields: &[&str], errors: &mut Errors) {
    let mut size = 0;
    for field in fields {
        for (key, value) in entries(object, field) {
            errors.names(&format!("{field}[{key}]"), key, &names::config_key(key));
            size += value.as_str().map_or(0, str::len);
        }
    }
    if size > 1 << 20 {
        errors.too_long(fields.first().copied().unwrap_or_default(), 1 << 20);
    }
}

fn immutable_data(new: &Value, old: &Value, fields: &[&str], errors: &mut Errors) {
    if !yes(old, "immutable") {
        return;
    }
    if !yes(new, "immutable") {
        errors.forbidden("immutable", "field is immutable when `immutable` is set");
    }
    for field in fields {
        if at(new, field) != at(old, field) {
            errors.forbidden(*field, "field is immutable when `immutable` is set");
        }
    }
}

const SERVICE_ACCOUNT: Strategy = Strategy { table: table::core::SERVICE_ACCOUNTS, returns_deleted: true, ..BASE };

const POD_TEMPLATE: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "template.spec") {
            pod::defaults::pod_spec(spec);
        }
    },
    validate: |o, errors| pod::spec::spec(at(o, "template.spec"), "template.spec", errors),
    ..BASE
};

const REPLICATION_CONTROLLER: Strategy = Strategy {
    status: true,
    generation: true,
    default: |o| {
        let labels = at(o, "spec.template.metadata.labels").clone();
        if let Some(spec) = get_mut(o, "spec") {
            fill(spec, "replicas", 1);
            if labels.is_object() {
                fill(spec, "selector", labels);
            }
            if let Some(template) = get_mut(spec, "template.spec") {
                pod::defaults::pod_spec(template);
            }
        }
    },
    prepare_create: |o| put(o, "status", json!({"replicas": 0})),
    validate: |o, errors| pod::spec::spec(at(o, "spec.template.spec"), "spec.template.spec", errors),
    fields: &[("status.replicas", "status.replicas")],
    table: table::apps::REPLICATION_CONTROLLERS,
    ..BASE
};

const LIMIT_RANGE: Strategy = Strategy {
    default: |o| {
        for item in crate::tree::each_mut(o, "spec.limits") {
            if text(item, "type") != "Container" {
                continue;
            }
            // max → default → defaultRequest → min. Source: k/k pkg/apis/core/v1/defaults.go SetDefaults_LimitRangeItem.
            for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
                let source: Vec<_> = entries(item, from).map(|(k, v)| (k.clone(), v.clone())).collect();
                if !source.is_empty() {
                    let target = map_at(item, to);
                    for (name, quantity) in source {
                        target.entry(name).or_insert(quantity);
                    }
                }
            }
        }
    },
    validate: |o, errors| {
        for (i, item) in list(o, "spec.limits").iter().enumerate() {
            if text(item, "type").is_empty() {
                errors.required(format!("spec.limits[{i}].type"), "");
            }
        }
    },
    table: table::Table::CREATED_AT,
    ..BASE
};

const QUOTA: Strategy = Strategy {
    status: true,
    prepare_create: |o| {
        let hard = at(o, "spec.hard").clone();
        let used = hard.as_object().into_iter().flatten().map(|(k, _)| (k.clone(), Value::from("0"))).collect();
        put(o, "status", json!({"hard": hard, "used": Value::Object(used)}));
    },
    table: table::core::QUOTAS,
    ..BASE
};
