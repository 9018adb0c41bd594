//! Patch formats: JSON patch, JSON merge patch, Kubernetes' strategic merge and server-side apply.

pub(crate) mod apply;
mod fields;
pub(crate) mod managed;
mod merge_keys;
mod strategic;

use podlab_api::{ApiError, Reason};
use serde_json::Value;

use crate::{
    kinds::{Kind, SubKind},
    local::PatchKind,
};

/// Applies a patch to the current object and returns the new one.
///
/// # Errors
/// 400 for a patch that cannot be read, 422 for one that does not fit the object, 409 for apply conflicts.
pub(crate) fn apply(
    kind: &Kind,
    old: &Value,
    how: &PatchKind,
    patch: &Value,
    sub: Option<SubKind>,
    now: &str,
) -> Result<Value, ApiError> {
    let mut new = old.clone();
    match how {
        PatchKind::Json => {
            let operations: json_patch::Patch = serde_json::from_value(patch.clone())
                .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
            if operations.0.len() > 10_000 {
                let message = "Request entity too large: the allowed maximum operations in a JSON patch is 10000";
                return Err(ApiError::new(Reason::RequestEntityTooLarge, message));
            }
            json_patch::patch(&mut new, &operations.0).map_err(|e| {
                let message = format!("the server rejected our request due to an error in our request: {e}");
                ApiError::new(Reason::Invalid, message)
            })?;
        }
        PatchKind::Merge => merge(&mut new, patch),
        PatchKind::Strategic => strategic::merge(kind.resource.kind, &mut new, patch)?,
        PatchKind::Apply { manager, force } => {
            new = apply::apply(kind, old, patch, manager, *force, sub, now)?;
        }
    }
    Ok(new)
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    let map = crate::tree::map(target);
    for (key, value) in fields {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
