//! The server without HTTP: the same verbs as plain calls, for the scheduler and the controllers of the same process.
//!
//! Every call runs as user `system:apiserver-loopback` through the same admission and validation as one over HTTPS.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use podlab_api::{
    ApiError, Object, Reason, ResourceRef,
    request::{DeleteOptions, ListOptions, PatchKind, WatchEvent, WatchOptions, WatchType},
};
use podlab_store::EventKind;
use serde_json::Value;

use crate::{
    context::Context,
    kinds::{Kind, SubKind, registry},
    machine::{Change, DeleteRequest, ListQuery, WatchChange, WatchQuery},
    selector::{FieldSelector, LabelSelector},
    server::ApiServer,
};

impl ApiServer {
    /// Reads one object.
    ///
    /// # Errors
    /// 404.
    pub fn get(&self, resource: &ResourceRef, namespace: Option<&str>, name: &str) -> Result<Arc<Object>, ApiError> {
        Ok(self.get_object(row(resource)?, namespace, name)?.object.clone())
    }

    /// Lists a collection at one revision: the objects by namespace and name, and the revision.
    ///
    /// # Errors
    /// 400 for a selector that cannot be read.
    pub fn list(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        let kind = row(resource)?;
        let query = filter(kind, options.label_selector.as_deref(), options.field_selector.as_deref())?;
        let listed = self.list_objects(kind, namespace, &query)?;
        Ok((listed.items.into_iter().map(|s| s.object.clone()).collect(), listed.revision))
    }

    /// Watches a collection. The stream ends when the server closes; an error is its last item. Dropping it is safe.
    ///
    /// # Errors
    /// 410 for a revision no longer kept, 504 for a future one, 400 for a selector that cannot be read.
    pub fn watch(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        options: &WatchOptions,
    ) -> Result<impl Stream<Item = Result<WatchEvent, ApiError>> + Send + use<>, ApiError> {
        let kind = row(resource)?;
        let filter = filter(kind, options.label_selector.as_deref(), options.field_selector.as_deref())?;
        let query = WatchQuery { filter, revision: options.resource_version, ..WatchQuery::default() };
        let watch = self.watch_objects(kind, namespace, query)?;
        let stream = stream::unfold(watch, |mut watch| async move {
            let event = watch.next().await?.map(|change| {
                let kind = match &change {
                    WatchChange::Bookmark { .. } => WatchType::Bookmark,
                    WatchChange::Object { kind: EventKind::Added, .. } => WatchType::Added,
                    WatchChange::Object { kind: EventKind::Modified, .. } => WatchType::Modified,
                    WatchChange::Object { kind: EventKind::Deleted, .. } => WatchType::Deleted,
                    WatchChange::Object { kind: EventKind::Progress, .. } => WatchType::Bookmark,
                };
                WatchEvent { kind, object: change.object() }
            });
            Some((event, watch))
        });
        Ok(stream.boxed())
    }

    /// Creates an object; with `parent` POSTs to a subresource of it (`binding`, `eviction`, `token`). Dropping the
    /// future may still create it.
    ///
    /// # Errors
    /// What admission, validation or the store say.
    pub async fn create(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        parent: Option<(&str, &str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        let (cx, kind) = (Context::loopback(), row(resource)?);
        match parent {
            None => Ok(self.create_object(&cx, kind, namespace, object.0).await?.object.clone()),
            Some((name, sub)) => {
                let sub = subresource(kind, sub)?;
                self.create_subresource(&cx, kind, namespace, name, sub, object.0).await.map(Object).map(Arc::new)
            }
        }
    }

    /// Replaces an object, or a subresource of it. A set `resourceVersion` must match. Dropping the future may still
    /// write.
    ///
    /// # Errors
    /// 404, 409, and what admission, validation or the store say.
    pub async fn update(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        name: &str,
        sub: Option<&str>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        self.change(row(resource)?, namespace, name, sub, Change::Put(object.0)).await
    }

    /// Patches an object, or a subresource of it. Dropping the future may still write.
    ///
    /// # Errors
    /// As for [`Self::update`], and 400 or 422 for a patch that cannot be read or does not fit.
    pub async fn patch(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        name: &str,
        sub: Option<&str>,
        patch: PatchKind,
        body: Value,
    ) -> Result<Arc<Object>, ApiError> {
        self.change(row(resource)?, namespace, name, sub, Change::Patch(patch, body)).await
    }

    async fn change(
        &self,
        kind: &'static Kind,
        namespace: Option<&str>,
        name: &str,
        sub: Option<&str>,
        change: Change,
    ) -> Result<Arc<Object>, ApiError> {
        let cx = Context::loopback();
        let sub = sub.map(|s| subresource(kind, s)).transpose()?;
        if sub == Some(SubKind::Scale) {
            return Ok(self.update_scale(&cx, kind, namespace, name, &change).await?.object.clone());
        }
        Ok(self.update_object(&cx, kind, namespace, name, sub, &change).await?.stored.object.clone())
    }

    /// Deletes an object, or begins to; returns it as it was left. Dropping the future may still delete.
    ///
    /// # Errors
    /// 404, 409 for preconditions that do not hold, 403 from admission.
    pub async fn delete(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Arc<Object>, ApiError> {
        let request = request(options);
        Ok(self
            .delete_object(&Context::loopback(), row(resource)?, namespace, name, &request)
            .await?
            .stored
            .object
            .clone())
    }

    /// Deletes what a collection holds and the selectors match.
    ///
    /// # Errors
    /// The first one that is not "already gone".
    pub async fn delete_collection(
        &self,
        resource: &ResourceRef,
        namespace: Option<&str>,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let kind = row(resource)?;
        let query = filter(kind, list.label_selector.as_deref(), list.field_selector.as_deref())?;
        self.delete_objects(&Context::loopback(), kind, namespace, &query, &request(options)).await?;
        Ok(())
    }
}

fn request(options: &DeleteOptions) -> DeleteRequest {
    DeleteRequest {
        grace: options.grace_period.map(|d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX)),
        uid: options.uid.clone(),
        revision: options.resource_version.map(|r| r.to_string()),
        propagation: options.propagation.map(str::to_owned),
    }
}

fn row(resource: &ResourceRef) -> Result<&'static Kind, ApiError> {
    registry().by_ref(resource).ok_or_else(|| {
        ApiError::new(
            Reason::NotFound,
            format!("the server could not find the requested resource {:?}", resource.plural),
        )
    })
}

fn subresource(kind: &Kind, name: &str) -> Result<SubKind, ApiError> {
    let found = kind.sub(name).map(|s| s.kind);
    found.ok_or_else(|| ApiError::new(Reason::NotFound, "the server could not find the requested resource"))
}

fn filter(kind: &Kind, labels: Option<&str>, fields: Option<&str>) -> Result<ListQuery, ApiError> {
    let labels = LabelSelector::parse(labels.unwrap_or_default())?;
    let fields = FieldSelector::parse(fields.unwrap_or_default(), kind.strategy.fields, kind.resource.namespaced)?;
    Ok(ListQuery { labels, fields, ..ListQuery::default() })
}
