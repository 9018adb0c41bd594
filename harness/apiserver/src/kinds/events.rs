//! Events, in both of their forms: `core/v1` as they are stored, `events.k8s.io/v1` as a view of the same objects.
//! Source: k/k pkg/apis/core/types.go Event, pkg/apis/events/v1/conversion.go, pkg/apis/core/validation/events.go.

use podlab_api::{core, k8s_openapi::api::events::v1 as events};
use serde_json::{Map, Value};

use super::{BASE, Row, Strategy};
use crate::{
    field::Errors,
    table,
    tree::{at, has, text},
};

pub(super) fn rows() -> Vec<Row> {
    vec![Row::of::<core::Event>("event", &["ev"], CORE_EVENT), Row::of::<events::Event>("event", &["ev"], EVENT)]
}

const CORE_EVENT: Strategy = Strategy {
    validate: |o, errors| {
        let involved = text(o, "involvedObject.namespace");
        let namespace = text(o, "metadata.namespace");
        // What is in no namespace is reported on in `default`.
        let expected = if involved.is_empty() { "default" } else { involved };
        if expected != namespace {
            errors.invalid("involvedObject.namespace", involved, "does not match event.namespace");
        }
    },
    fields: &[
        ("involvedObject.kind", "involvedObject.kind"),
        ("involvedObject.namespace", "involvedObject.namespace"),
        ("involvedObject.name", "involvedObject.name"),
        ("involvedObject.uid", "involvedObject.uid"),
        ("involvedObject.apiVersion", "involvedObject.apiVersion"),
        ("involvedObject.resourceVersion", "involvedObject.resourceVersion"),
        ("involvedObject.fieldPath", "involvedObject.fieldPath"),
        ("reason", "reason"),
        ("reportingComponent", "reportingComponent"),
        ("source", "source.component|reportingComponent"),
        ("type", "type"),
    ],
    table: table::core::EVENTS,
    ..BASE
};

const EVENT: Strategy = Strategy {
    validate: |o, errors| {
        // Objects written through core/v1 carry the deprecated fields and are held to its looser rules.
        if !has(o, "deprecatedFirstTimestamp") && !has(o, "deprecatedSource") {
            event(o, errors);
        }
    },
    validate_update: |new, old, errors| {
        for field in
            ["regarding", "reason", "type", "action", "note", "reportingController", "reportingInstance", "related"]
        {
            if at(new, field) != at(old, field) && !has(old, "deprecatedFirstTimestamp") {
                errors.invalid(field, at(new, field).clone(), "field is immutable");
            }
        }
    },
    fields: &[
        ("regarding.kind", "regarding.kind"),
        ("regarding.namespace", "regarding.namespace"),
        ("regarding.name", "regarding.name"),
        ("regarding.uid", "regarding.uid"),
        ("regarding.apiVersion", "regarding.apiVersion"),
        ("regarding.resourceVersion", "regarding.resourceVersion"),
        ("regarding.fieldPath", "regarding.fieldPath"),
        ("reason", "reason"),
        ("reportingController", "reportingController"),
        ("type", "type"),
    ],
    table: table::core::EVENTS_V1,
    ..BASE
};

fn event(event: &Value, errors: &mut Errors) {
    let namespace = text(event, "metadata.namespace");
    let regarding = text(event, "regarding.namespace");
    if (regarding.is_empty() && namespace != "default") || (!regarding.is_empty() && regarding != namespace) {
        errors.invalid("involvedObject.namespace", regarding, "does not match event.namespace");
    }
    if text(event, "eventTime").is_empty() {
        errors.required("eventTime", "");
    }
    let controller = text(event, "reportingController");
    if controller.is_empty() {
        errors.required("reportingController", "");
    } else {
        errors.names("reportingController", controller, &crate::names::qualified(controller));
    }
    for (field, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let value = text(event, field);
        if value.is_empty() {
            errors.required(field, "");
        } else if value.len() > most {
            errors.invalid(field, "", &format!("can have at most {most} characters"));
        }
    }
    if text(event, "note").len() > 1024 {
        errors.invalid("message", "", "can have at most 1024 characters");
    }
    if !matches!(text(event, "type"), "Normal" | "Warning") {
        errors.invalid("type", text(event, "type"), "has invalid value: ");
    }
}

/// Field names of the stored form and of the view, where they differ.
const RENAMED: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
];

/// The `events.k8s.io/v1` view of a stored event.
pub(crate) fn from_storage(event: &Value) -> Value {
    rename(event, "events.k8s.io/v1", |name| RENAMED.iter().find(|(stored, _)| *stored == name).map(|(_, view)| *view))
}

/// The stored form of an `events.k8s.io/v1` event.
pub(crate) fn to_storage(event: &Value) -> Value {
    rename(event, "v1", |name| RENAMED.iter().find(|(_, view)| *view == name).map(|(stored, _)| *stored))
}

fn rename(event: &Value, api_version: &str, other: impl Fn(&str) -> Option<&'static str>) -> Value {
    let mut out = Map::new();
    for (name, value) in event.as_object().into_iter().flatten() {
        out.insert(other(name).unwrap_or(name).to_owned(), value.clone());
    }
    out.insert("apiVersion".into(), api_version.into());
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_view_of_an_event_and_back_is_the_event() {
        let stored = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m",
            "involvedObject": {"name": "p"}, "count": 2, "source": {"component": "kubelet"}, "type": "Normal"});
        let view = from_storage(&stored);
        assert_eq!(
            (&view["note"], &view["regarding"]["name"], &view["deprecatedCount"]),
            (&json!("m"), &json!("p"), &json!(2))
        );
        assert_eq!(to_storage(&view), stored);
    }
}
