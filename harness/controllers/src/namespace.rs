//! Namespace deletion: contents first, Pods before the rest, then the finalizer.
//! Source: k/k pkg/controller/namespace/deletion/namespaced_resources_deleter.go.

use std::time::Duration;

use async_trait::async_trait;
use podlab_api::{ApiError, Object, ResourceRef, core::Namespace};
use podlab_client::{Client, Collection, DeleteOptions, ListOptions, Target};
use podlab_clock::Clock;
use serde_json::json;

use crate::work::{Again, Key, Reconcile};

/// How long a namespace is left alone after its deletion was asked for, so that what was created in it at the same
/// moment is seen. Source: k/k pkg/controller/namespace/namespace_controller.go namespaceDeletionGracePeriod.
const GRACE: Duration = Duration::from_secs(5);
/// How soon to look again while something is still terminating.
const RECHECK: Duration = Duration::from_millis(200);

macro_rules! namespaced {
    ($($group:literal $version:literal $plural:literal $kind:literal),* $(,)?) => {
        &[$(ResourceRef { group: $group, version: $version, plural: $plural, kind: $kind, namespaced: true }),*]
    };
}

/// Everything a namespace can hold, Pods first. Events go last: deleting the rest makes some.
const CONTENTS: &[ResourceRef] = namespaced![
    "" "v1" "pods" "Pod",
    "apps" "v1" "deployments" "Deployment",
    "apps" "v1" "replicasets" "ReplicaSet",
    "apps" "v1" "statefulsets" "StatefulSet",
    "apps" "v1" "daemonsets" "DaemonSet",
    "batch" "v1" "cronjobs" "CronJob",
    "batch" "v1" "jobs" "Job",
    "" "v1" "replicationcontrollers" "ReplicationController",
    "" "v1" "services" "Service",
    "" "v1" "endpoints" "Endpoints",
    "discovery.k8s.io" "v1" "endpointslices" "EndpointSlice",
    "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim",
    "" "v1" "configmaps" "ConfigMap",
    "" "v1" "secrets" "Secret",
    "" "v1" "serviceaccounts" "ServiceAccount",
    "" "v1" "resourcequotas" "ResourceQuota",
    "" "v1" "limitranges" "LimitRange",
    "" "v1" "podtemplates" "PodTemplate",
    "policy" "v1" "poddisruptionbudgets" "PodDisruptionBudget",
    "networking.k8s.io" "v1" "networkpolicies" "NetworkPolicy",
    "networking.k8s.io" "v1" "ingresses" "Ingress",
    "rbac.authorization.k8s.io" "v1" "rolebindings" "RoleBinding",
    "rbac.authorization.k8s.io" "v1" "roles" "Role",
    "coordination.k8s.io" "v1" "leases" "Lease",
    "resource.k8s.io" "v1" "resourceclaims" "ResourceClaim",
    "resource.k8s.io" "v1" "resourceclaimtemplates" "ResourceClaimTemplate",
    "" "v1" "events" "Event",
];

/// The controller.
pub(crate) struct NamespaceDeleter {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
}

#[async_trait]
impl Reconcile for NamespaceDeleter {
    fn name(&self) -> &'static str {
        "namespace"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let Some(namespace) = self.client.all::<Namespace>().get_opt(name).await? else { return Ok(Again::OnChange) };
        let Some(asked) = namespace.metadata.deletion_timestamp.as_ref() else { return Ok(Again::OnChange) };
        let waited = Duration::try_from(self.clock.wall().duration_since(asked.0)).unwrap_or_default();
        if let Some(left) = GRACE.checked_sub(waited).filter(|left| !left.is_zero()) {
            return Ok(Again::After(left));
        }
        let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.clone()).unwrap_or_default();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            return Ok(Again::OnChange);
        }
        if !self.empty(name).await? {
            return Ok(Again::After(RECHECK));
        }
        let rest: Vec<_> = finalizers.iter().filter(|f| *f != "kubernetes").collect();
        let mut object = Object::from_typed(&namespace)?;
        if let Some(map) = object.0.as_object_mut() {
            map.insert("spec".into(), json!({"finalizers": rest}));
        }
        let collection = Collection { resource: ResourceRef::of::<Namespace>(), namespace: None };
        let target = Target { collection, name: name.clone(), subresource: Some("finalize") };
        match self.client.raw().update(&target, object).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(Again::OnChange),
        }
    }
}

impl NamespaceDeleter {
    /// Deletes what there is; true when nothing is left.
    async fn empty(&self, namespace: &str) -> Result<bool, ApiError> {
        let mut left = false;
        for resource in CONTENTS {
            let collection = Collection { resource: *resource, namespace: Some(namespace.to_owned()) };
            let all = ListOptions::default();
            let items = self.client.raw().list(&collection, &all).await?.items;
            if items.is_empty() {
                continue;
            }
            if items.iter().any(|o| o.at(&["metadata", "deletionTimestamp"]).is_none()) {
                self.client.raw().delete_collection(&collection, &all, &DeleteOptions::default()).await?;
            }
            let still = !self.client.raw().list(&collection, &all).await?.items.is_empty();
            left |= still;
            // Pods go before what they use.
            if still && resource.plural == "pods" {
                return Ok(false);
            }
        }
        Ok(!left)
    }
}
