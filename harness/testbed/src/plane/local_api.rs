//! [`Api`] on an API server of the same process: no HTTP, no JSON text.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object};
use podlab_apiserver as server;
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream,
};
use serde_json::Value;

/// The in-process client.
#[derive(Debug)]
pub struct LocalApi(Arc<server::ApiServer>);

impl LocalApi {
    /// A client of `server` with all rights.
    pub fn new(server: Arc<server::ApiServer>) -> Self {
        Self(server)
    }
}

#[async_trait]
impl Api for LocalApi {
    async fn get(&self, t: &Target) -> Result<Arc<Object>, ApiError> {
        self.0.get(&t.collection.resource, t.collection.namespace.as_deref(), &t.name)
    }

    async fn list(&self, c: &Collection, options: &ListOptions) -> Result<ObjectList, ApiError> {
        let (items, resource_version) = self.0.list(&c.resource, c.namespace.as_deref(), options)?;
        Ok(ObjectList { items, resource_version })
    }

    async fn watch(&self, c: &Collection, o: &WatchOptions) -> Result<WatchStream, ApiError> {
        Ok(self.0.watch(&c.resource, c.namespace.as_deref(), o)?.boxed())
    }

    async fn create(
        &self,
        c: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        self.0.create(&c.resource, c.namespace.as_deref(), parent, object).await
    }

    async fn update(&self, t: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        self.0.update(&t.collection.resource, t.collection.namespace.as_deref(), &t.name, t.subresource, object).await
    }

    async fn patch(&self, t: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        let namespace = t.collection.namespace.as_deref();
        self.0.patch(&t.collection.resource, namespace, &t.name, t.subresource, kind.clone(), body.clone()).await
    }

    async fn delete(&self, t: &Target, options: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.0.delete(&t.collection.resource, t.collection.namespace.as_deref(), &t.name, options).await
    }

    async fn delete_collection(
        &self,
        c: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        self.0.delete_collection(&c.resource, c.namespace.as_deref(), list, options).await
    }
}
