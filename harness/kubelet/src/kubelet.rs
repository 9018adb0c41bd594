//! The node agent as a component: what it needs, and its run from registration to shutdown.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use podlab_api::core::{Node, Pod};
use podlab_client::{
    Client, ListOptions,
    events::{Family, recorder},
    reflector::{Cache, Delta, reflector},
};
use podlab_clock::{Clock, Rng};
use podlab_lifecycle::{
    backoff::Backoff,
    probe::{ProbeKind, ProbeResult},
    spec,
};
use podlab_timeline::{Lane, Recorder};
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    agent::{Agent, RuntimeHealth},
    config::KubeletConfig,
    container::downward::Allocatable,
    csi::{Drivers, Plugins},
    eviction, garbage,
    host::Host,
    images::{self, ImageAges, ImageManager},
    metrics::{Measured, Metrics},
    node,
    objects::Objects,
    pleg,
    pods::Workers,
    prober::{self, ProbeUpdate, Prober},
    rotation,
    runtime::{Images, Runtime},
    say::Say,
    server, shutdown,
    statics::{self, Statics},
    status::StatusManager,
    users::UserRanges,
    volumes::{self, VolumeManager},
};

/// Pod deltas on their way to the sync loop; the reflector waits when it is full.
const POD_DELTAS: usize = 256;
/// How often leftovers are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(2);
/// How often statuses are compared with what the API shows.
const RECONCILE: Duration = Duration::from_secs(10);
/// How long stopping may take before tasks are dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What a node agent works with.
pub struct Deps {
    /// The API.
    pub client: Client,
    /// Time.
    pub clock: Clock,
    /// Jitter and names.
    pub rng: Rng,
    /// The run log.
    pub recorder: Recorder,
    /// The node.
    pub host: Arc<dyn Host>,
    /// Sandboxes and containers.
    pub runtime: Arc<dyn Runtime>,
    /// Images.
    pub images: Arc<dyn Images>,
    /// CSI plugins; `None` leaves plugin registration out.
    pub plugins: Option<Arc<dyn Plugins>>,
}

/// Why a node agent could not run.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// Its server could not listen or has bad certificates.
    #[error("serve the agent's API")]
    Server(#[source] server::ServerError),
    /// Its state directory could not be made.
    #[error("prepare {path}")]
    Root {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The node agent of one node.
pub struct Kubelet {
    config: KubeletConfig,
    deps: Deps,
}

impl Kubelet {
    /// Prepares an agent; nothing happens before [`Kubelet::run`].
    pub fn new(config: KubeletConfig, deps: Deps) -> Self {
        Self { config, deps }
    }

    /// Runs the node until `shutdown`. Containers go on without it; the next agent adopts them. Dropping the future is
    /// what a crash does.
    ///
    /// # Errors
    /// When the state directory or the server cannot be had. Everything later is retried for ever.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), KubeletError> {
        let Self { mut config, deps } = self;
        let prepare = |path: &std::path::Path| {
            deps.host.create_dir_all(path, 0o750).map_err(|source| KubeletError::Root { path: path.to_owned(), source })
        };
        prepare(&config.root_dir)?;
        prepare(&config.root_dir.join("pods"))?;
        prepare(&config.plugin_registry())?;
        prepare(&config.pod_logs_dir)?;
        if let Some(dir) = &config.container_logs_dir {
            prepare(dir)?;
        }
        let listener = match &mut config.server {
            Some(s) => {
                let listener = server::listen(s).await.map_err(KubeletError::Server)?;
                if let Ok(at) = listener.address() {
                    s.listen = at;
                }
                Some(listener)
            }
            None => None,
        };
        let tasks = TaskTracker::new();
        let stop = shutdown.child_token();
        let (agent, feeds) = assemble(config, deps, &tasks, &stop);
        if let Some(listener) = listener {
            tasks.spawn(server::serve(agent.clone(), listener));
        }
        start(&agent, feeds).await;
        stop.cancelled().await;
        tasks.close();
        if agent.clock.timeout(STOP_TIMEOUT, tasks.wait()).await.is_none() {
            tracing::warn!("agent tasks did not stop in time");
        }
        Ok(())
    }
}

/// Streams the main loop reads.
struct Feeds {
    pods: (Cache<Pod>, mpsc::Receiver<Delta<Pod>>),
    probes: mpsc::UnboundedReceiver<ProbeUpdate>,
    plugins: Option<Arc<dyn Plugins>>,
}

fn assemble(config: KubeletConfig, deps: Deps, tasks: &TaskTracker, stop: &CancellationToken) -> (Arc<Agent>, Feeds) {
    let config = Arc::new(config);
    let Deps { client, clock, rng, recorder: log, host, runtime, images, plugins } = deps;
    let log = log.on_node(&config.node_name).lane(Lane::Agent);
    let mut machine = host.machine();
    machine.cpu_milli = config.cpu_milli.unwrap_or(machine.cpu_milli);
    machine.memory = config.memory.unwrap_or(machine.memory);
    let disk = host.disk(&config.root_dir).map(|d| i64::try_from(d.capacity).unwrap_or(i64::MAX)).unwrap_or(0);
    let capacity = Allocatable {
        cpu_milli: machine.cpu_milli,
        memory: machine.memory,
        ephemeral_storage: config.ephemeral_storage.unwrap_or(disk),
    };
    let allocatable = node::allocatable(&config, capacity);
    let metrics = Arc::new(Metrics::default());
    let runtime: Arc<dyn Runtime> = Arc::new(Measured::new(runtime, clock, metrics.clone()));
    let images: Arc<dyn Images> = Arc::new(Measured::new(images, clock, metrics.clone()));

    let (events, writer) = recorder(&client, Family::Legacy, "kubelet", &config.node_name, clock, rng.fork("events"));
    tasks.spawn(writer.run(stop.clone()));
    let say = Say::new(events, &config.node_name);
    let (status, queue) = StatusManager::new(client.clone(), clock, log.clone());
    tasks.spawn(status.clone().run(queue, stop.clone()));
    let objects = Arc::new(Objects::new(&client, &config.node_name, clock, tasks, stop));
    let (prober, probes) = Prober::new(prober::Parts {
        config: config.clone(),
        runtime: runtime.clone(),
        host: host.clone(),
        clock,
        rng: rng.fork("probes"),
        say: say.clone(),
        status: status.clone(),
        recorder: log.clone(),
        tasks: tasks.clone(),
        metrics: metrics.clone(),
        shutdown: stop.clone(),
    });
    let drivers = Arc::new(Drivers::default());
    let volumes = VolumeManager::new(volumes::Parts {
        config: config.clone(),
        client: client.clone(),
        host: host.clone(),
        objects: objects.clone(),
        clock,
        rng: rng.fork("volumes"),
        allocatable,
        drivers: drivers.clone(),
        say: say.clone(),
        recorder: log.clone(),
    });
    let by_node =
        ListOptions { field_selector: Some(format!("spec.nodeName={}", config.node_name)), ..ListOptions::default() };
    let (run, cache, deltas) = reflector::<Pod>(&client, None, by_node, clock, POD_DELTAS);
    tasks.spawn(run.run(stop.clone()));
    let users = UserRanges::load(host.as_ref(), config.root_dir.join("pods"));
    let agent = Agent {
        users,
        images: ImageManager::new(&config, images.clone(), host.clone(), clock, say.clone(), &log),
        crash: Mutex::new(Backoff::crash_loop(config.max_restart_period)),
        config,
        client,
        clock,
        rng,
        recorder: log,
        host,
        runtime,
        image_service: images,
        machine,
        capacity,
        allocatable,
        say,
        status,
        prober,
        objects,
        volumes,
        drivers,
        workers: Workers::default(),
        health: watch::Sender::new(RuntimeHealth::default()),
        runtime_name: Mutex::new(("unknown".to_owned(), String::new())),
        inventory: Mutex::new(BTreeSet::new()),
        qos_shares: Mutex::new(None),
        suspects: Mutex::new(BTreeSet::new()),
        swept: std::sync::atomic::AtomicBool::new(false),
        pressure: watch::Sender::new(BTreeSet::new()),
        leaving: std::sync::atomic::AtomicBool::new(false),
        statics: Statics::default(),
        image_ages: ImageAges::default(),
        metrics,
        node: Mutex::new(Node::default()),
        tasks: tasks.clone(),
        shutdown: stop.clone(),
    };
    (Arc::new(agent), Feeds { pods: (cache, deltas), probes, plugins })
}

/// Waits for the runtime, registers the node, and sets everything going.
async fn start(agent: &Arc<Agent>, feeds: Feeds) {
    let stop = agent.shutdown.clone();
    let begin = async {
        loop {
            let version = agent.runtime.version().await;
            let health = node::check(agent).await;
            if let (Ok(v), true) = (version, health.runtime_problem.is_none()) {
                *agent.runtime_name.lock() = (v.runtime_name, v.runtime_version);
                agent.health.send_replace(health);
                break;
            }
            agent.clock.sleep(Duration::from_millis(5)).await;
        }
        // An agent that does not know what runs would start it a second time.
        loop {
            match pleg::inventory(agent).await {
                Ok(uids) => {
                    *agent.inventory.lock() = uids;
                    break;
                }
                Err(error) => tracing::warn!(%error, "runtime not listed"),
            }
            agent.clock.sleep(Duration::from_millis(100)).await;
        }
        agent.qos_changed();
        agent.say.node("Starting", "Starting kubelet.");
        node::register(agent).await;
    };
    if stop.run_until_cancelled(begin).await.is_none() {
        return;
    }
    let tasks = &agent.tasks;
    tasks.spawn(node::enforce(agent.clone()));
    tasks.spawn(node::report(agent.clone()));
    tasks.spawn(node::renew(agent.clone()));
    tasks.spawn(node::watch_health(agent.clone()));
    tasks.spawn(pleg::run(agent.clone()));
    if let Some(plugins) = feeds.plugins {
        tasks.spawn(crate::csi::watch_plugins(agent.clone(), plugins));
    }
    tasks.spawn(statics::run(agent.clone(), feeds.pods.0.clone()));
    tasks.spawn(sync_loop(agent.clone(), feeds.pods, feeds.probes));
    tasks.spawn(rotation::run(agent.clone()));
    tasks.spawn(garbage::run(agent.clone()));
    tasks.spawn(images::collect_garbage(agent.clone()));
    tasks.spawn(eviction::run(agent.clone()));
    tasks.spawn(shutdown::run(agent.clone()));
}

/// The one place that hands news out to the workers.
async fn sync_loop(
    agent: Arc<Agent>,
    pods: (Cache<Pod>, mpsc::Receiver<Delta<Pod>>),
    mut probes: mpsc::UnboundedReceiver<ProbeUpdate>,
) {
    let (cache, mut deltas) = pods;
    let stop = agent.shutdown.clone();
    if stop.run_until_cancelled(agent.objects.wait_synced()).await.is_none() {
        return;
    }
    let mut housekeeping = agent.clock.now().after(HOUSEKEEPING);
    let mut reconcile = agent.clock.now().after(RECONCILE);
    let mut swept = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            delta = deltas.recv() => match delta {
                Some(Delta::Applied { old, new }) => applied(&agent, old.as_deref(), new),
                Some(Delta::Deleted(pod)) if spec::is_mirror(&pod) => agent.statics.wake(),
                Some(Delta::Deleted(pod)) => agent.workers.remove(&agent, &pod),
                None => return,
            },
            update = probes.recv() => match update {
                Some(u) => probed(&agent, &u),
                None => return,
            },
            () = agent.clock.sleep_until(housekeeping.min(reconcile)) => {
                let now = agent.clock.now();
                if now >= housekeeping {
                    housekeeping = now.after(HOUSEKEEPING);
                    agent.objects.collect();
                    agent.crash.lock().collect(agent.clock.wall());
                    if !swept && cache.is_synced() && agent.statics.is_loaded() {
                        swept = true;
                        let listed = cache.list().into_iter().chain(agent.workers.pods());
                        let known: BTreeSet<String> = listed.filter_map(|p| p.metadata.uid.clone()).collect();
                        agent.swept.store(true, std::sync::atomic::Ordering::Release);
                        let agent = agent.clone();
                        let orphans = pleg::find_orphans(&agent, &known);
                        agent.tasks.clone().spawn(async move { pleg::remove_orphans(&agent, orphans).await });
                    }
                }
                if now >= reconcile {
                    reconcile = now.after(RECONCILE);
                    for pod in agent.workers.pods() {
                        agent.status.reconcile(&pod);
                    }
                }
            }
        }
    }
}

fn applied(agent: &Arc<Agent>, old: Option<&Pod>, new: Arc<Pod>) {
    if spec::is_mirror(&new) {
        match agent.statics.shown_by(&new).filter(|_| !spec::is_deleting(&new)) {
            Some(uid) if agent.status.shows(&uid, &new) => agent.status.observe_mirror(&uid, &new),
            _ => agent.statics.wake(),
        }
        return;
    }
    // What the API says of a Pod's source is not for its author to claim.
    let new = if spec::is_static(&new) { Arc::new(from_api(&new)) } else { new };
    // A name that was reused within one list shows as a change of UID.
    if let Some(before) = old.filter(|o| o.metadata.uid != new.metadata.uid) {
        agent.workers.remove(agent, &Arc::new(before.clone()));
    }
    agent.workers.apply(agent, old.filter(|o| o.metadata.uid == new.metadata.uid), new);
}

fn from_api(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(notes) = &mut pod.metadata.annotations {
        notes.insert(spec::CONFIG_SOURCE.to_owned(), "api".to_owned());
    }
    pod
}

fn probed(agent: &Agent, u: &ProbeUpdate) {
    let restart = u.kind == ProbeKind::Liveness && u.result != ProbeResult::Failure;
    // A liveness probe that succeeds changes nothing; everything else may.
    if !restart {
        agent.workers.kick(&u.uid);
    }
}
