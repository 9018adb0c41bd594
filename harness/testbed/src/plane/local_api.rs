//! [`Api`] on an API server of the same process: no HTTP, no JSON text.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object};
use podlab_apiserver as server;
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchEvent, WatchOptions, WatchStream,
    WatchType,
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

fn list_options(o: &ListOptions) -> server::ListOptions {
    server::ListOptions { label_selector: o.label_selector.clone(), field_selector: o.field_selector.clone() }
}

fn delete_options(o: &DeleteOptions) -> server::DeleteOptions {
    server::DeleteOptions {
        grace_period: o.grace_period,
        uid: o.uid.clone(),
        resource_version: o.resource_version,
        propagation: o.propagation,
    }
}

fn event(e: server::WatchEvent) -> WatchEvent {
    let kind = match e.kind {
        server::WatchType::Added => WatchType::Added,
        server::WatchType::Modified => WatchType::Modified,
        server::WatchType::Deleted => WatchType::Deleted,
        server::WatchType::Bookmark => WatchType::Bookmark,
    };
    WatchEvent { kind, object: e.object }
}

#[async_trait]
impl Api for LocalApi {
    async fn get(&self, t: &Target) -> Result<Arc<Object>, ApiError> {
        self.0.get(&t.collection.resource, t.collection.namespace.as_deref(), &t.name)
    }

    async fn list(&self, c: &Collection, options: &ListOptions) -> Result<ObjectList, ApiError> {
        let (items, resource_version) = self.0.list(&c.resource, c.namespace.as_deref(), &list_options(options))?;
        Ok(ObjectList { items, resource_version })
    }

    async fn watch(&self, c: &Collection, o: &WatchOptions) -> Result<WatchStream, ApiError> {
        let options = server::WatchOptions {
            label_selector: o.label_selector.clone(),
            field_selector: o.field_selector.clone(),
            resource_version: o.resource_version,
        };
        let stream = self.0.watch(&c.resource, c.namespace.as_deref(), &options)?;
        Ok(stream.map(|e| e.map(event)).boxed())
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
        let kind = match kind {
            PatchKind::Json => server::PatchKind::Json,
            PatchKind::Merge => server::PatchKind::Merge,
            PatchKind::Strategic => server::PatchKind::Strategic,
            PatchKind::Apply { manager, force } => server::PatchKind::Apply { manager: manager.clone(), force: *force },
        };
        let namespace = t.collection.namespace.as_deref();
        self.0.patch(&t.collection.resource, namespace, &t.name, t.subresource, kind, body.clone()).await
    }

    async fn delete(&self, t: &Target, options: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.0
            .delete(&t.collection.resource, t.collection.namespace.as_deref(), &t.name, &delete_options(options))
            .await
    }

    async fn delete_collection(
        &self,
        c: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        self.0
            .delete_collection(&c.resource, c.namespace.as_deref(), &list_options(list), &delete_options(options))
            .await
    }
}
