//! The Table and PartialObjectMetadata forms of objects.

use podlab_api::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Table;
use crate::tree::{at, text};

/// How much of each object a Table row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// `columnDefinitions`.
pub(crate) fn columns(table: &Table) -> Value {
    table
        .columns
        .iter()
        .map(|(name, kind, priority)| {
            let format = if *name == "Name" { "name" } else { "" };
            let description = if *name == "Name" { "Name must be unique within a namespace." } else { "" };
            json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
        })
        .collect()
}

/// One row.
pub(crate) fn row(table: &Table, object: &Value, now: Timestamp, include: IncludeObject) -> Value {
    let mut row = Map::new();
    row.insert("cells".into(), Value::Array((table.cells)(object, now)));
    if text(object, "kind") == "Pod" {
        let finished = match text(object, "status.phase") {
            "Succeeded" => Some(("Succeeded", "The pod has completed successfully.")),
            "Failed" => Some(("Failed", "The pod failed.")),
            _ => None,
        };
        if let Some((reason, message)) = finished {
            let condition = json!({"type": "Completed", "status": "True", "reason": reason, "message": message});
            row.insert("conditions".into(), json!([condition]));
        }
    }
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => {
            row.insert("object".into(), partial(object));
        }
        IncludeObject::Object => {
            row.insert("object".into(), object.clone());
        }
    }
    Value::Object(row)
}

/// A whole Table around rows.
pub(crate) fn table(columns: Option<Value>, rows: Vec<Value>, list_meta: Value) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
        "columnDefinitions": columns.unwrap_or_else(|| json!([])), "rows": rows,
    })
}

/// The PartialObjectMetadata of an object.
pub(crate) fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": at(object, "metadata")})
}
