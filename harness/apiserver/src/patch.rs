//! Patch formats: JSON patch, JSON merge patch, Kubernetes' strategic merge and server-side apply.

pub(crate) mod apply;
mod fields;
pub(crate) mod managed;
mod merge_keys;
mod strategic;

use podlab_api::{ApiError, Reason, request::PatchKind};
use serde_json::Value;

use crate::kinds::{Kind, SubKind};

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
            json(&mut new, &operations)?;
        }
        PatchKind::Merge => merge(&mut new, patch),
        PatchKind::Strategic => strategic::merge(kind.resource.kind, &mut new, patch)?,
        PatchKind::Apply { manager, force } => {
            new = apply::apply(kind, old, patch, manager, *force, sub, now)?;
        }
    }
    Ok(new)
}

/// What `copy` operations of one patch may add up to, as upstream limits it: a request body.
const MAX_COPIED: usize = 3 << 20;

/// RFC 6902, one operation at a time so that copies cannot grow without bound.
fn json(target: &mut Value, patch: &json_patch::Patch) -> Result<(), ApiError> {
    let mut copied = 0;
    for (i, operation) in patch.0.iter().enumerate() {
        if let json_patch::PatchOperation::Copy(copy) = operation {
            let source = target.pointer(copy.from.as_str());
            copied += source.map_or(0, |v| v.to_string().len());
            if copied > MAX_COPIED {
                let message = format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                );
                return Err(ApiError::new(Reason::RequestEntityTooLarge, message));
            }
        }
        json_patch::patch(target, std::slice::from_ref(operation)).map_err(|e| {
            let why = e.kind;
            let message = format!(
                "the server rejected our request due to an error in our request: operation {i} at {}: {why}",
                e.path
            );
            ApiError::new(Reason::Invalid, message)
        })?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_that_double_without_end_are_stopped() {
        let operations: Vec<Value> = (0..60).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})).collect();
        let patch = serde_json::from_value(Value::Array(operations)).unwrap();
        let error = json(&mut json!({"a": ["x"]}), &patch).unwrap_err();
        assert_eq!(error.reason, Reason::RequestEntityTooLarge);
    }
}
