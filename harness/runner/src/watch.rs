//! The runner's eyes: follows Pods and events, writes what changed into the run log, and lets assertions wait on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use podlab_api::{
    ApiError, Object, ResourceRef,
    core::{Event as KubeEvent, Pod},
};
use podlab_client::{Client, Collection, ListOptions, WatchOptions, WatchType};
use podlab_clock::Clock;
use podlab_timeline::{Event, Lane, PodKey, Recorder, Stage};
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::summary;

/// What is known of the cluster, as of the last change.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Pods by name.
    pub(crate) pods: BTreeMap<String, Arc<Object>>,
    /// Names of Pods that were there and are gone.
    pub(crate) gone: BTreeSet<String>,
    /// Events by object name.
    pub(crate) events: BTreeMap<String, Arc<Object>>,
    /// Names of events as they were written first.
    pub(crate) written: Vec<String>,
    fields: BTreeMap<(String, String), String>,
    ready: BTreeSet<String>,
}

/// What is followed: Pods and events.
const KINDS: usize = 2;

/// Somebody who waits for the first state that satisfies a condition, however short it lasts.
struct Waiter {
    condition: Box<dyn Fn(&Seen) -> bool + Send>,
    met: oneshot::Sender<()>,
}

/// Shared view of the cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watcher {
    seen: Arc<Mutex<Seen>>,
    waiters: Arc<Mutex<Vec<Waiter>>>,
    changed: watch::Sender<u64>,
    /// Kinds whose first list is taken.
    open: watch::Sender<BTreeSet<&'static str>>,
    recorder: Recorder,
}

impl Watcher {
    pub(crate) fn new(recorder: &Recorder) -> Self {
        let (seen, waiters) = (Arc::default(), Arc::default());
        let (changed, open) = (watch::Sender::new(0), watch::Sender::default());
        Self { seen, waiters, changed, open, recorder: recorder.lane(Lane::Watch) }
    }

    /// Waits until the eyes are open: what happens from now on is seen state by state. A Pod that was made before might
    /// be past its first states when it is first looked at. Safe to drop.
    pub(crate) async fn opened(&self) {
        // The sender is here.
        let _ = self.open.subscribe().wait_for(|kinds| kinds.len() == KINDS).await;
    }

    /// Told at the first state, this one or a later one, that satisfies `condition`. Every state a watcher sees is looked
    /// at, also one that is followed by another at once.
    pub(crate) fn first(&self, condition: impl Fn(&Seen) -> bool + Send + 'static) -> oneshot::Receiver<()> {
        let (met, waits) = oneshot::channel();
        if condition(&self.look()) {
            // The receiver is right here.
            let _ = met.send(());
        } else {
            self.waiters().push(Waiter { condition: Box::new(condition), met });
        }
        waits
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look at what is known now.
    pub(crate) fn look(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver that changes with every change of what is known.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Follows Pods and events of a namespace until `shutdown`, over API restarts.
    pub(crate) async fn run(self, client: Client, namespace: String, clock: Clock, shutdown: CancellationToken) {
        let both = async {
            tokio::join!(
                self.follow(&client, ResourceRef::of::<Pod>(), &namespace, clock),
                self.follow(&client, ResourceRef::of::<KubeEvent>(), &namespace, clock)
            )
        };
        let _ = shutdown.run_until_cancelled(both).await;
    }

    async fn follow(&self, client: &Client, resource: ResourceRef, namespace: &str, clock: Clock) {
        let collection = Collection { resource, namespace: Some(namespace.to_owned()) };
        loop {
            if self.follow_once(client, &collection).await.is_err() {
                clock.sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn follow_once(&self, client: &Client, collection: &Collection) -> Result<(), ApiError> {
        let list = client.raw().list(collection, &ListOptions::default()).await?;
        let is_pod = collection.resource.kind == "Pod";
        for object in &list.items {
            self.take(is_pod, WatchType::Added, object);
        }
        if is_pod {
            let present: BTreeSet<&str> = list.items.iter().map(|o| o.name()).collect();
            let lost: Vec<Arc<Object>> =
                self.look().pods.values().filter(|p| !present.contains(p.name())).cloned().collect();
            lost.iter().for_each(|pod| self.take(true, WatchType::Deleted, pod));
        }
        self.open.send_modify(|kinds| {
            kinds.insert(collection.resource.kind);
        });
        let options = WatchOptions { resource_version: Some(list.resource_version), ..WatchOptions::default() };
        let mut stream = client.raw().watch(collection, &options).await?;
        while let Some(event) = stream.next().await {
            let event = event?;
            if event.kind != WatchType::Bookmark {
                self.take(is_pod, event.kind, &event.object);
            }
        }
        Ok(())
    }

    fn take(&self, is_pod: bool, kind: WatchType, object: &Arc<Object>) {
        if is_pod {
            self.take_pod(kind, object)
        } else {
            self.take_event(object)
        }
        {
            let seen = self.look();
            let mut waiters = self.waiters();
            for waiter in waiters.extract_if(.., |w| w.met.is_closed() || (w.condition)(&seen)) {
                // Who has stopped waiting does not mind.
                let _ = waiter.met.send(());
            }
        }
        self.changed.send_modify(|n| *n += 1);
    }

    fn take_pod(&self, kind: WatchType, pod: &Arc<Object>) {
        let key = pod_key(pod);
        let mut seen = self.look();
        if kind == WatchType::Deleted {
            seen.pods.remove(pod.name());
            seen.gone.insert(pod.name().to_owned());
            seen.fields.retain(|(uid, _), _| uid != pod.uid());
            drop(seen);
            self.recorder.record(Some(key), Event::Field { name: "gone".into(), value: "gone".into() });
            return;
        }
        seen.gone.remove(pod.name());
        seen.pods.insert(pod.name().to_owned(), pod.clone());
        let values = summary::fields(pod);
        let is_ready = values.iter().any(|(n, v)| n == "condition/Ready" && v.starts_with("True"));
        let newly_ready = is_ready && seen.ready.insert(pod.uid().to_owned());
        let changed: Vec<(String, String)> = values
            .into_iter()
            .filter(|(name, value)| {
                seen.fields.insert((pod.uid().to_owned(), name.clone()), value.clone()).as_ref() != Some(value)
            })
            .collect();
        drop(seen);
        if newly_ready {
            self.recorder.stage(&key, Stage::Seen);
        }
        for (name, value) in changed {
            self.recorder.record(Some(key.clone()), Event::Field { name, value });
        }
    }

    fn take_event(&self, event: &Arc<Object>) {
        {
            let mut seen = self.look();
            if seen.events.insert(event.name().to_owned(), event.clone()).is_none() {
                seen.written.push(event.name().to_owned());
            }
        }
        let text = |path: &[&str]| event.str_at(path).unwrap_or_default().to_owned();
        if text(&["involvedObject", "kind"]) != "Pod" {
            return;
        }
        let key = PodKey {
            namespace: text(&["involvedObject", "namespace"]),
            name: text(&["involvedObject", "name"]),
            uid: text(&["involvedObject", "uid"]),
        };
        let source = Some(text(&["source", "component"]))
            .filter(|s| !s.is_empty())
            .unwrap_or_else(|| text(&["reportingComponent"]));
        self.recorder.record(
            Some(key),
            Event::KubeEvent {
                kind: text(&["type"]),
                reason: text(&["reason"]),
                message: text(&["message"]),
                source,
                count: count(event),
                field_path: text(&["involvedObject", "fieldPath"]),
            },
        );
    }
}

/// How often an event happened.
pub(crate) fn count(event: &Object) -> u32 {
    let number = |v: Option<&Value>| v.and_then(Value::as_u64).filter(|n| *n > 0);
    let n = number(event.at(&["count"])).or_else(|| number(event.at(&["series", "count"]))).unwrap_or(1);
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The timeline key of a Pod.
pub(crate) fn pod_key(pod: &Object) -> PodKey {
    PodKey {
        namespace: pod.namespace().unwrap_or_default().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use podlab_api::{ApiError, Object, Reason};
    use podlab_client::{
        Api, Client, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream,
    };
    use podlab_clock::Clock;
    use podlab_timeline::Recorder;
    use serde_json::Value;
    use tokio::sync::Semaphore;
    use tokio_util::sync::CancellationToken;

    use super::Watcher;

    /// An API that is slow to list one kind and has nothing.
    struct Slow {
        kind: &'static str,
        lists: Semaphore,
    }

    fn no<T>() -> Result<T, ApiError> {
        Err(ApiError::new(Reason::MethodNotAllowed, "only lists and watches"))
    }

    #[async_trait]
    impl Api for Slow {
        async fn get(&self, _: &Target) -> Result<Arc<Object>, ApiError> {
            no()
        }
        async fn list(&self, c: &Collection, _: &ListOptions) -> Result<ObjectList, ApiError> {
            if c.resource.kind == self.kind {
                self.lists.acquire().await.expect("it is never closed").forget();
            }
            Ok(ObjectList { items: vec![], resource_version: 1 })
        }
        async fn watch(&self, _: &Collection, _: &WatchOptions) -> Result<WatchStream, ApiError> {
            Ok(Box::pin(futures::stream::pending()))
        }
        async fn create(
            &self,
            _: &Collection,
            _: Option<(&str, &'static str)>,
            _: Object,
        ) -> Result<Arc<Object>, ApiError> {
            no()
        }
        async fn update(&self, _: &Target, _: Object) -> Result<Arc<Object>, ApiError> {
            no()
        }
        async fn patch(&self, _: &Target, _: &PatchKind, _: &Value) -> Result<Arc<Object>, ApiError> {
            no()
        }
        async fn delete(&self, _: &Target, _: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
            no()
        }
        async fn delete_collection(&self, _: &Collection, _: &ListOptions, _: &DeleteOptions) -> Result<(), ApiError> {
            no()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_eyes_are_open_when_every_kind_was_looked_at_once() {
        for kind in ["Pod", "Event"] {
            let clock = Clock::real();
            let watcher = Watcher::new(&Recorder::disabled(clock));
            let api = Arc::new(Slow { kind, lists: Semaphore::new(0) });
            let run =
                watcher.clone().run(Client::new(api.clone()), "default".to_owned(), clock, CancellationToken::new());
            let checks = async {
                let early = tokio::time::timeout(std::time::Duration::from_secs(60), watcher.opened()).await;
                assert!(early.is_err(), "open before the list of {kind} was there");
                api.lists.add_permits(1);
                watcher.opened().await;
            };
            tokio::select! {
                () = run => panic!("the watch ended"),
                () = checks => {}
            }
        }
    }
}
