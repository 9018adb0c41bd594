//! NamespaceLifecycle: nothing is created where there is no namespace, or where it is going away.

use podlab_api::ApiError;
use serde_json::{Value, json};

use crate::{
    errors::{forbidden, not_found},
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{has, text},
};

impl ApiServer {
    pub(super) fn check_namespace(&self, kind: &Kind, namespace: Option<&str>, object: &Value) -> Result<(), ApiError> {
        let Some(namespace) = namespace.filter(|_| kind.resource.namespaced) else { return Ok(()) };
        let namespaces = registry().core("namespaces");
        let Some(found) = self.store.get(&namespaces.key(None, namespace)) else {
            return Err(not_found(namespaces, namespace));
        };
        if !has(&found.object.0, "metadata.deletionTimestamp") {
            return Ok(());
        }
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = forbidden(kind, text(object, "metadata.name"), &why);
        if let Some(details) = &mut error.details {
            let message = format!("namespace {namespace} is being terminated");
            details["causes"] =
                json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
        }
        Err(error)
    }
}
