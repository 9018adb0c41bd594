//! Namespaces. Source: k/k pkg/registry/core/namespace.

use podlab_api::core;
use serde_json::{Value, json};

use super::{BASE, NameRule, Row, STATUS, Strategy, Sub, SubKind};
use crate::{
    table,
    tree::{at, map_at, put, text},
};

const SUBS: &[Sub] = &[STATUS, Sub { name: "finalize", kind: SubKind::Finalize, body: None, verbs: &["update"] }];

pub(super) fn rows() -> Vec<Row> {
    vec![Row::of::<core::Namespace>("namespace", &["ns"], NAMESPACE).subs(SUBS)]
}

const NAMESPACE: Strategy = Strategy {
    status: true,
    names: NameRule::Label,
    default: label,
    prepare_create: |o| {
        put(o, "status", json!({"phase": "Active"}));
        put(o, "spec.finalizers", json!(["kubernetes"]));
    },
    prepare_update: |old, new| put(new, "spec.finalizers", at(old, "spec.finalizers").clone()),
    fields: &[("status.phase", "status.phase"), ("name", "metadata.name")],
    table: table::core::NAMESPACES,
    returns_deleted: true,
    ..BASE
};

/// Every namespace can be selected by its name.
fn label(namespace: &mut Value) {
    let name = text(namespace, "metadata.name").to_owned();
    if !name.is_empty() {
        map_at(namespace, "metadata.labels").insert("kubernetes.io/metadata.name".into(), name.into());
    }
}
