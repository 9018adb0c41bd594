//! Roles and their bindings; what they mean is in [`crate::auth::rbac`].

use podlab_api::k8s_openapi::api::rbac::v1 as rbac;

use super::{BASE, NameRule, Row, Strategy};
use crate::{
    table,
    tree::{at, each_mut, fill_text, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<rbac::Role>("role", &[], Strategy { table: table::Table::CREATED_AT, ..ROLE }),
        Row::of::<rbac::RoleBinding>("rolebinding", &[], BINDING),
        Row::of::<rbac::ClusterRole>("clusterrole", &[], Strategy { table: table::Table::CREATED_AT, ..ROLE }),
        Row::of::<rbac::ClusterRoleBinding>("clusterrolebinding", &[], BINDING),
    ]
}

const ROLE: Strategy = Strategy { names: NameRule::PathSegment, ..BASE };

const BINDING: Strategy = Strategy {
    names: NameRule::PathSegment,
    default: |o| {
        if let Some(role) = crate::tree::get_mut(o, "roleRef") {
            fill_text(role, "apiGroup", "rbac.authorization.k8s.io");
        }
        for subject in each_mut(o, "subjects") {
            let group = if text(subject, "kind") == "ServiceAccount" { "" } else { "rbac.authorization.k8s.io" };
            fill_text(subject, "apiGroup", group);
        }
    },
    validate: |o, errors| {
        if text(o, "roleRef.name").is_empty() {
            errors.required("roleRef.name", "");
        }
        let kind = text(o, "roleRef.kind");
        if !matches!(kind, "Role" | "ClusterRole") {
            errors.not_supported("roleRef.kind", kind, &["ClusterRole", "Role"]);
        }
    },
    validate_update: |new, old, errors| {
        if at(new, "roleRef") != at(old, "roleRef") {
            errors.invalid("roleRef", at(new, "roleRef").clone(), "cannot change roleRef");
        }
    },
    table: table::core::ROLE_BINDINGS,
    ..BASE
};
