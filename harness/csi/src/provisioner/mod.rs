//! The provisioner: makes volumes for the claims of its node and removes the volumes nobody claims any more. It talks to
//! the driver over its socket, as upstream's sidecar does in its per-node deployment.
//!
//! A claim with a selected node is that node's. An `Immediate` claim has none: each node tries to write itself in, the
//! first one wins, and the volume's topology then tells the scheduler where Pods must go.
//! Source: kubernetes-csi/external-provisioner, kubernetes-sigs/sig-storage-lib-external-provisioner.

mod calls;
mod objects;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use podlab_api::{
    core::{PersistentVolume, PersistentVolumeClaim},
    storage::StorageClass,
};
use podlab_client::{
    Client, ListOptions,
    events::{self, EventRecorder, Family},
    reflector::{Cache, Delta, reflector},
};
use podlab_clock::{Clock, Mono, Rng};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use calls::{CallError, DriverSocket};
pub use calls::{DriverCalls, DriverIdentity};
use objects::Mine;
pub use objects::access_mode;

/// Deltas on their way; beyond this the watch waits.
const BUFFER: usize = 256;
/// First pause after a failure; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Pause before a driver that does not answer yet is asked again.
const CONNECT: Duration = Duration::from_millis(100);
/// Calls under way at a time.
const WORKERS: usize = 10;

/// Which driver, on which node.
#[derive(Debug, Clone)]
pub struct ProvisionerConfig {
    /// Driver name: the `provisioner` of the classes it serves.
    pub driver: String,
    /// The driver's socket.
    pub socket: PathBuf,
    /// The node's name in the API.
    pub node: String,
}

/// The provisioner of one driver on one node.
#[derive(Debug)]
pub struct Provisioner {
    config: ProvisionerConfig,
    client: Client,
    clock: Clock,
    rng: Rng,
    driver: Arc<dyn DriverCalls>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Provision { namespace: String, name: String, uid: String },
    Delete { volume: String },
    Expand { namespace: String, name: String },
}

/// When something that failed is tried again, and the pause after the next failure.
type Retries = BTreeMap<Work, (Mono, Duration)>;

/// What every piece of work needs.
struct Shared {
    config: ProvisionerConfig,
    client: Client,
    driver: Arc<dyn DriverCalls>,
    events: EventRecorder,
    mine: Mine,
}

impl Provisioner {
    /// A provisioner on an API.
    pub fn new(config: ProvisionerConfig, client: Client, clock: Clock, rng: Rng) -> Self {
        let driver = Arc::new(DriverSocket(config.socket.clone()));
        Self { config, client, clock, rng, driver }
    }

    /// A provisioner for a driver that is reached otherwise than by a socket.
    pub fn over(
        driver: Arc<dyn DriverCalls>,
        config: ProvisionerConfig,
        client: Client,
        clock: Clock,
        rng: Rng,
    ) -> Self {
        Self { config, client, clock, rng, driver }
    }

    /// Waits for the driver, then provisions until `shutdown`. A call cut off by it is repeated by the next provisioner.
    pub async fn run(self, shutdown: CancellationToken) {
        let _ = shutdown.run_until_cancelled(self.follow(&shutdown)).await;
    }

    async fn follow(&self, shutdown: &CancellationToken) {
        let Some(identity) = self.wait_for_driver().await else { return shutdown.cancelled().await };
        let mut tasks = JoinSet::new();
        let component = format!("{}_{}_{}", self.config.driver, self.config.node, self.rng.uuid());
        let rng = self.rng.fork("events");
        let (events, writer) = events::recorder(&self.client, Family::Legacy, &component, "", self.clock, rng);
        tasks.spawn(writer.run(shutdown.clone()));
        let wake = Arc::new(Notify::new());
        let all = ListOptions::default;
        let (r, claims, rx) = reflector::<PersistentVolumeClaim>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, wake.clone()));
        let (r, volumes, rx) = reflector::<PersistentVolume>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, wake.clone()));
        let (r, classes, rx) = reflector::<StorageClass>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, wake.clone()));
        claims.wait_synced().await;
        volumes.wait_synced().await;
        classes.wait_synced().await;
        let mine =
            Mine { driver: self.config.driver.clone(), node: self.config.node.clone(), topology: identity.topology };
        let driver = self.driver.clone();
        let shared =
            Arc::new(Shared { config: self.config.clone(), client: self.client.clone(), driver, events, mine });
        self.work(&shared, (&claims, &volumes, &classes), &wake).await;
    }

    /// The driver, once it answers under its name and is ready; `None` when another one answers.
    async fn wait_for_driver(&self) -> Option<DriverIdentity> {
        loop {
            match self.driver.identity().await {
                Ok(found) if found.name == self.config.driver => return Some(found),
                Ok(found) => {
                    tracing::error!(
                        found = found.name,
                        expected = self.config.driver,
                        "another driver answers; nothing is provisioned"
                    );
                    return None;
                }
                Err(error) => tracing::debug!(%error, "the driver does not answer yet"),
            }
            self.clock.sleep(CONNECT).await;
        }
    }

    /// Does what the objects ask for, each thing by one call at a time.
    async fn work(
        &self,
        shared: &Arc<Shared>,
        (claims, volumes, classes): (&Cache<PersistentVolumeClaim>, &Cache<PersistentVolume>, &Cache<StorageClass>),
        wake: &Notify,
    ) {
        let mut retries = Retries::new();
        let mut running: JoinSet<(Work, Result<(), CallError>)> = JoinSet::new();
        let mut in_flight: Vec<Work> = Vec::new();
        loop {
            let wanted = self.wanted(shared, claims, volumes, classes);
            retries.retain(|work, _| wanted.iter().any(|(w, _)| w == work) || in_flight.contains(work));
            let now = self.clock.now();
            for (work, class) in wanted {
                let due = retries.get(&work).is_none_or(|(at, _)| *at <= now);
                if due && !in_flight.contains(&work) && in_flight.len() < WORKERS {
                    in_flight.push(work.clone());
                    let shared = shared.clone();
                    running.spawn(async move {
                        let result = shared.act(&work, class.as_deref()).await;
                        (work, result)
                    });
                }
            }
            let next = retries.iter().filter(|(w, _)| !in_flight.contains(w)).map(|(_, (at, _))| *at).min();
            let until = next.unwrap_or_else(|| now.after(Duration::from_secs(60)));
            tokio::select! {
                biased;
                () = wake.notified() => {}
                Some(Ok((work, result))) = running.join_next(), if !running.is_empty() => {
                    in_flight.retain(|w| *w != work);
                    // A success counts as a failure soon to be retried until the cache shows its effect.
                    let pause = match &result {
                        Ok(()) => RETRY_FIRST,
                        Err(error) => {
                            tracing::info!(?work, %error, "to be tried again");
                            retries.get(&work).map_or(RETRY_FIRST, |(_, p)| (*p * 2).min(RETRY_MAX))
                        }
                    };
                    retries.insert(work, (self.clock.now().after(pause), pause));
                }
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    fn wanted(
        &self,
        shared: &Shared,
        claims: &Cache<PersistentVolumeClaim>,
        volumes: &Cache<PersistentVolume>,
        classes: &Cache<StorageClass>,
    ) -> Vec<(Work, Option<Arc<StorageClass>>)> {
        let mut out = Vec::new();
        for claim in claims.list() {
            let (namespace, name, uid) = objects::identity(&claim);
            let class =
                claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).and_then(|c| classes.get("", c));
            if let Some(class) = class.filter(|c| shared.mine.provisions(&claim, c)) {
                out.push((Work::Provision { namespace, name, uid }, Some(class)));
            } else if let Some(volume) =
                claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).and_then(|v| volumes.get("", v))
                && shared.mine.expands(&claim, &volume)
            {
                out.push((Work::Expand { namespace, name }, None));
            }
        }
        let gone = volumes.list().into_iter().filter(|v| shared.mine.deletes(v) || shared.mine.releases(v));
        out.extend(gone.map(|v| (Work::Delete { volume: v.metadata.name.clone().unwrap_or_default() }, None)));
        out
    }
}

/// Passes on that something came, not what.
async fn relay<K>(mut from: mpsc::Receiver<Delta<K>>, to: Arc<Notify>) {
    while from.recv().await.is_some() {
        to.notify_one();
    }
}
