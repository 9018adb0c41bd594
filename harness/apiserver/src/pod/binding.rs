//! The binding subresource: a Pod gets its node.
//! Source: k/k pkg/registry/core/pod/storage/storage.go BindingREST.

use podlab_api::{ApiError, Object, Reason};
use podlab_store::StoreError;
use podlab_timeline::Stage;
use serde_json::{Value, json};

use super::set_condition;
use crate::{
    context::Context,
    errors::{details, from_store, not_found},
    field::Errors,
    kinds::Kind,
    machine::pod_key,
    server::ApiServer,
    tree::{at, entries, has, list, map_at, remove, text},
};

impl ApiServer {
    /// Binds a Pod to the node a Binding names. Dropping the future may still bind it.
    ///
    /// # Errors
    /// 404, 409 with upstream's sentence when the Pod cannot be bound, 422 for a Binding without a target.
    pub(crate) async fn bind_pod(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        binding: &Value,
    ) -> Result<Value, ApiError> {
        let node = text(binding, "target.name");
        let mut errors = Errors::default();
        let target_kind = text(binding, "target.kind");
        if !matches!(target_kind, "" | "Node") {
            errors.not_supported("target.kind", target_kind, &["Node", "<empty>"]);
        }
        if node.is_empty() {
            errors.required("target.name", "");
        }
        errors.into_result("Binding", "", name)?;
        let key = kind.key(namespace, name);
        loop {
            let current = self.store.get(&key).ok_or_else(|| not_found(kind, name))?;
            let old = &current.object.0;
            let wanted = text(binding, "metadata.uid");
            if !wanted.is_empty() && wanted != text(old, "metadata.uid") {
                let have = text(old, "metadata.uid");
                return Err(refused(
                    name,
                    &format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {have}"),
                ));
            }
            if has(old, "metadata.deletionTimestamp") {
                return Err(refused(name, &format!("pod {name} is being deleted, cannot be assigned to a host")));
            }
            let has_node = text(old, "spec.nodeName");
            if !has_node.is_empty() {
                return Err(refused(name, &format!("pod {name} is already assigned to node {has_node:?}")));
            }
            if !list(old, "spec.schedulingGates").is_empty() {
                return Err(refused(name, &format!("pod {name} has non-empty .spec.schedulingGates")));
            }
            let mut new = old.clone();
            crate::tree::put(&mut new, "spec.nodeName", node);
            remove(&mut new, "status.nominatedNodeName");
            for field in ["annotations", "labels"] {
                let path = format!("metadata.{field}");
                let added: Vec<_> = entries(binding, &path).map(|(k, v)| (k.clone(), v.clone())).collect();
                if !added.is_empty() {
                    map_at(&mut new, &path).extend(added);
                }
            }
            self.copy_topology(node, &mut new);
            set_condition(
                &mut new,
                json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
                    "observedGeneration": at(old, "metadata.generation")}),
                &self.now_text(),
            );
            if cx.dry_run {
                return Ok(success());
            }
            match self.store.update(&key, current.revision, Object(new)).await {
                Ok(stored) => {
                    self.recorder.stage(&pod_key(&stored.object.0), Stage::Bound);
                    return Ok(success());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(from_store(kind, name, e)),
            }
        }
    }

    /// The node's zone and region become labels of the Pod. Source: k/k plugin/pkg/admission/podtopologylabels.
    fn copy_topology(&self, node: &str, pod: &mut Value) {
        let nodes = crate::kinds::registry().core("nodes");
        let Some(node) = self.store.get(&nodes.key(None, node)) else { return };
        for label in ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"] {
            if let Some(value) = at(&node.object.0, "metadata.labels").get(label) {
                map_at(pod, "metadata.labels").insert(label.into(), value.clone());
            }
        }
    }
}

/// 409 on `pods/binding`.
fn refused(name: &str, why: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
    let mut error = ApiError::new(Reason::Conflict, message);
    error.details = Some(details("pods/binding", "", name));
    error
}

/// What a write without an object answers.
pub(crate) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
