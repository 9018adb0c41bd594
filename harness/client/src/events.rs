//! Writing Kubernetes Events: a non-blocking [`EventRecorder`] handle and the [`EventWriter`] task behind it, which
//! counts repeats, aggregates similar ones and limits spam as client-go does.
//!
//! Source: k/k staging/src/k8s.io/client-go/tools/record/{event,events_cache}.go and tools/events/event_recorder.go.

mod correlate;

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::{KubeType, ResourceRef, core::ObjectReference, jiff::Timestamp};
use podlab_clock::{Clock, Rng};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{Api, Client, Collection, PatchKind, Target};
use correlate::{Correlator, Decision};

/// Events on their way to the API server; beyond this they are dropped, as upstream's broadcaster does.
const QUEUE: usize = 1000;

/// `Normal` or `Warning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// Nothing is wrong.
    Normal,
    /// Somebody may want to look.
    Warning,
}

impl EventType {
    /// The wire string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Which of upstream's two recorder families a component writes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// core/v1 fields: source, count, first and last timestamp (node agent, controllers).
    Legacy,
    /// events.k8s.io/v1 fields: eventTime, reportingController, action, series (scheduler).
    Series,
}

/// What a component says happened.
#[derive(Debug, Clone)]
pub struct EventRequest {
    regarding: ObjectReference,
    kind: EventType,
    reason: &'static str,
    action: &'static str,
    message: String,
    annotations: BTreeMap<String, String>,
    at: Timestamp,
}

/// Handle to record events with. Cheap to clone; never blocks.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<EventRequest>,
    clock: Clock,
}

impl EventRecorder {
    /// Records an event about an object. `reason` is CamelCase.
    pub fn event(&self, regarding: ObjectReference, kind: EventType, reason: &'static str, message: impl Into<String>) {
        self.event_with_action(regarding, kind, reason, "", message);
    }

    /// Records an event with the `action` that events.k8s.io asks for, e.g. `Binding`.
    pub fn event_with_action(
        &self,
        regarding: ObjectReference,
        kind: EventType,
        reason: &'static str,
        action: &'static str,
        message: impl Into<String>,
    ) {
        self.send(regarding, kind, reason, action, message.into(), BTreeMap::new());
    }

    /// Records an event that carries annotations.
    pub fn annotated_event(
        &self,
        regarding: ObjectReference,
        kind: EventType,
        reason: &'static str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        self.send(regarding, kind, reason, "", message.into(), annotations);
    }

    fn send(
        &self,
        regarding: ObjectReference,
        kind: EventType,
        reason: &'static str,
        action: &'static str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        let request = EventRequest { regarding, kind, reason, action, message, annotations, at: self.clock.wall() };
        if let Err(error) = self.queue.try_send(request) {
            tracing::warn!(reason, %error, "event dropped");
        }
    }
}

/// The reference of an object, as `involvedObject` carries it.
pub fn reference<K: KubeType>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// The task that writes events to the API.
pub struct EventWriter {
    api: Arc<dyn Api>,
    queue: mpsc::Receiver<EventRequest>,
    family: Family,
    component: String,
    host: String,
    clock: Clock,
    rng: Rng,
}

/// Makes a recorder and its writer. `host` is the node for the node agent and empty for controllers.
pub fn recorder(
    client: &Client,
    family: Family,
    component: &str,
    host: &str,
    clock: Clock,
    rng: Rng,
) -> (EventRecorder, EventWriter) {
    let (tx, queue) = mpsc::channel(QUEUE);
    let writer = EventWriter {
        api: client.raw().clone(),
        queue,
        family,
        component: component.to_owned(),
        host: host.to_owned(),
        clock,
        rng,
    };
    (EventRecorder { queue: tx, clock }, writer)
}

impl EventWriter {
    /// Writes until `shutdown`, then what is still queued. A failed write is logged and the event lost.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut correlator = Correlator::new(self.family);
        loop {
            let next = tokio::select! {
                biased;
                request = self.queue.recv() => request,
                () = shutdown.cancelled() => self.queue.try_recv().ok(),
            };
            let Some(request) = next else { return };
            self.write(&mut correlator, request).await;
        }
    }

    async fn write(&self, correlator: &mut Correlator, request: EventRequest) {
        let now = self.clock.now();
        let (key, decision) = correlator.decide(&self.component, &self.host, &request, now);
        match decision {
            Decision::Drop | Decision::CountOnly => {}
            Decision::Create { message } => self.create(correlator, &key, &request, message, 1).await,
            Decision::Patch { name, count, message } => {
                let target = Target { collection: collection(&request), name, subresource: None };
                let body = match self.family {
                    Family::Legacy => {
                        json!({"count": count, "lastTimestamp": seconds(request.at), "message": message})
                    }
                    Family::Series => {
                        json!({"series": {"count": count, "lastObservedTime": micros(request.at)}})
                    }
                };
                match self.api.patch(&target, &PatchKind::Strategic, &body).await {
                    Err(e) if e.is_not_found() => self.create(correlator, &key, &request, message, count).await,
                    Err(error) => tracing::warn!(%error, "event not patched"),
                    Ok(_) => {}
                }
            }
        }
    }

    async fn create(
        &self,
        correlator: &mut Correlator,
        key: &str,
        request: &EventRequest,
        message: String,
        count: u32,
    ) {
        let object = podlab_api::Object(self.body(request, &message, count));
        match self.api.create(&collection(request), None, object).await {
            Ok(made) => correlator.created(key, made.name()),
            Err(error) => tracing::warn!(%error, reason = request.reason, "event not written"),
        }
    }

    fn body(&self, request: &EventRequest, message: &str, count: u32) -> Value {
        let object = &request.regarding;
        let namespace = namespace(request);
        let name = format!(
            "{}.{:x}",
            object.name.as_deref().unwrap_or_default(),
            // Two events of one object within a nanosecond would share a name; the low bits are random instead.
            (request.at.as_nanosecond() & !0xfff) | i128::from(self.rng.below(0x1000))
        );
        let mut body = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": object, "reason": request.reason, "message": cut(message), "type": request.kind.as_str(),
            "reportingComponent": self.component, "reportingInstance": self.host,
        });
        let map = body.as_object_mut().expect("a literal object");
        if !request.annotations.is_empty() {
            map["metadata"]["annotations"] = json!(request.annotations);
        }
        match self.family {
            Family::Legacy => {
                map.insert("source".into(), json!({"component": self.component, "host": self.host}));
                map.insert("firstTimestamp".into(), seconds(request.at).into());
                map.insert("lastTimestamp".into(), seconds(request.at).into());
                map.insert("count".into(), count.into());
                map.insert("eventTime".into(), Value::Null);
            }
            Family::Series => {
                map.insert("source".into(), json!({}));
                map.insert("firstTimestamp".into(), Value::Null);
                map.insert("lastTimestamp".into(), Value::Null);
                map.insert("eventTime".into(), micros(request.at).into());
                map.insert("action".into(), request.action.into());
                map.insert("reportingInstance".into(), format!("{}-{}", self.component, self.host).into());
            }
        }
        body
    }
}

/// Events of cluster-scoped objects live in `default`.
fn namespace(request: &EventRequest) -> String {
    request.regarding.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned())
}

fn collection(request: &EventRequest) -> Collection {
    let resource = ResourceRef::of::<podlab_api::core::Event>();
    Collection { resource, namespace: Some(namespace(request)) }
}

/// Upstream refuses messages over 1024 bytes.
fn cut(message: &str) -> String {
    if message.len() <= 1024 {
        return message.to_owned();
    }
    let end = (0..=1020).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
    format!("{} ...", &message[..end])
}

fn seconds(t: Timestamp) -> String {
    Timestamp::from_second(t.as_second()).unwrap_or_default().to_string()
}

fn micros(t: Timestamp) -> String {
    format!("{t:.6}")
}
