//! API objects that Pods refer to: ConfigMaps and Secrets watched one by one while a Pod here uses them, and the small
//! collections every Pod may need (Services, CSI drivers, the node itself) watched as a whole.
//!
//! Source: k/k pkg/kubelet/util/manager/watch_based_manager.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use podlab_api::{
    ApiError, KubeType, Reason,
    core::{ConfigMap, Node, Pod, Secret, Service},
    storage::CSIDriver,
};
use podlab_client::{
    Client, ListOptions,
    reflector::{Cache, reflector},
};
use podlab_clock::{Clock, Mono};
use podlab_lifecycle::spec;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a first look at an object may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an object nobody uses stays watched: the next Pod of a namespace often wants it again.
const LINGER: Duration = Duration::from_secs(60);
/// Deltas are not read here; the cache is.
const NO_BUFFER: usize = 1;

type Key = (String, String);

struct Entry<K> {
    cache: Cache<K>,
    stop: CancellationToken,
    users: BTreeSet<String>,
    idle_since: Option<Mono>,
}

/// One kind of object, watched object by object.
struct Watched<K> {
    singular: &'static str,
    entries: Mutex<BTreeMap<Key, Entry<K>>>,
}

/// Everything Pods refer to.
pub(crate) struct Objects {
    client: Client,
    clock: Clock,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    config_maps: Watched<ConfigMap>,
    secrets: Watched<Secret>,
    services: Cache<Service>,
    drivers: Cache<CSIDriver>,
    node: Cache<Node>,
}

impl Objects {
    /// Begins to watch the common collections.
    pub(crate) fn new(
        client: &Client,
        node_name: &str,
        clock: Clock,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Self {
        let by_name =
            ListOptions { field_selector: Some(format!("metadata.name={node_name}")), ..ListOptions::default() };
        Self {
            services: watch_all(client, ListOptions::default(), clock, tasks, shutdown),
            drivers: watch_all(client, ListOptions::default(), clock, tasks, shutdown),
            node: watch_all(client, by_name, clock, tasks, shutdown),
            client: client.clone(),
            clock,
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
            config_maps: Watched { singular: "configmap", entries: Mutex::default() },
            secrets: Watched { singular: "secret", entries: Mutex::default() },
        }
    }

    /// Waits for the first list of Services; Pods started before would miss variables.
    pub(crate) async fn wait_synced(&self) {
        self.services.wait_synced().await;
    }

    /// Services of all namespaces.
    pub(crate) fn services(&self) -> Vec<Arc<Service>> {
        self.services.list()
    }

    /// The node's own object, once seen.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.list().into_iter().next()
    }

    /// A CSI driver's object.
    pub(crate) fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.drivers.get("", name)
    }

    /// Watches what a Pod refers to, until [`Objects::release`].
    pub(crate) fn retain(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let (maps, secrets) = references(pod);
        self.watch(&self.config_maps, &uid, &namespace, maps);
        self.watch(&self.secrets, &uid, &namespace, secrets);
    }

    /// Lets go of what a Pod referred to.
    pub(crate) fn release(&self, uid: &str) {
        let now = self.clock.now();
        release(&self.config_maps, uid, now);
        release(&self.secrets, uid, now);
    }

    /// Ends watches nobody has needed for a while.
    pub(crate) fn collect(&self) {
        let now = self.clock.now();
        collect(&self.config_maps, now);
        collect(&self.secrets, now);
    }

    /// A ConfigMap. An absent one is `NotFound` in upstream's words.
    pub(crate) async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ApiError> {
        self.get(&self.config_maps, namespace, name).await
    }

    /// A Secret. An absent one is `NotFound` in upstream's words.
    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ApiError> {
        self.get(&self.secrets, namespace, name).await
    }

    async fn get<K: KubeType>(&self, watched: &Watched<K>, namespace: &str, name: &str) -> Result<Arc<K>, ApiError> {
        let key = (namespace.to_owned(), name.to_owned());
        let cache = watched.entries.lock().get(&key).map(|e| e.cache.clone());
        let missing = || ApiError::new(Reason::NotFound, format!("{} \"{name}\" not found", watched.singular));
        let Some(cache) = cache else {
            let got = self.client.namespaced::<K>(namespace).get_opt(name).await?;
            return got.map(Arc::new).ok_or_else(missing);
        };
        if !cache.is_synced() && self.clock.timeout(SYNC_TIMEOUT, cache.wait_synced()).await.is_none() {
            let message = format!("failed to sync {} cache: timed out waiting for the condition", watched.singular);
            return Err(ApiError::new(Reason::Timeout, message));
        }
        cache.get(namespace, name).ok_or_else(missing)
    }

    fn watch<K: KubeType>(&self, watched: &Watched<K>, uid: &str, namespace: &str, names: BTreeSet<String>) {
        let mut entries = watched.entries.lock();
        for name in names {
            let entry = entries.entry((namespace.to_owned(), name.clone())).or_insert_with(|| {
                let options =
                    ListOptions { field_selector: Some(format!("metadata.name={name}")), ..ListOptions::default() };
                let (run, cache, _) = reflector(&self.client, Some(namespace), options, self.clock, NO_BUFFER);
                let stop = self.shutdown.child_token();
                self.tasks.spawn(run.run(stop.clone()));
                Entry { cache, stop, users: BTreeSet::new(), idle_since: None }
            });
            entry.users.insert(uid.to_owned());
            entry.idle_since = None;
        }
    }
}

fn watch_all<K: KubeType>(
    client: &Client,
    options: ListOptions,
    clock: Clock,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> Cache<K> {
    let (run, cache, _) = reflector(client, None, options, clock, NO_BUFFER);
    tasks.spawn(run.run(shutdown.clone()));
    cache
}

fn release<K>(watched: &Watched<K>, uid: &str, now: Mono) {
    for e in watched.entries.lock().values_mut() {
        if e.users.remove(uid) && e.users.is_empty() {
            e.idle_since = Some(now);
        }
    }
}

fn collect<K>(watched: &Watched<K>, now: Mono) {
    watched.entries.lock().retain(|_, e| {
        let stale = e.idle_since.is_some_and(|t| now.since(t) > LINGER);
        if stale {
            e.stop.cancel();
        }
        !stale
    });
}

/// Names of the ConfigMaps and Secrets a Pod refers to.
fn references(pod: &Pod) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    let s = spec::pod_spec(pod);
    let ephemeral = spec::ephemeral_containers(pod);
    for c in spec::init_containers(pod).iter().chain(spec::containers(pod)).chain(&ephemeral) {
        for from in c.env_from.iter().flatten() {
            maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in c.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    for v in s.volumes.iter().flatten() {
        maps.extend(v.config_map.iter().map(|r| r.name.clone()));
        secrets.extend(v.secret.iter().filter_map(|r| r.secret_name.clone()));
        secrets.extend(v.csi.iter().filter_map(|c| c.node_publish_secret_ref.as_ref()).map(|r| r.name.clone()));
        for p in v.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            maps.extend(p.config_map.iter().map(|r| r.name.clone()));
            secrets.extend(p.secret.iter().map(|r| r.name.clone()));
        }
    }
    secrets.extend(s.image_pull_secrets.iter().flatten().map(|r| r.name.clone()));
    maps.retain(|n| !n.is_empty());
    secrets.retain(|n| !n.is_empty());
    (maps, secrets)
}
