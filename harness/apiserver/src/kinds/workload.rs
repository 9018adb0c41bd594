//! What the specs of DaemonSets and StatefulSets must be. Source: k/k pkg/apis/apps/validation/validation.go.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    field::Errors,
    tree::{at, has, list, map_at, put, remove, text},
};

/// A Pod's spec as a StatefulSet completes it: its claims are volumes, hostname and subdomain come from the set.
pub(super) fn with_claims<'a>(o: &Value, spec: &'a Value) -> Cow<'a, Value> {
    let templates = list(o, "spec.volumeClaimTemplates");
    if text(o, "kind") != "StatefulSet" || templates.is_empty() {
        return Cow::Borrowed(spec);
    }
    let claims: Vec<&str> = templates.iter().map(|t| text(t, "metadata.name")).collect();
    let mut volumes: Vec<Value> =
        claims.iter().map(|n| json!({"name": n, "persistentVolumeClaim": {"claimName": n}})).collect();
    volumes.extend(list(spec, "volumes").iter().filter(|v| !claims.contains(&text(v, "name"))).cloned());
    let mut whole = spec.clone();
    put(&mut whole, "volumes", volumes);
    remove(&mut whole, "hostname");
    remove(&mut whole, "subdomain");
    Cow::Owned(whole)
}

/// What may change of a StatefulSet's spec.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Checks a change of a StatefulSet.
pub(super) fn stateful_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = |o: &Value| {
        let mut spec = at(o, "spec").clone();
        for field in CHANGEABLE {
            remove(&mut spec, field);
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let last = CHANGEABLE.len() - 1;
        let names: Vec<String> = CHANGEABLE[..last].iter().map(|f| format!("'{f}'")).collect();
        let detail = format!(
            "updates to statefulset spec for fields other than {} and '{}' are forbidden",
            names.join(", "),
            CHANGEABLE[last]
        );
        errors.forbidden("spec", &detail);
    }
}

/// Checks what only a StatefulSet has.
pub(super) fn stateful(o: &Value, errors: &mut Errors) {
    match text(o, "spec.podManagementPolicy") {
        "OrderedReady" | "Parallel" => {}
        "" => errors.required("spec.podManagementPolicy", ""),
        other => errors.invalid("spec.podManagementPolicy", other, "must be 'OrderedReady' or 'Parallel'"),
    }
    match text(o, "spec.updateStrategy.type") {
        "OnDelete" if has(o, "spec.updateStrategy.rollingUpdate") => {
            let value = at(o, "spec.updateStrategy.rollingUpdate").clone();
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid("spec.updateStrategy.rollingUpdate", value, detail);
        }
        "OnDelete" | "RollingUpdate" => {}
        "" => errors.required("spec.updateStrategy", ""),
        _ => {
            let value = at(o, "spec.updateStrategy").clone();
            errors.invalid("spec.updateStrategy", value, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

/// Counts changes of a DaemonSet's template where clients look for it.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The first template.
pub(super) fn first_template(o: &mut Value) {
    map_at(o, "metadata.annotations").insert(TEMPLATE_GENERATION.to_owned(), "1".into());
}

/// Counts a template that has changed.
pub(super) fn count_template(old: &Value, new: &mut Value) {
    let counted = at(old, "metadata.annotations").get(TEMPLATE_GENERATION).and_then(|v| v.as_str()?.parse().ok());
    let changed = at(old, "spec.template") != at(new, "spec.template");
    let next = counted.unwrap_or(0_i64) + i64::from(changed || counted.is_none());
    map_at(new, "metadata.annotations").insert(TEMPLATE_GENERATION.to_owned(), next.to_string().into());
}

/// Checks what only a DaemonSet has.
pub(super) fn daemon(o: &Value, errors: &mut Errors) {
    let rolling = "spec.updateStrategy.rollingUpdate";
    let zero = |field: &str| {
        let value = at(o, rolling).get(field);
        value.is_none_or(|v| v.as_i64() == Some(0) || v.as_str().is_some_and(|s| s.trim_end_matches('%') == "0"))
    };
    match text(o, "spec.updateStrategy.type") {
        "RollingUpdate" => match (zero("maxUnavailable"), zero("maxSurge")) {
            (false, false) => {
                let value = at(o, rolling)["maxSurge"].clone();
                errors.invalid(format!("{rolling}.maxSurge"), value, "may not be set when maxUnavailable is non-zero");
            }
            (true, true) => errors.required(format!("{rolling}.maxUnavailable"), "cannot be 0 when maxSurge is 0"),
            _ => {}
        },
        "OnDelete" => {}
        other => errors.not_supported("spec.updateStrategy.type", other, &["RollingUpdate", "OnDelete"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(check: impl Fn(&mut Errors)) -> String {
        let mut errors = Errors::default();
        check(&mut errors);
        errors.into_result("Kind", "apps", "x").map_or_else(|e| e.message, |()| String::new())
    }

    #[test]
    fn claims_of_a_stateful_set_are_volumes_of_its_pods() {
        let set = json!({"kind": "StatefulSet", "spec": {"volumeClaimTemplates": [{"metadata": {"name": "www"}}]}});
        let spec =
            json!({"hostname": "x", "volumes": [{"name": "www", "emptyDir": {}}, {"name": "own", "emptyDir": {}}]});
        let whole = with_claims(&set, &spec);
        let names: Vec<&str> = list(&whole, "volumes").iter().map(|v| text(v, "name")).collect();
        assert_eq!((names, has(&whole, "hostname")), (vec!["www", "own"], false));
        assert!(has(&list(&whole, "volumes")[0], "persistentVolumeClaim"));
    }

    #[test]
    fn the_template_generation_counts_templates() {
        let mut old = json!({"spec": {"template": 1}});
        first_template(&mut old);
        let next = |template: i32| {
            let mut new = json!({"spec": {"template": template}});
            count_template(&old, &mut new);
            new["metadata"]["annotations"][TEMPLATE_GENERATION].clone()
        };
        assert_eq!((next(1), next(2)), (json!("1"), json!("2")));
    }

    #[test]
    fn what_may_not_change_and_not_be_is_named() {
        let set = |name: &str, replicas: i32| json!({"spec": {"serviceName": name, "replicas": replicas}});
        assert_eq!(said(|e| stateful_update(&set("a", 1), &set("a", 2), e)), "");
        let changed = said(|e| stateful_update(&set("a", 1), &set("b", 1), e));
        assert!(
            changed.contains("'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"),
            "{changed}"
        );
        let rolling = |r: Value| json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": r}}});
        assert_eq!(said(|e| daemon(&rolling(json!({"maxUnavailable": 1, "maxSurge": 0})), e)), "");
        assert!(said(|e| daemon(&rolling(json!({"maxUnavailable": 0, "maxSurge": "0%"})), e)).contains("cannot be 0"));
        assert!(
            said(|e| daemon(&rolling(json!({"maxUnavailable": "10%", "maxSurge": 1})), e)).contains("may not be set")
        );
    }
}
