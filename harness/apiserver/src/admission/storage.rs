//! Plugins for storage: DefaultStorageClass, StorageObjectInUseProtection, PersistentVolumeClaimResize.

use podlab_api::ApiError;
use serde_json::Value;

use crate::{
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, has, list_at, put, text, yes},
};

/// A claim or volume is kept while it is in use.
pub(super) fn protect(object: &mut Value, finalizer: &str) {
    let held = list_at(object, "metadata.finalizers");
    if !held.iter().any(|f| f == finalizer) {
        held.push(finalizer.into());
    }
}

impl ApiServer {
    /// A claim that names no class gets the default one, the newest if there are several.
    pub(super) fn default_class(&self, claim: &mut Value) {
        let annotation = "volume.beta.kubernetes.io/storage-class";
        if has(claim, "spec.storageClassName") || at(claim, "metadata.annotations").get(annotation).is_some() {
            return;
        }
        let Some(classes) = registry().by_plural("storage.k8s.io", "v1", "storageclasses") else { return };
        let Ok(listing) = self.store.list(&classes.prefix, None) else { return };
        let is_default = |o: &Value| {
            let mark = at(o, "metadata.annotations").get("storageclass.kubernetes.io/is-default-class");
            mark.and_then(Value::as_str) == Some("true")
        };
        let defaults = listing.items.iter().map(|(_, s)| &s.object.0).filter(|o| is_default(o));
        let newest = defaults.max_by(|a, b| {
            let time = |o: &Value| text(o, "metadata.creationTimestamp").to_owned();
            // Of two equally old ones the first by name is taken.
            time(a).cmp(&time(b)).then_with(|| text(b, "metadata.name").cmp(text(a, "metadata.name")))
        });
        if let Some(class) = newest {
            put(claim, "spec.storageClassName", text(class, "metadata.name"));
        }
    }

    /// A claim may grow only if its class allows it.
    pub(super) fn check_expansion(&self, kind: &Kind, old: &Value, new: &Value) -> Result<(), ApiError> {
        let size = |v: &Value| {
            let text = at(v, "spec.resources.requests").get("storage").and_then(Value::as_str);
            text.and_then(|s| podlab_api::parse_quantity(s).ok()).unwrap_or(0)
        };
        if size(new) <= size(old) || text(old, "status.phase") != "Bound" {
            return Ok(());
        }
        let classes = registry().by_plural("storage.k8s.io", "v1", "storageclasses");
        let class = classes.and_then(|c| self.store.get(&c.key(None, text(new, "spec.storageClassName"))));
        if class.is_some_and(|c| yes(&c.object.0, "allowVolumeExpansion")) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(forbidden(kind, text(new, "metadata.name"), why))
    }
}
