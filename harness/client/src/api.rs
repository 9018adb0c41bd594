//! The verbs of the Kubernetes API as a trait.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
pub use podlab_api::request::{DeleteOptions, ListOptions, PatchKind, WatchEvent, WatchOptions, WatchType};
use podlab_api::{ApiError, Object, ResourceRef};
use serde_json::Value;

/// A collection: a resource, in one namespace or (for `None`) in all of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collection {
    /// Which resource.
    pub resource: ResourceRef,
    /// Which namespace; `None` for cluster-scoped resources and for all namespaces.
    pub namespace: Option<String>,
}

/// One object, or one of its subresources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it lives.
    pub collection: Collection,
    /// `metadata.name`.
    pub name: String,
    /// e.g. `status`, `binding`, `token`.
    pub subresource: Option<&'static str>,
}

/// A consistent list.
#[derive(Debug, Clone, Default)]
pub struct ObjectList {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// Revision of the snapshot; a watch from here misses nothing.
    pub resource_version: u64,
}

/// A watch. Ends when the server closes it; yields an expired [`ApiError`] when the client must list again.
pub type WatchStream = BoxStream<'static, Result<WatchEvent, ApiError>>;

/// The API, as a component sees it. Every method fails with the server's own [`ApiError`]; a transport failure is an
/// `InternalError` or `ServiceUnavailable`. Dropping a write midway leaves it unknown whether it happened.
#[async_trait]
pub trait Api: Send + Sync + 'static {
    /// Reads one object.
    async fn get(&self, target: &Target) -> Result<Arc<Object>, ApiError>;
    /// Lists a collection at one revision.
    async fn list(&self, collection: &Collection, options: &ListOptions) -> Result<ObjectList, ApiError>;
    /// Watches a collection.
    async fn watch(&self, collection: &Collection, options: &WatchOptions) -> Result<WatchStream, ApiError>;
    /// Creates an object; with `subresource` POSTs to it (`binding`, `eviction`, `token`), `name` naming the parent.
    async fn create(
        &self,
        collection: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError>;
    /// Replaces an object (or its subresource). A set `resourceVersion` must match.
    async fn update(&self, target: &Target, object: Object) -> Result<Arc<Object>, ApiError>;
    /// Patches an object (or its subresource).
    async fn patch(&self, target: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError>;
    /// Deletes an object; returns it, or the Status object of the server.
    async fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Arc<Object>, ApiError>;
    /// Deletes what a collection holds and the selectors match.
    async fn delete_collection(
        &self,
        collection: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError>;
}
