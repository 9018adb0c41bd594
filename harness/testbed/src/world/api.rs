//! The API as a component of the virtual world reaches it: the in-process server behind a tap.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object, Reason};
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream,
};
use podlab_fault::Call;
use serde_json::Value;

use super::seam::{Seam, Site};

/// An API behind a tap.
pub(super) struct TappedApi {
    pub(super) inner: Arc<dyn Api>,
    pub(super) seam: Seam,
}

fn refused(code: u32, msg: String) -> ApiError {
    let reason = match code {
        404 => Reason::NotFound,
        409 => Reason::Conflict,
        _ => Reason::ServiceUnavailable,
    };
    ApiError::new(reason, msg)
}

/// `pods` or `pods/status`.
fn resource_of(plural: &str, sub: Option<&str>) -> String {
    sub.map_or_else(|| plural.to_owned(), |s| format!("{plural}/{s}"))
}

impl TappedApi {
    async fn pass<T>(
        &self,
        verb: &str,
        resource: &str,
        name: &str,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        // Names of events and leases differ from seed to seed; what they are about does not.
        let shown = if resource == "events" { "" } else { name };
        let site = Site {
            call: Call::Api { verb, resource, name },
            name: format!("{verb} {resource} {shown}"),
            pod: None,
            subject: "",
            lane: None,
        };
        self.seam.pass(site, call, refused).await
    }
}

#[async_trait]
impl Api for TappedApi {
    async fn get(&self, t: &Target) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        self.pass("get", &resource, &t.name, self.inner.get(t)).await
    }

    async fn list(&self, c: &Collection, o: &ListOptions) -> Result<ObjectList, ApiError> {
        self.pass("list", c.resource.plural, "", self.inner.list(c, o)).await
    }

    async fn watch(&self, c: &Collection, o: &WatchOptions) -> Result<WatchStream, ApiError> {
        let stream = self.pass("watch", c.resource.plural, "", self.inner.watch(c, o)).await?;
        let (seam, plural) = (self.seam.clone(), c.resource.plural);
        let paused = stream.then(move |event| {
            let seam = seam.clone();
            async move {
                let name = match &event {
                    Ok(e) if plural != "events" => e.object.name(),
                    _ => "",
                };
                seam.pause(&format!("event of {plural} {name}")).await;
                event
            }
        });
        Ok(paused.boxed())
    }

    async fn create(
        &self,
        c: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        let name = parent.map_or_else(|| object.name().to_owned(), |(n, _)| n.to_owned());
        let resource = resource_of(c.resource.plural, parent.map(|(_, s)| s));
        self.pass("create", &resource, &name, self.inner.create(c, parent, object)).await
    }

    async fn update(&self, t: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        self.pass("update", &resource, &t.name, self.inner.update(t, object)).await
    }

    async fn patch(&self, t: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        self.pass("patch", &resource, &t.name, self.inner.patch(t, kind, body)).await
    }

    async fn delete(&self, t: &Target, o: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.pass("delete", t.collection.resource.plural, &t.name, self.inner.delete(t, o)).await
    }

    async fn delete_collection(&self, c: &Collection, l: &ListOptions, o: &DeleteOptions) -> Result<(), ApiError> {
        self.pass("deletecollection", c.resource.plural, "", self.inner.delete_collection(c, l, o)).await
    }
}
