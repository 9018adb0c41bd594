//! The typed face of [`Api`].

use std::{marker::PhantomData, sync::Arc};

use futures::{Stream, StreamExt};
use podlab_api::{ApiError, KubeType, Object, ResourceRef};
use serde_json::Value;

use crate::{Api, Collection, DeleteOptions, ListOptions, PatchKind, Target, WatchOptions, WatchType};

/// A handle on the API. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<dyn Api>);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// A client over any implementation of the API.
    pub fn new(api: Arc<dyn Api>) -> Self {
        Self(api)
    }

    /// The untyped API.
    pub fn raw(&self) -> &Arc<dyn Api> {
        &self.0
    }

    /// Resource `K` in a namespace.
    pub fn namespaced<K: KubeType>(&self, namespace: &str) -> Resource<K> {
        self.resource(Some(namespace))
    }

    /// Resource `K` cluster-wide: a cluster-scoped resource, or all namespaces of a namespaced one.
    pub fn all<K: KubeType>(&self) -> Resource<K> {
        self.resource(None)
    }

    fn resource<K: KubeType>(&self, namespace: Option<&str>) -> Resource<K> {
        let collection = Collection { resource: ResourceRef::of::<K>(), namespace: namespace.map(str::to_owned) };
        Resource { api: self.0.clone(), collection, kind: PhantomData }
    }
}

/// One typed collection.
#[derive(Clone)]
pub struct Resource<K> {
    api: Arc<dyn Api>,
    collection: Collection,
    kind: PhantomData<fn() -> K>,
}

/// A typed watch event.
#[derive(Debug, Clone)]
pub struct TypedEvent<K> {
    /// What happened.
    pub kind: WatchType,
    /// The object after the change; for `Deleted` its last state.
    pub object: K,
}

impl<K: KubeType> Resource<K> {
    fn target(&self, name: &str, subresource: Option<&'static str>) -> Target {
        Target { collection: self.collection.clone(), name: name.to_owned(), subresource }
    }

    /// The untyped collection.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// Reads one object.
    ///
    /// # Errors
    /// The server's error, or `BadRequest` when the object does not fit the type.
    pub async fn get(&self, name: &str) -> Result<K, ApiError> {
        self.api.get(&self.target(name, None)).await?.to_typed()
    }

    /// Reads one object; `None` when it is not there.
    ///
    /// # Errors
    /// Any error but NotFound.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>, ApiError> {
        match self.get(name).await {
            Err(e) if e.is_not_found() => Ok(None),
            other => other.map(Some),
        }
    }

    /// Lists the collection; objects that do not fit the type are an error.
    ///
    /// # Errors
    /// The server's error, or `BadRequest` naming the first object that does not fit.
    pub async fn list(&self, options: &ListOptions) -> Result<(Vec<K>, u64), ApiError> {
        let list = self.api.list(&self.collection, options).await?;
        let items = list.items.iter().map(|o| o.to_typed()).collect::<Result<_, _>>()?;
        Ok((items, list.resource_version))
    }

    /// Watches the collection. Bookmarks are left out.
    ///
    /// # Errors
    /// When the watch cannot be opened; later errors come through the stream.
    pub async fn watch(
        &self,
        options: &WatchOptions,
    ) -> Result<impl Stream<Item = Result<TypedEvent<K>, ApiError>> + Send + use<K>, ApiError> {
        let stream = self.api.watch(&self.collection, options).await?;
        Ok(stream.filter_map(|event| async move {
            match event {
                Err(e) => Some(Err(e)),
                Ok(e) if e.kind == WatchType::Bookmark => None,
                Ok(e) => Some(e.object.to_typed().map(|object| TypedEvent { kind: e.kind, object })),
            }
        }))
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The server's error.
    pub async fn create(&self, object: &K) -> Result<K, ApiError> {
        self.api.create(&self.collection, None, Object::from_typed(object)?).await?.to_typed()
    }

    /// POSTs a body to a subresource such as `binding`, `eviction` or `token`.
    ///
    /// # Errors
    /// The server's error.
    pub async fn create_sub(
        &self,
        name: &str,
        subresource: &'static str,
        body: Value,
    ) -> Result<Arc<Object>, ApiError> {
        self.api.create(&self.collection, Some((name, subresource)), Object(body)).await
    }

    /// Replaces an object; its `resourceVersion`, when set, must match.
    ///
    /// # Errors
    /// The server's error.
    pub async fn update(&self, object: &K) -> Result<K, ApiError> {
        let name = object.metadata().name.clone().unwrap_or_default();
        self.api.update(&self.target(&name, None), Object::from_typed(object)?).await?.to_typed()
    }

    /// Replaces the status of an object; its `resourceVersion`, when set, must match.
    ///
    /// # Errors
    /// The server's error.
    pub async fn update_status(&self, object: &K) -> Result<K, ApiError> {
        let name = object.metadata().name.clone().unwrap_or_default();
        self.api.update(&self.target(&name, Some("status")), Object::from_typed(object)?).await?.to_typed()
    }

    /// Patches an object.
    ///
    /// # Errors
    /// The server's error.
    pub async fn patch(&self, name: &str, kind: &PatchKind, body: &Value) -> Result<K, ApiError> {
        self.api.patch(&self.target(name, None), kind, body).await?.to_typed()
    }

    /// Patches the status of an object.
    ///
    /// # Errors
    /// The server's error.
    pub async fn patch_status(&self, name: &str, kind: &PatchKind, body: &Value) -> Result<K, ApiError> {
        self.api.patch(&self.target(name, Some("status")), kind, body).await?.to_typed()
    }

    /// Deletes an object. A graceful deletion returns before the object is gone.
    ///
    /// # Errors
    /// The server's error.
    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        self.api.delete(&self.target(name, None), options).await.map(drop)
    }
}
