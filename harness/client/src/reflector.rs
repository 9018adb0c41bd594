//! A typed cache of a collection that follows it by list and watch.
//!
//! ```text
//! Listing ──list──► Watching ──event──► Watching
//!    ▲                 │ stream ended: watch again from the last revision
//!    └──── expired ────┘ (410), or an error: list again after a pause
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use futures::StreamExt;
use podlab_api::{ApiError, KubeType, Object};
use podlab_clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{Client, ListOptions, WatchOptions, WatchType};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub type Key = (String, String);

/// How long to wait after a failed list or watch.
const RETRY: Duration = Duration::from_millis(200);

/// A change the reflector applied to its cache.
#[derive(Debug, Clone)]
pub enum Delta<K> {
    /// An object appeared or changed; `old` is what the cache held.
    Applied {
        /// Before, if known.
        old: Option<Arc<K>>,
        /// After.
        new: Arc<K>,
    },
    /// An object went; its last known state.
    Deleted(Arc<K>),
}

impl<K: KubeType> Delta<K> {
    /// The object as it is now (or last was).
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(old) => old,
        }
    }
}

/// The read side of the cache. Cheap to clone.
#[derive(Debug)]
pub struct Cache<K> {
    objects: Arc<RwLock<BTreeMap<Key, Arc<K>>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced.clone() }
    }
}

impl<K: KubeType> Cache<K> {
    /// The object of a key.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Everything, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().values().cloned().collect()
    }

    /// Whether the first list has been applied.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the first list has been applied. Safe to drop.
    pub async fn wait_synced(&self) {
        // The sender lives as long as the reflector; when it is gone nobody will ever sync, and the caller is
        // being shut down as well.
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Key, Arc<K>>> {
        self.objects.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The write side: owns the watch. Run it in a task of the component.
pub struct Reflector<K> {
    client: Client,
    namespace: Option<String>,
    options: ListOptions,
    clock: Clock,
    objects: Arc<RwLock<BTreeMap<Key, Arc<K>>>>,
    synced: watch::Sender<bool>,
    deltas: mpsc::Sender<Delta<K>>,
}

/// Makes a reflector, its cache and the stream of what it applied.
///
/// `buffer` bounds the deltas on their way; when the receiver is slow the reflector waits (and the server may close its
/// watch, which leads to a new list). Dropping the receiver is fine for those who only read the cache.
pub fn reflector<K: KubeType>(
    client: &Client,
    namespace: Option<&str>,
    options: ListOptions,
    clock: Clock,
    buffer: usize,
) -> (Reflector<K>, Cache<K>, mpsc::Receiver<Delta<K>>) {
    let objects = Arc::new(RwLock::new(BTreeMap::new()));
    let (synced, synced_rx) = watch::channel(false);
    let (deltas, rx) = mpsc::channel(buffer);
    let cache = Cache { objects: objects.clone(), synced: synced_rx };
    let namespace = namespace.map(str::to_owned);
    (Reflector { client: client.clone(), namespace, options, clock, objects, synced, deltas }, cache, rx)
}

impl<K: KubeType> Reflector<K> {
    /// Follows the collection until `shutdown`. Errors of the API are retried for ever and logged.
    pub async fn run(self, shutdown: CancellationToken) {
        let _ = shutdown.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        loop {
            match self.list().await {
                Ok(revision) => {
                    self.synced.send_replace(true);
                    if let Err(error) = self.watch_from(revision).await
                        && !error.is_expired()
                    {
                        tracing::debug!(kind = K::KIND, %error, "watch failed; listing again");
                        self.clock.sleep(RETRY).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(kind = K::KIND, %error, "list failed");
                    self.clock.sleep(RETRY).await;
                }
            }
        }
    }

    fn resource(&self) -> crate::Resource<K> {
        match &self.namespace {
            Some(ns) => self.client.namespaced(ns),
            None => self.client.all(),
        }
    }

    /// Replaces the cache by a fresh list and emits the difference.
    async fn list(&self) -> Result<u64, ApiError> {
        let list = self.client.raw().list(self.resource().collection(), &self.options).await?;
        let mut gone: BTreeMap<Key, Arc<K>> = self.write().clone();
        for object in &list.items {
            gone.remove(&key(object));
            self.apply(object).await;
        }
        for (key, old) in gone {
            self.write().remove(&key);
            let _ = self.deltas.send(Delta::Deleted(old)).await;
        }
        Ok(list.resource_version)
    }

    async fn watch_from(&self, mut revision: u64) -> Result<(), ApiError> {
        loop {
            let options = WatchOptions {
                label_selector: self.options.label_selector.clone(),
                field_selector: self.options.field_selector.clone(),
                resource_version: Some(revision),
            };
            let mut stream = self.client.raw().watch(self.resource().collection(), &options).await?;
            while let Some(event) = stream.next().await {
                let event = event?;
                revision = revision.max(event.object.resource_version());
                match event.kind {
                    WatchType::Added | WatchType::Modified => self.apply(&event.object).await,
                    WatchType::Deleted => self.delete(&event.object).await,
                    WatchType::Bookmark => {}
                }
            }
        }
    }

    async fn apply(&self, object: &Object) {
        let new = match object.to_typed::<K>() {
            Ok(new) => Arc::new(new),
            Err(error) => {
                tracing::warn!(kind = K::KIND, name = object.name(), %error, "object does not fit its type");
                return;
            }
        };
        let old = self.write().insert(key(object), new.clone());
        let unchanged = old.as_ref().is_some_and(|o| o.metadata().resource_version == new.metadata().resource_version);
        if !unchanged {
            let _ = self.deltas.send(Delta::Applied { old, new }).await;
        }
    }

    async fn delete(&self, object: &Object) {
        let old = self.write().remove(&key(object));
        let last = object.to_typed::<K>().ok().map(Arc::new).or(old);
        if let Some(last) = last {
            let _ = self.deltas.send(Delta::Deleted(last)).await;
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<Key, Arc<K>>> {
        self.objects.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn key(object: &Object) -> Key {
    (object.namespace().unwrap_or_default().to_owned(), object.name().to_owned())
}
