//! Static Pods: manifests in a directory of the node, run without the API, and shown there by mirror Pods.
//!
//! ```text
//! manifest ─► Pod (UID: hash) ─► worker                      mirror gone, deleted, of another hash ─► made anew
//!    └─ removed or changed ─► worker ends ─► mirror deleted ─► the changed one starts
//! ```
//! Source: k/k pkg/kubelet/config/{common,file}.go, pkg/kubelet/pod/mirror_client.go.

mod manifest;
mod mirror;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use podlab_api::core::Pod;
use podlab_client::reflector::Cache;
use podlab_lifecycle::spec;
use tokio::sync::Notify;

use crate::agent::Agent;

/// How often what waits for something else is looked at.
const WAITING: Duration = Duration::from_secs(1);

/// Namespace and name.
type FullName = (String, String);

/// Which static Pods there are.
#[derive(Debug, Default)]
pub(crate) struct Statics {
    /// Those that were handed to workers, by full name.
    running: Mutex<BTreeMap<FullName, Arc<Pod>>>,
    wake: Notify,
    loaded: AtomicBool,
}

impl Statics {
    /// Whether the manifests have been read once.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// UID of the static Pod a mirror shows.
    pub(crate) fn shown_by(&self, mirror: &Pod) -> Option<String> {
        self.running.lock().get(&full_name(mirror)).and_then(|p| p.metadata.uid.clone())
    }

    /// Something happened to a mirror.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.running.lock().len()
    }
}

fn full_name(pod: &Pod) -> FullName {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    (text(&pod.metadata.namespace), text(&pod.metadata.name))
}

/// Follows the directory until the agent stops. `cache` holds the API's Pods of this node.
pub(crate) async fn run(agent: Arc<Agent>, cache: Cache<Pod>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            cache.wait_synced().await;
            match agent.config.static_pod_path.clone() {
                Some(dir) => follow(&agent, &cache, &dir).await,
                None => without(&agent, &cache).await,
            }
        })
        .await;
}

/// Without a directory there are no static Pods, and mirrors of an earlier life have to go.
async fn without(agent: &Arc<Agent>, cache: &Cache<Pod>) {
    agent.statics.loaded.store(true, Ordering::Release);
    loop {
        mirror::remove_strays(agent, cache).await;
        agent.statics.wake.notified().await;
    }
}

async fn follow(agent: &Arc<Agent>, cache: &Cache<Pod>, dir: &Path) {
    loop {
        // Begun before reading, so that a file written in between is not missed.
        let mut changes = agent.host.watch(dir);
        let wanted = manifest::read_all(agent, dir);
        let mut settled = apply(agent, cache, wanted);
        agent.statics.loaded.store(true, Ordering::Release);
        settled &= mirror::reconcile(agent, cache).await;
        mirror::remove_strays(agent, cache).await;
        let pause = if settled { agent.config.file_check_period } else { WAITING };
        tokio::select! {
            biased;
            () = agent.statics.wake.notified() => {}
            () = changes.next(pause) => {}
        }
    }
}

/// Ends Pods whose manifest is gone or another one, starts those that are new. False when something still waits.
fn apply(agent: &Arc<Agent>, cache: &Cache<Pod>, wanted: BTreeMap<FullName, Pod>) -> bool {
    let mut settled = true;
    let before: Vec<(FullName, Arc<Pod>)> =
        agent.statics.running.lock().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    for (name, pod) in before {
        let same = wanted.get(&name).is_some_and(|w| w.metadata.uid == pod.metadata.uid);
        if same {
            continue;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if agent.workers.is_gone(&uid) {
            agent.statics.running.lock().remove(&name);
        } else {
            agent.workers.remove(agent, &pod);
            settled = false;
        }
    }
    for (name, pod) in wanted {
        if agent.statics.running.lock().contains_key(&name) {
            // It runs, or the one before it has not ended yet.
            continue;
        }
        let pod = Arc::new(with_shown_status(pod, cache));
        agent.statics.running.lock().insert(name, pod.clone());
        agent.workers.apply(agent, None, pod);
    }
    settled
}

/// A Pod that a mirror already shows goes on from there: an agent that was restarted must not begin anew.
fn with_shown_status(mut pod: Pod, cache: &Cache<Pod>) -> Pod {
    let (namespace, name) = full_name(&pod);
    let mirror = cache.get(&namespace, &name).filter(|m| mirror::shows(m, &pod) && !spec::is_deleting(m));
    if let Some(status) = mirror.and_then(|m| m.status.clone()).filter(|s| s.start_time.is_some()) {
        pod.status = Some(status);
    }
    pod
}
