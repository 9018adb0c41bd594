//! What may change on a Pod that exists. Source: k/k pkg/apis/core/validation/validation.go ValidatePodUpdate.

use serde_json::Value;

use crate::{
    field::Errors,
    tree::{at, copy, each_mut, int, list, map, remove, text},
};

const ALLOWED: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks an update of the Pod itself.
pub(crate) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    for (field, noun) in [("containers", "containers"), ("initContainers", "init containers")] {
        if list(new, &format!("spec.{field}")).len() != list(old, &format!("spec.{field}")).len() {
            errors.forbidden(format!("spec.{field}"), &format!("pod updates may not add or remove {noun}"));
            return;
        }
    }
    for field in ["containers", "initContainers"] {
        for (i, container) in list(new, &format!("spec.{field}")).iter().enumerate() {
            if text(container, "image").trim().is_empty() {
                errors.required(format!("spec.{field}[{i}].image"), "");
                return;
            }
        }
    }
    deadline(new, old, errors);
    tolerations(new, old, errors);
    gates(new, old, errors);
    if !errors.is_empty() {
        return;
    }
    let mut munged = at(new, "spec").clone();
    let before = at(old, "spec");
    for field in ["containers", "initContainers"] {
        for (container, was) in each_mut(&mut munged, field).zip(list(before, field)) {
            copy(was, container, "image");
        }
    }
    copy(before, &mut munged, "activeDeadlineSeconds");
    copy(before, &mut munged, "tolerations");
    if int(before, "terminationGracePeriodSeconds").is_some_and(|g| g < 0)
        && int(&munged, "terminationGracePeriodSeconds") == Some(1)
    {
        copy(before, &mut munged, "terminationGracePeriodSeconds");
    }
    if !list(before, "schedulingGates").is_empty() {
        copy(before, &mut munged, "schedulingGates");
        if selector_narrowed(at(&munged, "nodeSelector"), at(before, "nodeSelector")) {
            copy(before, &mut munged, "nodeSelector");
        }
        // A gated Pod may get a node affinity, or a narrower one; upstream checks each term, we take any addition.
        if at(before, "affinity.nodeAffinity").is_null() {
            remove(&mut munged, "affinity.nodeAffinity");
            if at(before, "affinity").is_null() && at(&munged, "affinity").as_object().is_some_and(|a| a.is_empty()) {
                remove(&mut munged, "affinity");
            }
        }
    }
    if munged != *before {
        errors.forbidden("spec", &format!("{ALLOWED}\n{}", diff(before, &munged)));
    }
}

fn deadline(new: &Value, old: &Value, errors: &mut Errors) {
    let field = "spec.activeDeadlineSeconds";
    match (int(new, field), int(old, field)) {
        (Some(n), Some(was)) if n > was => {
            errors.invalid(field, n, "must be less than or equal to previous value");
        }
        (None, Some(_)) => errors.invalid(field, Value::Null, "must not update from a positive integer to nil value"),
        _ => {}
    }
}

fn tolerations(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (list(new, "spec.tolerations"), list(old, "spec.tolerations"));
    let timeless = |t: &Value| {
        let mut t = t.clone();
        map(&mut t).remove("tolerationSeconds");
        t
    };
    let kept = before.iter().all(|b| now.iter().any(|n| n == b || timeless(n) == timeless(b)));
    if !kept {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden("spec.tolerations", why);
    }
}

fn gates(new: &Value, old: &Value, errors: &mut Errors) {
    let before = list(old, "spec.schedulingGates");
    for (i, gate) in list(new, "spec.schedulingGates").iter().enumerate() {
        if !before.contains(gate) {
            let why = "only deletion is allowed, but found new scheduling gate";
            errors.forbidden(format!("spec.schedulingGates[{i}]"), &format!("{why} '{}'", text(gate, "name")));
        }
    }
}

fn selector_narrowed(new: &Value, old: &Value) -> bool {
    let Some(old) = old.as_object() else { return true };
    old.iter().all(|(k, v)| new.get(k) == Some(v))
}

/// The changed region of two specs, as lines with three of context, in the style of upstream's message.
fn diff(old: &Value, new: &Value) -> String {
    let lines = |v: &Value| {
        let text = serde_json::to_string_pretty(v).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (a, b) = (lines(old), lines(new));
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let most = a.len().min(b.len()) - head;
    let tail = a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(x, y)| x == y).count();
    let from = head.saturating_sub(3);
    let (a_end, b_end) = (a.len() - tail, b.len() - tail);
    let after = (a_end + 3).min(a.len());
    let mut out = format!("@@ -{},{} +{},{} @@\n", from + 1, after - from, from + 1, (b_end + 3).min(b.len()) - from);
    let mut push = |mark: char, line: &String| {
        out.push(mark);
        out.push_str(line);
        out.push('\n');
    };
    a[from..head].iter().for_each(|l| push(' ', l));
    a[head..a_end].iter().for_each(|l| push('-', l));
    b[head..b_end].iter().for_each(|l| push('+', l));
    a[a_end..after].iter().for_each(|l| push(' ', l));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_upstream_allows_may_change() {
        let old = json!({"spec": {"containers": [{"name": "c", "image": "a"}], "restartPolicy": "Always"}});
        let with = |change: fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            let mut errors = Errors::default();
            validate(&new, &old, &mut errors);
            errors.into_result("Pod", "", "a").map_err(|e| e.message)
        };
        assert!(with(|p| p["spec"]["containers"][0]["image"] = json!("b")).is_ok());
        assert!(with(|p| p["spec"]["tolerations"] = json!([{"operator": "Exists"}])).is_ok());
        assert!(with(|p| p["spec"]["activeDeadlineSeconds"] = json!(5)).is_ok());
        let error = with(|p| p["spec"]["restartPolicy"] = json!("Never")).unwrap_err();
        assert!(
            error.starts_with("Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields other than")
        );
        assert!(error.contains("-  \"restartPolicy\": \"Always\"\n+  \"restartPolicy\": \"Never\""), "{error}");
        let error = with(|p| p["spec"]["containers"] = json!([])).unwrap_err();
        assert_eq!(
            error,
            "Pod \"a\" is invalid: spec.containers: Forbidden: pod updates may not add or remove containers"
        );
    }
}
