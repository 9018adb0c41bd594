//! Object metadata: what the server sets, keeps and checks on every kind.

use podlab_api::ApiError;
use serde_json::Value;

use crate::{
    field::Errors,
    kinds::{Kind, NameRule},
    names,
    tree::{at, copy, entries, list, map_at, text},
};

/// Checks `metadata` of a new or changed object.
pub(crate) fn validate(kind: &Kind, object: &Value, errors: &mut Errors) {
    let name = text(object, "metadata.name");
    if name.is_empty() {
        errors.required("metadata.name", "name or generateName is required");
    } else {
        let broken = match kind.strategy.names {
            NameRule::Subdomain => names::dns_subdomain(name),
            NameRule::Label => names::dns_label(name),
            NameRule::Label1035 => names::dns1035_label(name),
            NameRule::PathSegment => names::path_segment(name),
        };
        errors.names("metadata.name", name, &broken);
    }
    if kind.resource.namespaced {
        let namespace = text(object, "metadata.namespace");
        if namespace.is_empty() {
            errors.required("metadata.namespace", "");
        } else {
            errors.names("metadata.namespace", namespace, &names::dns_label(namespace));
        }
    }
    labels_at(object, "metadata.labels", "metadata.labels", errors);
    annotations(object, errors);
    for (i, owner) in list(object, "metadata.ownerReferences").iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.invalid(
                    format!("metadata.ownerReferences[{i}].{field}"),
                    "",
                    &format!("{field} must not be empty"),
                );
            }
        }
    }
    let controllers =
        list(object, "metadata.ownerReferences").iter().filter(|o| crate::tree::yes(o, "controller")).count();
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        errors.invalid("metadata.ownerReferences", at(object, "metadata.ownerReferences").clone(), why);
    }
    for finalizer in list(object, "metadata.finalizers").iter().filter_map(Value::as_str) {
        errors.names("metadata.finalizers", finalizer, &names::qualified(finalizer));
        if !finalizer.contains('/') && !matches!(finalizer, "foregroundDeletion" | "orphan" | "kubernetes") {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid("metadata.finalizers", finalizer, why);
        }
    }
}

/// Checks the map of labels at `path`, which errors name `field`.
pub(crate) fn labels_at(object: &Value, path: &str, field: &str, errors: &mut Errors) {
    for (key, value) in entries(object, path) {
        errors.names(field, key, &names::qualified(key));
        let value = value.as_str().unwrap_or_default();
        errors.names(field, value, &names::label_value(value));
    }
}

fn annotations(object: &Value, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in entries(object, "metadata.annotations") {
        errors.names("metadata.annotations", key, &names::qualified(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > 256 << 10 {
        errors.too_long("metadata.annotations", 256 << 10);
    }
}

/// Checks what may not change in metadata.
pub(crate) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    if !at(old, "metadata.deletionTimestamp").is_null() {
        let had = list(old, "metadata.finalizers");
        let added: Vec<&Value> = list(new, "metadata.finalizers").iter().filter(|f| !had.contains(f)).collect();
        if !added.is_empty() {
            let found = added.iter().map(|f| f.to_string()).collect::<Vec<_>>().join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{found}}}"
            );
            errors.forbidden("metadata.finalizers", &why);
        }
    }
}

/// What the client may not choose at create.
pub(crate) fn strip_for_create(object: &mut Value) {
    let meta = map_at(object, "metadata");
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
        "resourceVersion",
        "managedFields",
    ] {
        meta.remove(field);
    }
}

/// What an update can never change.
pub(crate) fn keep_immutable(old: &Value, new: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        copy(old, new, &format!("metadata.{field}"));
    }
}

/// Metadata that a status update may not touch, for kinds that are strict about it.
pub(crate) fn keep_for_status(old: &Value, new: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        copy(old, new, &format!("metadata.{field}"));
    }
}

/// Checks that the body is about the resource, namespace and name of the URL, and completes it.
///
/// # Errors
/// 400 with what does not match.
pub(crate) fn match_url(
    kind: &Kind,
    body: &mut Value,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<(), ApiError> {
    let r = &kind.resource;
    let (version, named_kind) = (text(body, "apiVersion"), text(body, "kind"));
    if !body.is_object() {
        return Err(ApiError::bad_request("the body of the request must be an object"));
    }
    if !version.is_empty() && version != r.api_version() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            r.api_version()
        )));
    }
    if !named_kind.is_empty() && named_kind != r.kind {
        return Err(ApiError::bad_request(format!(
            "{named_kind} in version {:?} cannot be handled as a {}: no kind {named_kind:?} is registered for this resource",
            r.version, r.kind
        )));
    }
    if let Some(namespace) = namespace {
        let given = text(body, "metadata.namespace");
        if given.is_empty() {
            map_at(body, "metadata").insert("namespace".into(), namespace.into());
        } else if given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    } else if !r.namespaced {
        map_at(body, "metadata").remove("namespace");
    }
    if let Some(name) = name {
        let given = text(body, "metadata.name");
        if given.is_empty() {
            map_at(body, "metadata").insert("name".into(), name.into());
        } else if given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
    }
    Ok(())
}
