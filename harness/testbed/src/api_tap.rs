//! The tap at the API, on the side of the component that calls: it works in front of any API server. In both worlds the
//! same; what a call meets is the gate's business.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object, Reason};
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream,
};
use podlab_clock::Clock;
use podlab_fault::Effect;
use serde_json::Value;

use crate::effects::disturbed;

/// Most answers that are kept to give them again when they are stale.
const MAX_KEPT: usize = 1024;

/// A call of the API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApiSite<'a> {
    pub(crate) verb: &'a str,
    /// With its subresource.
    pub(crate) resource: &'a str,
    /// Name of the object, empty for a collection.
    pub(crate) name: &'a str,
}

/// What stands between a component and the API: it counts, applies faults and records.
pub(crate) trait Gate: Send + Sync + 'static {
    /// Makes a call; with its answer comes the effect that the tap has to finish, on a stream or with an older answer.
    fn pass<T: Send, F: Future<Output = Result<T, ApiError>> + Send>(
        &self,
        site: ApiSite<'_>,
        make: impl Fn() -> F + Send + Sync,
    ) -> impl Future<Output = Result<(T, Option<Effect>), ApiError>> + Send;

    /// Lets an event of a watch through.
    fn event(&self, plural: &str, name: &str) -> impl Future<Output = ()> + Send;

    /// Time there.
    fn clock(&self) -> Clock;
}

/// An API behind a tap.
pub(crate) struct ApiTap<G> {
    inner: Arc<dyn Api>,
    gate: Arc<G>,
    /// The last answer to each read, for those that shall be stale.
    answers: Mutex<BTreeMap<String, Answer>>,
}

#[derive(Debug, Clone)]
enum Answer {
    One(Arc<Object>),
    Many(ObjectList),
}

/// An error that a fault puts in a call's place, in the API's words.
pub(crate) fn refused(code: u32, msg: String) -> ApiError {
    let reason = match code {
        400 => Reason::BadRequest,
        403 => Reason::Forbidden,
        404 => Reason::NotFound,
        409 => Reason::Conflict,
        429 => Reason::TooManyRequests,
        500 => Reason::InternalError,
        504 => Reason::Timeout,
        _ => Reason::ServiceUnavailable,
    };
    ApiError::new(reason, msg)
}

/// `pods` or `pods/status`.
fn resource_of(plural: &str, sub: Option<&str>) -> String {
    sub.map_or_else(|| plural.to_owned(), |s| format!("{plural}/{s}"))
}

impl<G: Gate> ApiTap<G> {
    pub(crate) fn new(inner: Arc<dyn Api>, gate: G) -> Self {
        Self { inner, gate: Arc::new(gate), answers: Mutex::default() }
    }

    async fn pass<T: Send, F: Future<Output = Result<T, ApiError>> + Send>(
        &self,
        verb: &str,
        resource: &str,
        name: &str,
        make: impl Fn() -> F + Send + Sync,
    ) -> Result<T, ApiError> {
        self.gate.pass(ApiSite { verb, resource, name }, make).await.map(|(answer, _)| answer)
    }

    /// The answer to give: that of the time before when it shall be stale and there is one, else the new one, which is
    /// kept for the next time.
    fn answered(&self, key: String, new: Answer, effect: Option<&Effect>) -> Answer {
        let mut kept = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(effect, Some(Effect::Stale)) {
            return kept.get(&key).cloned().unwrap_or(new);
        }
        if kept.len() < MAX_KEPT || kept.contains_key(&key) {
            kept.insert(key, new.clone());
        }
        new
    }
}

#[async_trait]
impl<G: Gate> Api for ApiTap<G> {
    async fn get(&self, t: &Target) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        let site = ApiSite { verb: "get", resource: &resource, name: &t.name };
        let (new, effect) = self.gate.pass(site, || self.inner.get(t)).await?;
        let key = format!("{resource} {:?} {}", t.collection.namespace, t.name);
        match self.answered(key, Answer::One(new.clone()), effect.as_ref()) {
            Answer::One(object) => Ok(object),
            Answer::Many(_) => Ok(new),
        }
    }

    async fn list(&self, c: &Collection, o: &ListOptions) -> Result<ObjectList, ApiError> {
        let site = ApiSite { verb: "list", resource: c.resource.plural, name: "" };
        let (new, effect) = self.gate.pass(site, || self.inner.list(c, o)).await?;
        let key = format!("{} {:?} {o:?}", c.resource.plural, c.namespace);
        match self.answered(key, Answer::Many(new.clone()), effect.as_ref()) {
            Answer::Many(list) => Ok(list),
            Answer::One(_) => Ok(new),
        }
    }

    async fn watch(&self, c: &Collection, o: &WatchOptions) -> Result<WatchStream, ApiError> {
        let plural = c.resource.plural;
        let site = ApiSite { verb: "watch", resource: plural, name: "" };
        let (stream, effect) = self.gate.pass(site, || self.inner.watch(c, o)).await?;
        let gate = self.gate.clone();
        let passed = stream.then(move |event| {
            let gate = gate.clone();
            async move {
                let name = match &event {
                    Ok(e) if plural != "events" => e.object.name(),
                    _ => "",
                };
                gate.event(plural, name).await;
                event
            }
        });
        Ok(disturbed(passed.boxed(), effect.as_ref(), self.gate.clock()))
    }

    async fn create(
        &self,
        c: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        let name = parent.map_or_else(|| object.name().to_owned(), |(n, _)| n.to_owned());
        let resource = resource_of(c.resource.plural, parent.map(|(_, s)| s));
        self.pass("create", &resource, &name, || self.inner.create(c, parent, object.clone())).await
    }

    async fn update(&self, t: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        self.pass("update", &resource, &t.name, || self.inner.update(t, object.clone())).await
    }

    async fn patch(&self, t: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        let resource = resource_of(t.collection.resource.plural, t.subresource);
        self.pass("patch", &resource, &t.name, || self.inner.patch(t, kind, body)).await
    }

    async fn delete(&self, t: &Target, o: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.pass("delete", t.collection.resource.plural, &t.name, || self.inner.delete(t, o)).await
    }

    async fn delete_collection(&self, c: &Collection, l: &ListOptions, o: &DeleteOptions) -> Result<(), ApiError> {
        self.pass("deletecollection", c.resource.plural, "", || self.inner.delete_collection(c, l, o)).await
    }
}
