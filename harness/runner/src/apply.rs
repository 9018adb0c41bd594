//! Applying manifests: bounded YAML documents, sent as server-side apply.

use podlab_api::{ApiError, Object, ResourceRef};
use podlab_client::{Client, Collection, PatchKind, Target};
use serde_json::Value;

use crate::kept;

/// Why a manifest could not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// Not YAML, or not an object.
    #[error("manifest document {n}: {why}")]
    Parse {
        /// Which document, from 1.
        n: usize,
        /// What is wrong.
        why: String,
    },
    /// A kind the runner does not know.
    #[error("manifest document {n}: kind {kind:?} of {api_version:?} is not known here")]
    Kind {
        /// Which document.
        n: usize,
        /// `apiVersion`.
        api_version: String,
        /// `kind`.
        kind: String,
    },
    /// A field is not there any more.
    #[error("{what}: the API did not keep {field}; is it misspelled?")]
    Dropped {
        /// Kind and name.
        what: String,
        /// Which.
        field: String,
    },
    /// The API refused it.
    #[error("{what}")]
    Api {
        /// Kind and name.
        what: String,
        /// Its answer.
        #[source]
        source: ApiError,
    },
}

macro_rules! known {
    ($($group:literal $version:literal $plural:literal $kind:literal $namespaced:literal),* $(,)?) => {
        &[$(ResourceRef { group: $group, version: $version, plural: $plural, kind: $kind, namespaced: $namespaced }),*]
    };
}

const KNOWN: &[ResourceRef] = known![
    "" "v1" "pods" "Pod" true,
    "" "v1" "nodes" "Node" false,
    "" "v1" "services" "Service" true,
    "" "v1" "configmaps" "ConfigMap" true,
    "" "v1" "secrets" "Secret" true,
    "" "v1" "serviceaccounts" "ServiceAccount" true,
    "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim" true,
    "" "v1" "persistentvolumes" "PersistentVolume" false,
    "" "v1" "namespaces" "Namespace" false,
    "" "v1" "resourcequotas" "ResourceQuota" true,
    "" "v1" "limitranges" "LimitRange" true,
    "apps" "v1" "deployments" "Deployment" true,
    "apps" "v1" "replicasets" "ReplicaSet" true,
    "apps" "v1" "daemonsets" "DaemonSet" true,
    "apps" "v1" "statefulsets" "StatefulSet" true,
    "batch" "v1" "jobs" "Job" true,
    "batch" "v1" "cronjobs" "CronJob" true,
    "storage.k8s.io" "v1" "storageclasses" "StorageClass" false,
    "scheduling.k8s.io" "v1" "priorityclasses" "PriorityClass" false,
    "policy" "v1" "poddisruptionbudgets" "PodDisruptionBudget" true,
    "rbac.authorization.k8s.io" "v1" "clusterrolebindings" "ClusterRoleBinding" false,
];

/// The resource of a kind.
pub(crate) fn resource(kind: &str) -> Option<ResourceRef> {
    KNOWN.iter().find(|r| r.kind == kind).copied()
}

/// Applies every document of a manifest in order.
pub(crate) async fn apply(client: &Client, namespace: &str, yaml: &str) -> Result<(), ApplyError> {
    each(client, namespace, yaml, false).await
}

/// Creates every document of a manifest in order; what is there already is refused.
pub(crate) async fn create(client: &Client, namespace: &str, yaml: &str) -> Result<(), ApplyError> {
    each(client, namespace, yaml, true).await
}

async fn each(client: &Client, namespace: &str, yaml: &str, create: bool) -> Result<(), ApplyError> {
    // Separators are lines of their own in YAML; each document then has the parser's whole budget.
    let documents =
        format!("\n{yaml}").replace("\n---\n", "\n\u{0}").split('\u{0}').map(str::to_owned).collect::<Vec<_>>();
    for (i, text) in documents.iter().enumerate().filter(|(_, t)| !t.trim().is_empty()) {
        let n = i + 1;
        let tree: Value = serde_saphyr::from_str(text).map_err(|e| ApplyError::Parse { n, why: e.to_string() })?;
        apply_one(client, namespace, n, &tree, create).await?;
    }
    Ok(())
}

async fn apply_one(client: &Client, namespace: &str, n: usize, tree: &Value, create: bool) -> Result<(), ApplyError> {
    let text = |pointer: &str| tree.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let Some(resource) = KNOWN.iter().find(|r| r.api_version() == api_version && r.kind == kind) else {
        return Err(ApplyError::Kind { n, api_version, kind });
    };
    if name.is_empty() {
        return Err(ApplyError::Parse { n, why: format!("{kind} without metadata.name") });
    }
    let own = text("/metadata/namespace");
    let namespace = if own.is_empty() { namespace.to_owned() } else { own };
    let collection = Collection { resource: *resource, namespace: resource.namespaced.then_some(namespace) };
    let target = Target { collection, name: name.clone(), subresource: None };
    let how = PatchKind::Apply { manager: "podlab".into(), force: true };
    let sent = if create {
        client.raw().create(&target.collection, None, Object(tree.clone())).await
    } else {
        client.raw().patch(&target, &how, tree).await
    };
    match sent {
        Err(source) => Err(ApplyError::Api { what: format!("{kind} {name}"), source }),
        Ok(kept) => match kept::dropped(tree, &kept.0, false) {
            Some(field) => Err(ApplyError::Dropped { what: format!("{kind} {name}"), field }),
            None => Ok(()),
        },
    }
}
