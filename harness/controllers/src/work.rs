//! The queue every controller works from: keys without duplicates, one key at a time, retries with back-off.
//! Source: k/k staging/src/k8s.io/client-go/util/workqueue.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use podlab_api::{ApiError, KubeType};
use podlab_client::reflector::Delta;
use podlab_clock::{Clock, Mono};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// Namespace (empty for cluster-scoped objects) and name.
pub type Key = (String, String);

/// First retry; doubles up to [`MAX_RETRY`].
/// Source: k/k staging/src/k8s.io/client-go/util/workqueue/default_rate_limiters.go.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const MAX_RETRY: Duration = Duration::from_secs(1000);

/// When a key shall be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Only when something changes.
    OnChange,
    /// After this time, whatever happens.
    After(Duration),
}

/// One controller's logic.
#[async_trait]
pub trait Reconcile: Send + Sync {
    /// For logs.
    fn name(&self) -> &'static str;
    /// Makes one object what it should be. Dropping it midway is safe: it starts from what it finds.
    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError>;
}

#[derive(Debug, Default)]
struct Inner {
    ready: BTreeSet<Key>,
    later: BTreeMap<Key, Mono>,
    failures: BTreeMap<Key, u32>,
}

/// Keys that wait to be reconciled. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    inner: Arc<Mutex<Inner>>,
    wake: Arc<Notify>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key, unless it waits already.
    pub fn add(&self, key: Key) {
        self.lock().ready.insert(key);
        self.wake.notify_one();
    }

    fn add_at(&self, key: Key, at: Mono) {
        let mut inner = self.lock();
        let due = inner.later.entry(key).or_insert(at);
        *due = at.min(*due);
    }

    /// The next key that is due, or when the next one will be.
    fn next(&self, now: Mono) -> Result<Key, Option<Mono>> {
        let mut inner = self.lock();
        let due: Vec<Key> = inner.later.iter().filter(|(_, at)| **at <= now).map(|(k, _)| k.clone()).collect();
        for key in due {
            inner.later.remove(&key);
            inner.ready.insert(key);
        }
        inner.ready.pop_first().ok_or_else(|| inner.later.values().min().copied())
    }

    fn failed(&self, key: Key, now: Mono) {
        let failures = {
            let mut inner = self.lock();
            let n = inner.failures.entry(key.clone()).or_default();
            *n += 1;
            *n
        };
        let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(failures.min(19) - 1)).min(MAX_RETRY);
        self.add_at(key, now.after(delay));
    }

    fn succeeded(&self, key: &Key) {
        self.lock().failures.remove(key);
    }
}

/// Works the queue off until `shutdown`, one key at a time.
pub async fn drive<R: Reconcile>(controller: R, queue: Queue, clock: Clock, shutdown: CancellationToken) {
    loop {
        let now = clock.now();
        match queue.next(now) {
            Ok(key) => {
                let Some(result) = shutdown.run_until_cancelled(controller.reconcile(&key)).await else { return };
                match result {
                    Ok(again) => {
                        queue.succeeded(&key);
                        if let Again::After(delay) = again {
                            queue.add_at(key, clock.now().after(delay));
                        }
                    }
                    Err(error) => {
                        tracing::debug!(controller = controller.name(), ?key, %error, "retrying");
                        queue.failed(key, clock.now());
                    }
                }
            }
            Err(due) => {
                let until = due.unwrap_or_else(|| now.after(Duration::from_secs(3600)));
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = queue.wake.notified() => {}
                    () = clock.sleep_until(until) => {}
                }
            }
        }
    }
}

/// Feeds a queue from a reflector: every change adds the keys that `map` names.
pub async fn feed<K: KubeType>(
    mut deltas: mpsc::Receiver<Delta<K>>,
    queue: Queue,
    map: impl Fn(&Delta<K>) -> Vec<Key>,
) {
    while let Some(delta) = deltas.recv().await {
        for key in map(&delta) {
            queue.add(key);
        }
    }
}

/// The key of an object.
pub fn key_of<K: KubeType>(object: &K) -> Key {
    let meta = object.metadata();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
