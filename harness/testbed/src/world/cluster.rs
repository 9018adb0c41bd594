//! A virtual cluster as its user holds it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::StreamExt;
use podlab_api::{
    ApiError, Object, Reason,
    core::{Node as ApiNode, Pod, ServiceAccount},
};
use podlab_apiserver::{ApiServer, ApiServerConfig, pki::Authority};
use podlab_client::{Api, Client, WatchOptions};
use podlab_clock::{Clock, Rng};
use podlab_controllers::{Controllers, ControllersConfig};
use podlab_fault::Plan;
use podlab_kubelet::{ExecOutput, Runtime as _};
use podlab_scheduler::{Scheduler, SchedulerConfig};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_tape::{Patience, Replayed, Tape};
use podlab_timeline::{Entry, MemorySink, Recorder};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    choices::{Choices, Disturbance},
    network::Network,
    node::{Node, Registries, RuntimeTarget, Shared},
    seam::{Crash, Seam},
};
use crate::{
    api_tap::ApiTap,
    cluster::takes_pods,
    holdings::{Held, Holding},
    plane::{LocalApi, chain, defaults, dns},
    spec::{ClusterSpec, address},
};

/// When every virtual run begins.
const BEGIN: &str = "2026-01-01T00:00:00Z";

/// Why a virtual cluster could not be had.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A part of the plane did not start.
    #[error("boot the virtual cluster: {0}")]
    Boot(String),
    /// Its nodes did not become Ready.
    #[error("not Ready after {0:?}")]
    NotReady(Duration),
    /// There is no such node.
    #[error("there is no node {0:?}")]
    Unknown(String),
}

/// A virtual cluster to boot.
#[derive(Debug, Clone)]
pub struct WorldSpec {
    /// Size, faults and seed; what belongs to processes and disks is ignored.
    pub cluster: ClusterSpec,
    /// How the seed disturbs the run.
    pub disturbance: Disturbance,
}

/// Runs a future in a world of its own: one thread, time that moves only when nothing is left to do.
///
/// # Errors
/// When the runtime cannot be made.
pub fn run<F: Future>(make: impl FnOnce() -> F) -> std::io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    // Made inside, so that a clock of it counts from the beginning of this world.
    Ok(runtime.block_on(async { make().await }))
}

/// A booted virtual cluster. Lives in the runtime it was booted in and ends with it.
pub struct VirtualCluster {
    clock: Clock,
    client: Client,
    recorder: Recorder,
    sink: Arc<MemorySink>,
    choices: Choices,
    network: Arc<Network>,
    nodes: BTreeMap<String, Arc<Node>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// Keys cost time and are no part of a run: one authority serves all worlds of a process.
fn authority() -> Result<Arc<Authority>, WorldError> {
    static AUTHORITY: OnceLock<Arc<Authority>> = OnceLock::new();
    if let Some(a) = AUTHORITY.get() {
        return Ok(a.clone());
    }
    let made = Arc::new(Authority::new().map_err(|e| WorldError::Boot(chain(&e)))?);
    Ok(AUTHORITY.get_or_init(|| made).clone())
}

impl VirtualCluster {
    /// Boots a cluster; [`VirtualCluster::wait_ready`] waits for its nodes.
    ///
    /// # Errors
    /// [`WorldError::Boot`].
    pub async fn boot(spec: WorldSpec) -> Result<Self, WorldError> {
        let begin = BEGIN.parse().map_err(|_| WorldError::Boot("the beginning of time is not a time".into()))?;
        let clock = Clock::virtual_from(begin);
        let (rng, sink) = (Rng::seeded(spec.cluster.seed), Arc::new(MemorySink::default()));
        let recorder = Recorder::new(sink.clone(), clock);
        let choices = Choices::new(spec.cluster.seed, spec.disturbance);
        let plan = Arc::new(Plan::new(spec.cluster.faults.clone()));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let server = api_server(clock, &rng, &recorder).await?;
        let token = stop.clone();
        tasks.spawn(server.clone().upkeep(token));
        let api: Arc<dyn Api> = Arc::new(LocalApi::new(server));
        let client = Client::new(api.clone());
        let boot = |e: ApiError| WorldError::Boot(e.message);
        defaults::create(&client).await.map_err(boot)?;
        dns::ensure_service(&client).await.map_err(|e| WorldError::Boot(chain(&*e)))?;

        let seam = |who: &str| Seam {
            who: who.to_owned(),
            choices: choices.clone(),
            plan: plan.clone(),
            recorder: recorder.clone(),
            clock,
            life: None,
        };
        let tapped = |who: &str| Client::new(Arc::new(ApiTap::new(api.clone(), seam(who))) as Arc<dyn Api>);
        let scheduler =
            Scheduler::new(SchedulerConfig::default(), tapped("scheduler"), clock, rng.fork("scheduler"), &recorder);
        let token = stop.clone();
        tasks.spawn(async move { scheduler.run(token).await });
        let config = ControllersConfig { ca: "the virtual world has no certificates\n".into() };
        let controllers = Controllers::new(config, tapped("controllers"), clock, rng.fork("controllers"));
        let token = stop.clone();
        tasks.spawn(async move { controllers.run(token).await });

        let network = Arc::new(Network::default());
        network.know(client.clone());
        let (crashes, crashed) = mpsc::unbounded_channel();
        let login = (&spec.cluster.registry_user, &spec.cluster.registry_password);
        let shared = Shared {
            clock,
            rng,
            recorder: recorder.clone(),
            choices: choices.clone(),
            plan,
            api,
            network: network.clone(),
            registries: Arc::new(Registries::new(login.0, login.1)),
            crashes,
            spec: spec.cluster.clone(),
        };
        let nodes: BTreeMap<String, Arc<Node>> =
            (1..=spec.cluster.nodes).map(|i| Node::new(i, shared.clone())).map(|n| (n.name.clone(), n)).collect();
        tasks.spawn(carry_out(crashed, nodes.clone(), clock));
        nodes.values().for_each(|n| n.start());
        Ok(Self { clock, client, recorder, sink, choices, network, nodes, stop, tasks })
    }

    /// Time in this world.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// A client with all rights, without a tap.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The run log, to write to.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// The run log so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.sink.entries()
    }

    /// The choices so far.
    pub fn choices(&self) -> Choices {
        self.choices.clone()
    }

    /// Waits until every node is Ready and takes Pods. Safe to drop.
    ///
    /// # Errors
    /// [`WorldError::NotReady`].
    pub async fn wait_ready(&self, within: Duration) -> Result<(), WorldError> {
        let all = async {
            let mut ready: BTreeMap<String, bool> = self.nodes.keys().map(|n| (n.clone(), false)).collect();
            let Ok(stream) = self.client.all::<ApiNode>().watch(&WatchOptions::default()).await else { return };
            let mut stream = stream.boxed();
            while !ready.values().all(|r| *r)
                && let Some(Ok(event)) = stream.next().await
            {
                let node = &event.object;
                ready.insert(node.metadata.name.clone().unwrap_or_default(), takes_pods(node));
            }
            // Without its account a namespace refuses Pods.
            let accounts = self.client.namespaced::<ServiceAccount>("default");
            while !matches!(accounts.get_opt("default").await, Ok(Some(_))) {
                self.clock.sleep(Duration::from_millis(1)).await;
            }
            // Whatever is on its way reaches everybody first: a scheduler that has not heard of the node begins with a back-off.
            self.clock.sleep(Duration::from_millis(1)).await;
        };
        self.clock.timeout(within, all).await.ok_or(WorldError::NotReady(within))
    }

    fn node(&self, name: &str) -> Result<&Arc<Node>, WorldError> {
        self.nodes.get(name).ok_or_else(|| WorldError::Unknown(name.to_owned()))
    }

    /// SIGKILLs a node's agent; containers live on.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub fn kill_agent(&self, node: &str) -> Result<(), WorldError> {
        self.node(node).map(|n| n.kill())
    }

    /// Stops a node's agent as SIGTERM does.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub async fn stop_agent(&self, node: &str) -> Result<(), WorldError> {
        self.node(node)?.stop().await;
        Ok(())
    }

    /// Starts a node's agent.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub fn start_agent(&self, node: &str) -> Result<(), WorldError> {
        self.node(node).map(|n| n.start())
    }

    /// Takes a whole node down at once.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub fn crash_node(&self, node: &str) -> Result<(), WorldError> {
        self.node(node).map(|n| n.power_off())
    }

    /// Starts a crashed node.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub fn boot_node(&self, node: &str) -> Result<(), WorldError> {
        self.start_agent(node)
    }

    /// Plays a tape of the CRI against the simulated runtime of a node. An agent that runs there takes what it does not
    /// know for left-overs.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub async fn replay(&self, node: &str, tape: &Tape) -> Result<Replayed, WorldError> {
        let target = RuntimeTarget(&self.node(node)?.runtime);
        Ok(podlab_tape::replay(tape, &target, None, self.clock, Patience::default()).await)
    }

    /// Runs a command in a container of a Pod; the first one when none is named.
    ///
    /// # Errors
    /// The API's when there is no such Pod or container, the runtime's in its words.
    pub async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[String],
    ) -> Result<ExecOutput, ApiError> {
        let (node, status) = self.container(namespace, pod, container).await?;
        let id = container_id(&status, "/containerID")?;
        node.runtime.exec_in(&id, command.to_vec()).await.map_err(|e| ApiError::new(Reason::InternalError, e.message))
    }

    /// A container's log, or that of its run before.
    ///
    /// # Errors
    /// The API's when there is no such Pod, container or log.
    pub async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        previous: bool,
    ) -> Result<String, ApiError> {
        let (node, status) = self.container(namespace, pod, container).await?;
        let name = status.get("name").and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        let shown = self.client.namespaced::<Pod>(namespace).get(pod).await?.status.unwrap_or_default();
        let id = podlab_kubelet::log_source(pod, &name, &shown, previous).map_err(ApiError::bad_request)?;
        let bare = id.rsplit("//").next().unwrap_or_default();
        // A container that was collected meanwhile leaves upstream's words in the place of its log.
        let path = node.runtime.container_status(bare).await.map(|s| PathBuf::from(s.log_path)).ok();
        let Some(path) = path else { return Ok(format!("unable to retrieve container logs for {id}")) };
        Ok(text_of(&node.log(&path).unwrap_or_default()))
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Object, ApiError> {
        let pod = self.client.namespaced::<Pod>(namespace).get(name).await?;
        Object::from_typed(&pod).map_err(|e| ApiError::internal(e.to_string()))
    }

    async fn container(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
    ) -> Result<(&Arc<Node>, serde_json::Value), ApiError> {
        let object = self.pod(namespace, pod).await?;
        let node = object.str_at(&["spec", "nodeName"]).unwrap_or_default();
        let node = self.node(node).map_err(|e| ApiError::bad_request(format!("pod {pod} is on no node: {e}")))?;
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let first = object.0.pointer("/spec/containers/0/name").and_then(|v| v.as_str());
        let wanted = container.or(first).unwrap_or_default();
        let mut all = lists.iter().filter_map(|l| object.at(&["status", l])?.as_array()).flatten();
        let found = all.find(|s| s.get("name").and_then(|v| v.as_str()) == Some(wanted)).cloned();
        let missing = || ApiError::bad_request(format!("container {wanted} is not valid for pod {pod}"));
        found.map(|s| (node, s)).ok_or_else(missing)
    }

    /// Addresses of Pods in use, by node.
    pub fn leaked_ips(&self) -> Vec<(String, String)> {
        let of = |n: &Arc<Node>| {
            let name = n.name.clone();
            self.network.leases(n.index).into_iter().map(move |ip| (name.clone(), ip.to_string()))
        };
        self.nodes.values().flat_map(of).collect()
    }

    /// Sandboxes there are, by node.
    pub fn leaked_sandboxes(&self) -> Vec<(String, String)> {
        let of = |n: &Arc<Node>| {
            let name = n.name.clone();
            n.runtime.sandboxes().into_iter().map(move |s| (name.clone(), s))
        };
        self.nodes.values().flat_map(of).collect()
    }

    /// Pod cgroups there are, by node.
    pub fn leaked_cgroups(&self) -> Vec<(String, String)> {
        let of = |n: &Arc<Node>| {
            let name = n.name.clone();
            n.pod_cgroups().into_iter().map(move |s| (name.clone(), s))
        };
        self.nodes.values().flat_map(of).collect()
    }

    /// Pod mounts there are, by node.
    pub fn leaked_mounts(&self) -> Vec<(String, String)> {
        let of = |n: &Arc<Node>| {
            let name = n.name.clone();
            n.host.mounts().into_iter().map(move |m| (name.clone(), m.display().to_string()))
        };
        self.nodes.values().flat_map(of).collect()
    }

    /// Everything a node holds for Pods, sorted.
    ///
    /// # Errors
    /// [`WorldError::Unknown`].
    pub fn holdings(&self, node: &str) -> Result<Vec<Holding>, WorldError> {
        let n = self.node(node)?;
        let mut out = n.runtime.holdings();
        let plain = |kind, what: String| Holding { kind, what, pod: None };
        out.extend(self.network.leases(n.index).into_iter().map(|ip| plain(Held::Ip, ip.to_string())));
        out.extend(n.pod_cgroups().into_iter().map(|name| {
            let uid = name.trim_start_matches("pod").trim_end_matches(".slice").replace('_', "-");
            Holding { kind: Held::Cgroup, what: name, pod: Some(uid) }
        }));
        for point in n.host.mounts() {
            let point = point.display().to_string();
            let uid = point.split_once("/pods/").and_then(|(_, rest)| rest.split('/').next().map(str::to_owned));
            out.extend(uid.map(|uid| Holding { kind: Held::Mount, what: point, pod: Some(uid) }));
        }
        out.sort();
        Ok(out)
    }

    /// Ends the cluster.
    pub async fn end(mut self) {
        self.nodes.values().for_each(|n| n.kill());
        self.stop.cancel();
        self.tasks.shutdown().await;
    }
}

/// Kills and restarts agents that a crash point or a choice has hit.
async fn carry_out(mut crashed: mpsc::UnboundedReceiver<Crash>, nodes: BTreeMap<String, Arc<Node>>, clock: Clock) {
    let mut restarts = JoinSet::new();
    while let Some(crash) = crashed.recv().await {
        if let Some(node) = nodes.get(&crash.node).cloned() {
            node.kill();
            restarts.spawn(async move {
                clock.sleep(crash.down).await;
                node.start();
            });
        }
    }
}

fn container_id(status: &serde_json::Value, at: &str) -> Result<String, ApiError> {
    let id = status.pointer(at).and_then(|v| v.as_str()).unwrap_or_default();
    let bare = id.rsplit("//").next().unwrap_or_default();
    if bare.is_empty() {
        return Err(ApiError::bad_request("the container has no id yet"));
    }
    Ok(bare.to_owned())
}

/// The text of a log file in the CRI format.
fn text_of(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        let mut parts = line.splitn(4, |b| *b == b' ');
        let (_, _, tag, text) = (parts.next(), parts.next(), parts.next(), parts.next());
        out.extend_from_slice(text.unwrap_or_default());
        if tag == Some(b"F") {
            out.push(b'\n');
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

async fn api_server(clock: Clock, rng: &Rng, recorder: &Recorder) -> Result<Arc<ApiServer>, WorldError> {
    let boot = |e: &dyn std::error::Error| WorldError::Boot(e.to_string());
    let config = StoreConfig { dir: None, durable: Durable::Off, ..StoreConfig::default() };
    let store = Store::open(config).map_err(|e| boot(&e))?;
    let mut config = ApiServerConfig::new(authority()?);
    config.advertise = Some((address::PLANE.into(), address::API_PORT));
    ApiServer::new(store, config, clock, rng.fork("apiserver"), recorder.clone()).await.map_err(|e| boot(&e))
}
