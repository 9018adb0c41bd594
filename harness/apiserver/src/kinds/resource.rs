//! Dynamic resource allocation, as stored objects: device classes, claims, their templates, and slices.
//! Source: k/k pkg/apis/resource/v1/defaults.go, pkg/registry/resource.

use podlab_api::k8s_openapi::api::resource::v1 as resource;
use serde_json::{Value, json};

use super::{BASE, Row, STATUS, Strategy};
use crate::{
    field::Errors,
    names,
    tree::{at, each_mut, fill, fill_text, get_mut, list, put, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::of::<resource::DeviceClass>("deviceclass", &[], CLASS),
        Row::of::<resource::ResourceClaim>("resourceclaim", &[], CLAIM).subs(&[STATUS]),
        Row::of::<resource::ResourceClaimTemplate>("resourceclaimtemplate", &[], TEMPLATE),
        Row::of::<resource::ResourceSlice>("resourceslice", &[], SLICE),
    ]
}

const CLASS: Strategy = Strategy { generation: true, ..BASE };

const CLAIM: Strategy = Strategy {
    status: true,
    default: |o| {
        if let Some(spec) = get_mut(o, "spec") {
            default_claim(spec);
        }
    },
    // Never absent, so that a JSON patch can add to it.
    prepare_create: |o| put(o, "status", json!({})),
    validate: |o, errors| claim(at(o, "spec"), "spec", errors),
    validate_update: immutable_spec,
    ..BASE
};

const TEMPLATE: Strategy = Strategy {
    default: |o| {
        if let Some(spec) = get_mut(o, "spec.spec") {
            default_claim(spec);
        }
    },
    validate: |o, errors| claim(at(o, "spec.spec"), "spec.spec", errors),
    validate_update: immutable_spec,
    ..BASE
};

const SLICE: Strategy = Strategy {
    generation: true,
    validate: |o, errors| {
        for field in ["driver", "pool.name"] {
            let path = format!("spec.{field}");
            if text(o, &path).is_empty() {
                errors.required(path, "");
            }
        }
        let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
        let said = places.iter().filter(|p| {
            let place = at(o, &format!("spec.{p}"));
            !place.is_null() && place != &Value::Bool(false) && place != &Value::from("")
        });
        if said.count() != 1 {
            let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
            errors.required("spec", why);
        }
    },
    validate_update: |new, old, errors| {
        for field in ["spec.driver", "spec.nodeName", "spec.pool.name"] {
            if text(new, field) != text(old, field) {
                errors.invalid(field, text(new, field), "field is immutable");
            }
        }
    },
    fields: &[("spec.nodeName", "spec.nodeName"), ("spec.driver", "spec.driver")],
    ..BASE
};

/// A request that does not say how many devices wants one. Idempotent.
fn default_claim(spec: &mut Value) {
    for request in each_mut(spec, "devices.requests") {
        if let Some(exactly) = get_mut(request, "exactly") {
            default_request(exactly);
        }
        each_mut(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Value) {
    fill_text(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        fill(request, "count", 1);
    }
    for toleration in each_mut(request, "tolerations") {
        fill_text(toleration, "operator", "Equal");
    }
}

fn claim(spec: &Value, path: &str, errors: &mut Errors) {
    let mut seen = Vec::new();
    for (i, request) in list(spec, "devices.requests").iter().enumerate() {
        let here = format!("{path}.devices.requests[{i}]");
        let name = text(request, "name");
        errors.names(&format!("{here}.name"), name, &names::dns_label(name));
        if seen.contains(&name) {
            errors.duplicate(here.clone(), name);
        }
        seen.push(name);
        let exactly = at(request, "exactly");
        match (exactly.is_object(), !list(request, "firstAvailable").is_empty()) {
            (true, true) => {
                errors.invalid(here, request.clone(), "exactly one of `exactly` or `firstAvailable` is required")
            }
            (false, false) => errors.required(here, "exactly one of `exactly` or `firstAvailable` is required"),
            (true, false) => class_name(exactly, &format!("{here}.exactly"), errors),
            (false, true) => {
                for (j, sub) in list(request, "firstAvailable").iter().enumerate() {
                    class_name(sub, &format!("{here}.firstAvailable[{j}]"), errors);
                }
            }
        }
    }
}

fn class_name(request: &Value, path: &str, errors: &mut Errors) {
    let name = text(request, "deviceClassName");
    let field = format!("{path}.deviceClassName");
    if name.is_empty() {
        errors.required(field, "");
    } else {
        errors.names(&field, name, &names::dns_subdomain(name));
    }
}

fn immutable_spec(new: &Value, old: &Value, errors: &mut Errors) {
    if at(new, "spec") != at(old, "spec") {
        errors.invalid("spec", at(new, "spec").clone(), "field is immutable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_number_wants_one_device_and_all_of_them_need_no_number() {
        let mut o = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "c"}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c", "allocationMode": "All"}]}]}}});
        (CLAIM.default)(&mut o);
        let once = o.clone();
        (CLAIM.default)(&mut o);
        assert_eq!(o, once);
        let requests = &o["spec"]["devices"]["requests"];
        assert_eq!(requests[0]["exactly"]["count"], 1);
        assert_eq!(requests[0]["exactly"]["allocationMode"], "ExactCount");
        assert_eq!(requests[1]["firstAvailable"][0].get("count"), None);
    }

    #[test]
    fn a_claim_may_not_change_and_a_slice_is_of_one_place() {
        let mut errors = Errors::default();
        (CLAIM.validate_update)(&json!({"spec": {"a": 1}}), &json!({"spec": {}}), &mut errors);
        assert_eq!(errors.len(), 1);
        let judge = |spec: Value| {
            let mut errors = Errors::default();
            (SLICE.validate)(&json!({ "spec": spec }), &mut errors);
            errors.is_empty()
        };
        assert!(judge(json!({"driver": "d", "pool": {"name": "p"}, "nodeName": "n"})));
        assert!(!judge(json!({"driver": "d", "pool": {"name": "p"}, "nodeName": "n", "allNodes": true})));
        assert!(!judge(json!({"driver": "d", "pool": {"name": "p"}})));
    }
}
