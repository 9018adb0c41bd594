//! The API of a foreign cluster as one trial sees it: its own namespace under the name `default`, its own nodes, and no
//! object that anybody else made. What the trial may not touch is refused before it is sent.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object, Reason, ResourceRef};
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream, WatchType,
};
use serde_json::{Value, json};

use super::mapping::{Mapping, OURS, RUN_LABEL};

/// The view of one trial.
pub(crate) struct Mapped {
    api: Arc<dyn Api>,
    mapping: Mapping,
    made: Arc<Mutex<BTreeSet<(ResourceRef, String)>>>,
}

impl Mapped {
    /// A view through `mapping`.
    pub(crate) fn new(api: Arc<dyn Api>, mapping: Mapping) -> Self {
        Self { api, mapping, made: Arc::default() }
    }

    /// What the trial made outside its namespace.
    pub(crate) fn made(&self) -> Arc<Mutex<BTreeSet<(ResourceRef, String)>>> {
        self.made.clone()
    }

    fn collection(&self, c: &Collection) -> Collection {
        let namespace = match &c.namespace {
            Some(n) => Some(self.mapping.namespace_out(n)),
            None => c.resource.namespaced.then(|| self.mapping.namespace.clone()),
        };
        Collection { resource: c.resource, namespace }
    }

    fn target(&self, t: &Target) -> Target {
        let name = if t.collection.resource.kind == "Node" { self.mapping.node_out(&t.name) } else { t.name.clone() };
        Target { collection: self.collection(&t.collection), name, subresource: t.subresource }
    }

    fn back(&self, object: &Object) -> Arc<Object> {
        Arc::new(self.mapping.back(object))
    }

    /// Whether the trial sees an object that no namespace of its own holds.
    fn sees(&self, resource: &ResourceRef, object: &Object) -> bool {
        let ours = || object.str_at(&["metadata", "labels", RUN_LABEL]) == Some(&self.mapping.run);
        match resource.kind {
            _ if resource.namespaced => true,
            "Node" => self.mapping.node_back(object.name()).is_some(),
            "PersistentVolume" => {
                ours() || object.str_at(&["spec", "claimRef", "namespace"]) == Some(&self.mapping.namespace)
            }
            "VolumeAttachment" => false,
            _ => ours(),
        }
    }

    /// Refuses a write to what somebody else made.
    async fn may_write(&self, target: &Target, creates: bool) -> Result<(), ApiError> {
        let c = &target.collection;
        let refuse = |what: String| Err(ApiError::new(Reason::Forbidden, what));
        if c.resource.namespaced {
            let namespace = c.namespace.as_deref().unwrap_or(OURS);
            let own = namespace == OURS
                || self.lock().contains(&(ResourceRef::of::<podlab_api::core::Namespace>(), namespace.to_owned()));
            return if own { Ok(()) } else { refuse(format!("namespace {namespace} is not this trial's")) };
        }
        match self.api.get(&self.target(target)).await {
            Ok(there) if there.str_at(&["metadata", "labels", RUN_LABEL]) == Some(&self.mapping.run) => Ok(()),
            Ok(_) => refuse(format!("{} {} is somebody else's on this cluster", c.resource.kind, target.name)),
            Err(e) if e.is_not_found() && creates => {
                self.lock().insert((c.resource, target.name.clone()));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<(ResourceRef, String)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object to send: their names, and our label on what is not in a namespace of ours.
    fn out(&self, resource: &ResourceRef, object: &Value) -> Value {
        let mut out = self.mapping.out(object);
        if !resource.namespaced
            && let Some(map) = out.as_object_mut()
        {
            let meta = map.entry("metadata").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                let labels = meta.entry("labels").or_insert_with(|| json!({}));
                labels[RUN_LABEL] = self.mapping.run.as_str().into();
            }
        }
        out
    }
}

#[async_trait]
impl Api for Mapped {
    async fn get(&self, target: &Target) -> Result<Arc<Object>, ApiError> {
        Ok(self.back(&*self.api.get(&self.target(target)).await?))
    }

    async fn list(&self, collection: &Collection, options: &ListOptions) -> Result<ObjectList, ApiError> {
        let mut list = self.api.list(&self.collection(collection), options).await?;
        list.items.retain(|o| self.sees(&collection.resource, o));
        list.items = list.items.iter().map(|o| self.back(o)).collect();
        Ok(list)
    }

    async fn watch(&self, collection: &Collection, options: &WatchOptions) -> Result<WatchStream, ApiError> {
        let stream = self.api.watch(&self.collection(collection), options).await?;
        let view = Self { api: self.api.clone(), mapping: self.mapping.clone(), made: self.made.clone() };
        let resource = collection.resource;
        let shown = stream.filter_map(move |event| {
            let shown = match event {
                Ok(e) if e.kind == WatchType::Bookmark => Some(Ok(e)),
                Ok(mut e) if view.sees(&resource, &e.object) => {
                    e.object = view.back(&e.object);
                    Some(Ok(e))
                }
                Ok(_) => None,
                Err(e) => Some(Err(e)),
            };
            std::future::ready(shown)
        });
        Ok(shown.boxed())
    }

    async fn create(
        &self,
        collection: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        let name = parent.map_or_else(|| object.name().to_owned(), |(name, _)| name.to_owned());
        let target = Target { collection: collection.clone(), name, subresource: None };
        self.may_write(&target, parent.is_none()).await?;
        let body = Object(self.out(&collection.resource, &object.0));
        Ok(self.back(&*self.api.create(&self.collection(collection), parent, body).await?))
    }

    async fn update(&self, target: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        self.may_write(target, false).await?;
        let body = Object(self.out(&target.collection.resource, &object.0));
        Ok(self.back(&*self.api.update(&self.target(target), body).await?))
    }

    async fn patch(&self, target: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        let applies = matches!(kind, PatchKind::Apply { .. });
        self.may_write(target, applies).await?;
        let body = if applies { self.out(&target.collection.resource, body) } else { self.mapping.out(body) };
        Ok(self.back(&*self.api.patch(&self.target(target), kind, &body).await?))
    }

    async fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.may_write(target, false).await?;
        Ok(self.back(&*self.api.delete(&self.target(target), options).await?))
    }

    async fn delete_collection(
        &self,
        collection: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        if !collection.resource.namespaced {
            return Err(ApiError::new(Reason::Forbidden, "a trial does not empty collections of the whole cluster"));
        }
        let target = Target { collection: collection.clone(), name: String::new(), subresource: None };
        self.may_write(&target, false).await?;
        self.api.delete_collection(&self.collection(collection), list, options).await
    }
}
