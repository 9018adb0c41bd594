//! The API in memory, as much of it as a node agent meets: lists, watches, merge patches, graceful deletion of Pods.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use podlab_api::{ApiError, Object, Reason};
use podlab_client::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchEvent, WatchOptions, WatchStream,
    WatchType,
};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

type Key = (String, String, String);

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Arc<Object>>,
    revision: u64,
}

#[derive(Clone)]
struct Change {
    plural: String,
    event: WatchEvent,
}

pub(super) struct MemoryApi {
    state: Mutex<State>,
    changes: broadcast::Sender<Change>,
    deaf: AtomicBool,
}

impl MemoryApi {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changes: broadcast::channel(4096).0, deaf: AtomicBool::new(false) })
    }

    /// Whether statuses are refused from now on.
    pub(super) fn refuse_statuses(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::Release);
    }

    /// Everything of a kind, by namespace and name.
    pub(super) fn all(&self, plural: &str) -> Vec<Arc<Object>> {
        self.state.lock().objects.iter().filter(|((p, ..), _)| p == plural).map(|(_, o)| o.clone()).collect()
    }

    /// Labels a node, and no watcher hears of it yet.
    pub(super) fn label_unheard(&self, node: &str, label: &str, value: &str) {
        let mut state = self.state.lock();
        let object = state.objects.get_mut(&("nodes".into(), String::new(), node.into())).expect("the node is there");
        let mut tree = object.0.clone();
        tree["metadata"]["labels"][label] = value.into();
        *object = Arc::new(Object(tree));
    }

    /// Every change of a kind from now on.
    pub(super) fn changes(&self, plural: &str) -> futures::stream::BoxStream<'static, WatchEvent> {
        let plural = plural.to_owned();
        BroadcastStream::new(self.changes.subscribe())
            .filter_map(move |c| {
                let plural = plural.clone();
                async move { c.ok().filter(|c| c.plural == plural).map(|c| c.event) }
            })
            .boxed()
    }

    fn put(&self, key: Key, mut tree: Value, kind: WatchType) -> Arc<Object> {
        let mut state = self.state.lock();
        state.revision += 1;
        tree["metadata"]["resourceVersion"] = state.revision.to_string().into();
        let object = Arc::new(Object(tree));
        if kind == WatchType::Deleted {
            state.objects.remove(&key);
        } else {
            state.objects.insert(key.clone(), object.clone());
        }
        let _ = self.changes.send(Change { plural: key.0, event: WatchEvent { kind, object: object.clone() } });
        object
    }

    fn find(&self, key: &Key) -> Result<Arc<Object>, ApiError> {
        self.state.lock().objects.get(key).cloned().ok_or_else(|| ApiError::not_found(&key.0, "", &key.2))
    }
}

fn key(c: &Collection, name: &str) -> Key {
    (c.resource.plural.to_owned(), c.namespace.clone().unwrap_or_default(), name.to_owned())
}

fn selected(o: &Object, selector: Option<&String>) -> bool {
    let Some(s) = selector else { return true };
    s.split(',').all(|term| {
        let Some((path, want)) = term.split_once('=') else { return true };
        o.str_at(&path.split('.').collect::<Vec<_>>()) == Some(want)
    })
}

fn in_collection(k: &Key, c: &Collection) -> bool {
    k.0 == c.resource.plural && c.namespace.as_ref().is_none_or(|n| *n == k.1)
}

/// RFC 7396, with the keyed lists of a Pod's status merged by their keys when `strategic`.
fn merge(into: &mut Value, patch: &Value, strategic: bool) {
    let (Some(to), Some(from)) = (into.as_object_mut(), patch.as_object()) else {
        *into = patch.clone();
        return;
    };
    for (k, v) in from {
        if k.starts_with("$setElementOrder/") {
            continue;
        }
        let merge_key = match k.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (v, merge_key.filter(|_| strategic)) {
            (Value::Null, _) => {
                to.remove(k);
            }
            (Value::Array(items), Some(by)) => keyed(to.entry(k).or_insert_with(|| json!([])), items, by),
            (Value::Object(_), _) => merge(to.entry(k).or_insert_with(|| Value::Object(Map::new())), v, strategic),
            _ => {
                to.insert(k.clone(), v.clone());
            }
        }
    }
}

fn keyed(list: &mut Value, items: &[Value], by: &str) {
    let Some(list) = list.as_array_mut() else { return };
    for item in items {
        if item.get("$patch").is_some() {
            list.retain(|l| l.get(by) != item.get(by));
        } else if let Some(old) = list.iter_mut().find(|l| l.get(by) == item.get(by)) {
            merge(old, item, true);
        } else {
            list.push(item.clone());
        }
    }
}

#[async_trait]
impl Api for MemoryApi {
    async fn get(&self, t: &Target) -> Result<Arc<Object>, ApiError> {
        self.find(&key(&t.collection, &t.name))
    }

    async fn list(&self, c: &Collection, o: &ListOptions) -> Result<ObjectList, ApiError> {
        let state = self.state.lock();
        let items = state.objects.iter().filter(|(k, v)| in_collection(k, c) && selected(v, o.field_selector.as_ref()));
        Ok(ObjectList { items: items.map(|(_, v)| v.clone()).collect(), resource_version: state.revision })
    }

    async fn watch(&self, c: &Collection, o: &WatchOptions) -> Result<WatchStream, ApiError> {
        let (c, o) = (c.clone(), o.clone());
        let stream = BroadcastStream::new(self.changes.subscribe());
        let expired = || ApiError::new(Reason::Expired, "too old");
        Ok(stream
            .filter_map(move |change| {
                let keep = match change {
                    Err(_) => Some(Err(expired())),
                    Ok(ch) => {
                        let object = &ch.event.object;
                        let k = (
                            ch.plural.clone(),
                            object.namespace().unwrap_or_default().to_owned(),
                            object.name().to_owned(),
                        );
                        let newer = o.resource_version.is_none_or(|r| object.resource_version() > r);
                        (in_collection(&k, &c) && selected(object, o.field_selector.as_ref()) && newer)
                            .then_some(Ok(ch.event))
                    }
                };
                async move { keep }
            })
            .boxed())
    }

    async fn create(
        &self,
        c: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        if parent.is_some_and(|(_, sub)| sub == "token") {
            return Ok(Arc::new(Object(
                json!({"status": {"token": "t", "expirationTimestamp": "2100-01-01T00:00:00Z"}}),
            )));
        }
        let mut tree = object.0;
        let name = tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = key(c, &name);
        if self.find(&key).is_ok() {
            return Err(ApiError::already_exists(&key.0, "", &name));
        }
        if let Some(ns) = &c.namespace {
            tree["metadata"]["namespace"] = ns.clone().into();
        }
        if tree["metadata"].get("uid").is_none() {
            let n = self.state.lock().revision;
            tree["metadata"]["uid"] = format!("00000000-0000-0000-0000-{n:012}").into();
        }
        tree["apiVersion"] = c.resource.api_version().into();
        tree["kind"] = c.resource.kind.into();
        Ok(self.put(key, tree, WatchType::Added))
    }

    async fn update(&self, t: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        let key = key(&t.collection, &t.name);
        self.find(&key)?;
        Ok(self.put(key, object.0, WatchType::Modified))
    }

    async fn patch(&self, t: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        if t.subresource == Some("status") && self.deaf.load(Ordering::Acquire) {
            return Err(ApiError::new(Reason::ServiceUnavailable, "not now"));
        }
        let key = key(&t.collection, &t.name);
        let old = self.find(&key)?;
        if body["metadata"]["uid"].as_str().is_some_and(|u| u != old.uid()) {
            return Err(ApiError::conflict(&key.0, "", &key.2, "uid"));
        }
        let mut tree = old.0.clone();
        merge(&mut tree, body, *kind == PatchKind::Strategic);
        Ok(self.put(key, tree, WatchType::Modified))
    }

    async fn delete(&self, t: &Target, o: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        let key = key(&t.collection, &t.name);
        let old = self.find(&key)?;
        let mut tree = old.0.clone();
        let grace = o
            .grace_period
            .map_or_else(|| tree["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30), |g| g.as_secs());
        let ended = matches!(tree["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
        if key.0 == "pods" && grace > 0 && !ended {
            tree["metadata"]["deletionTimestamp"] = "2100-01-01T00:00:00Z".into();
            tree["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            return Ok(self.put(key, tree, WatchType::Modified));
        }
        Ok(self.put(key, tree, WatchType::Deleted))
    }

    async fn delete_collection(&self, _: &Collection, _: &ListOptions, _: &DeleteOptions) -> Result<(), ApiError> {
        Ok(())
    }
}
