//! API errors that the server builds in more than one place, in upstream's words.

use podlab_api::{ApiError, Reason};
use podlab_store::StoreError;
use serde_json::{Value, json};

use crate::kinds::Kind;

/// What a failed compare-and-swap tells the client.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// 404 for an object.
pub(crate) fn not_found(kind: &Kind, name: &str) -> ApiError {
    ApiError::not_found(kind.resource.plural, kind.resource.group, name)
}

/// 409 for an object that is there.
pub(crate) fn already_exists(kind: &Kind, name: &str) -> ApiError {
    ApiError::already_exists(kind.resource.plural, kind.resource.group, name)
}

/// 409 for a condition that does not hold.
pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> ApiError {
    ApiError::conflict(kind.resource.plural, kind.resource.group, name, why)
}

/// 403 for an object that admission refuses.
pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> ApiError {
    forbidden_resource(kind.resource.plural, kind.resource.group, name, why)
}

/// 403 in upstream's words.
pub(crate) fn forbidden_resource(plural: &str, group: &str, name: &str, why: &str) -> ApiError {
    let full = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let what = if name.is_empty() { format!("{full} is forbidden") } else { format!("{full} {name:?} is forbidden") };
    let mut error = ApiError::new(Reason::Forbidden, format!("{what}: {why}"));
    error.details = Some(details(plural, group, name));
    error
}

/// `details` of a Status about a named resource.
pub(crate) fn details(plural: &str, group: &str, name: &str) -> Value {
    let mut d = json!({"kind": plural});
    for (key, value) in [("name", name), ("group", group)] {
        if let (false, Some(map)) = (value.is_empty(), d.as_object_mut()) {
            map.insert(key.into(), value.into());
        }
    }
    d
}

/// 405 for a verb that a resource does not offer.
pub(crate) fn method_not_allowed(kind: &Kind, action: &str) -> ApiError {
    ApiError::new(
        Reason::MethodNotAllowed,
        format!("{action} is not supported on resources of kind {:?}", kind.qualified()),
    )
}

/// What a failed store operation means for a client; `name` is the object's.
pub(crate) fn from_store(kind: &Kind, name: &str, error: StoreError) -> ApiError {
    match error {
        StoreError::Exists { .. } => already_exists(kind, name),
        StoreError::NotFound { .. } => not_found(kind, name),
        StoreError::Conflict { .. } => conflict(kind, name, MODIFIED),
        StoreError::Expired { requested, oldest } => expired(requested, oldest),
        StoreError::Slow => ApiError::new(Reason::Expired, "too old resource version: the watch fell behind"),
        StoreError::Future { requested, current } => too_large(requested, current),
        StoreError::Closed => ApiError::new(Reason::ServiceUnavailable, "the API server is shutting down"),
        StoreError::Log(_) | StoreError::Open { .. } | StoreError::Encode { .. } => {
            ApiError::internal(format!("Internal error occurred: {error}"))
        }
    }
}

/// 410 for a revision that is no longer kept.
pub(crate) fn expired(requested: u64, oldest: u64) -> ApiError {
    ApiError::new(Reason::Expired, format!("too old resource version: {requested} ({oldest})"))
}

/// 504 for a revision that has not happened yet.
pub(crate) fn too_large(requested: u64, current: u64) -> ApiError {
    let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
    let mut error = ApiError::new(Reason::Timeout, message);
    error.details = Some(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }));
    error
}

/// 422 for options of a request.
pub(crate) fn invalid_options(kind: &str, field: &str, body: &str) -> ApiError {
    let mut error = ApiError::new(Reason::Invalid, format!("{kind}.meta.k8s.io \"\" is invalid: {field}: {body}"));
    let reason = if body.starts_with("Forbidden") {
        "FieldValueForbidden"
    } else if body.starts_with("Required") {
        "FieldValueRequired"
    } else {
        "FieldValueInvalid"
    };
    error.details = Some(json!({
        "group": "meta.k8s.io", "kind": kind, "causes": [{"reason": reason, "message": body, "field": field}],
    }));
    error
}
