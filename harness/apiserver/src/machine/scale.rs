//! The scale subresource: replicas of a workload as an `autoscaling/v1` Scale.

use std::sync::Arc;

use podlab_api::{ApiError, Object};
use podlab_store::Stored;
use serde_json::{Value, json};

use super::Change;
use crate::{
    context::Context,
    kinds::Kind,
    patch,
    server::ApiServer,
    tree::{at, entries, int, list, text},
};

impl ApiServer {
    /// The Scale of a workload.
    ///
    /// # Errors
    /// 404.
    pub(crate) fn get_scale(&self, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<Arc<Stored>, ApiError> {
        let stored = self.get_object(kind, namespace, name)?;
        Ok(Arc::new(Stored::detached(Object(scale_of(&stored.object.0)), stored.revision)))
    }

    /// Sets the replicas of a workload.
    ///
    /// # Errors
    /// 404, 400 for a body without replicas, 409 and 422 as for updates.
    pub(crate) async fn update_scale(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        change: &Change,
    ) -> Result<Arc<Stored>, ApiError> {
        let current = self.get_object(kind, namespace, name)?;
        let scale = match change {
            Change::Put(body) => body.clone(),
            Change::Patch(how, body) => {
                patch::apply(kind, &scale_of(&current.object.0), how, body, None, &self.now_text())?
            }
        };
        let replicas = int(&scale, "spec.replicas").unwrap_or(0);
        let mut body = json!({"spec": {"replicas": replicas}});
        if let (Change::Put(_), given) = (change, text(&scale, "metadata.resourceVersion"))
            && !given.is_empty()
        {
            body["metadata"] = json!({"resourceVersion": given});
        }
        let merge = Change::Patch(podlab_api::request::PatchKind::Merge, body);
        let written = self.update_object(cx, kind, namespace, name, None, &merge).await?;
        Ok(Arc::new(Stored::detached(Object(scale_of(&written.stored.object.0)), written.stored.revision)))
    }
}

fn scale_of(workload: &Value) -> Value {
    let meta = at(workload, "metadata");
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[field] = at(meta, field).clone();
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": int(workload, "spec.replicas").unwrap_or(0)},
        "status": {
            "replicas": int(workload, "status.replicas").unwrap_or(0),
            "selector": selector_text(at(workload, "spec.selector")),
        },
    })
}

/// A selector as the text clients send back. Plain maps are those of ReplicationControllers.
pub(crate) fn selector_text(selector: &Value) -> String {
    let has_fields = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let path = if has_fields { "matchLabels" } else { "" };
    let labels: Vec<(&String, &Value)> = if path.is_empty() {
        selector.as_object().into_iter().flatten().collect()
    } else {
        entries(selector, path).collect()
    };
    let mut parts: Vec<String> =
        labels.into_iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    for e in list(selector, "matchExpressions") {
        let key = text(e, "key");
        let values = list(e, "values").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        parts.push(match text(e, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}
