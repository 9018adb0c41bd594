//! A node of the virtual world: a machine in memory with a simulated runtime and driver, and the real node agent on it.

mod csi;
mod images;
mod process;
mod replay;
mod runtime;
mod tap;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use podlab_client::{Api, Client};
use podlab_clock::{Clock, Rng};
use podlab_csi::{
    attacher::Attacher,
    provisioner::{Provisioner, ProvisionerConfig},
};
use podlab_fault::Plan;
use podlab_kubelet::{Deps, Host, Kubelet, KubeletConfig, Machine, fake::MemoryHost};
use podlab_timeline::Recorder;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub(super) use images::Registries;
pub(super) use replay::RuntimeTarget;
pub(super) use runtime::SimRuntime;

use self::{csi::SimDriver, images::ImageStore, runtime::Parts, tap::TappedRuntime};
use super::{
    choices::Choices,
    network::{Network, NodeNetwork},
    seam::{Crash, Life, Seam},
};
use crate::{
    api_tap::ApiTap,
    node::CniTap,
    spec::{ClusterSpec, address},
};

/// How long an agent that is stopped may take.
const STOP: Duration = Duration::from_secs(10);

/// What all nodes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) recorder: Recorder,
    pub(super) choices: Choices,
    pub(super) plan: Arc<Plan>,
    pub(super) api: Arc<dyn Api>,
    pub(super) network: Arc<Network>,
    pub(super) registries: Arc<Registries>,
    pub(super) crashes: mpsc::UnboundedSender<Crash>,
    pub(super) spec: ClusterSpec,
}

/// A running agent.
struct Running {
    dead: CancellationToken,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// One node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) index: u8,
    pub(super) host: Arc<MemoryHost>,
    pub(super) runtime: Arc<SimRuntime>,
    driver: Arc<SimDriver>,
    shared: Shared,
    agent: Mutex<Option<Running>>,
    incarnation: Mutex<u32>,
}

impl Node {
    pub(super) fn new(index: u8, shared: Shared) -> Arc<Self> {
        let (clock, name) = (shared.clock, format!("node-{index}"));
        let machine = Machine {
            cpu_milli: i64::try_from(shared.spec.node_cpu_milli).unwrap_or(i64::MAX),
            memory: i64::try_from(shared.spec.node_memory).unwrap_or(i64::MAX),
            machine_id: format!("{index:032x}"),
            system_uuid: format!("{index:032x}"),
            boot_id: format!("{:032x}", shared.rng.fork(&name).next_u64()),
            kernel: "virtual".into(),
            os_image: "podlab".into(),
            architecture: "amd64".into(),
            hugepages: Vec::new(),
        };
        let host = MemoryHost::new(clock, machine);
        host.dial_by(shared.network.clone());
        let seam = Seam {
            who: format!("runtime {name}"),
            choices: shared.choices.clone(),
            plan: shared.plan.clone(),
            recorder: shared.recorder.on_node(&name),
            clock,
            life: None,
        };
        let cni = NodeNetwork { network: shared.network.clone(), index };
        let runtime = SimRuntime::new(Parts {
            clock,
            rng: shared.rng.fork(&format!("runtime {name}")),
            host: host.clone(),
            network: shared.network.clone(),
            cni: Arc::new(CniTap::new(cni, shared.plan.clone(), &seam.recorder, clock)),
            images: ImageStore::new(shared.registries.clone()),
            node_ip: address::node(index).to_string(),
            memory: shared.spec.node_memory,
            recorder: seam.recorder.clone(),
        });
        let driver = SimDriver::new(&name, host.clone());
        Arc::new(Self {
            name,
            index,
            host,
            runtime,
            driver,
            shared,
            agent: Mutex::new(None),
            incarnation: Mutex::new(0),
        })
    }

    /// Starts the agent, unless one runs.
    pub(super) fn start(&self) {
        let mut slot = self.agent.lock();
        if slot.is_some() {
            return;
        }
        let n = {
            let mut n = self.incarnation.lock();
            *n += 1;
            *n
        };
        let (shared, clock) = (&self.shared, self.shared.clock);
        let (dead, stop) = (CancellationToken::new(), CancellationToken::new());
        let recorder = shared.recorder.on_node(&self.name);
        let seam = Seam {
            who: format!("agent {}", self.name),
            choices: shared.choices.clone(),
            plan: shared.plan.clone(),
            recorder: recorder.clone(),
            clock,
            life: Some(Life { node: self.name.clone(), dead: dead.clone(), crashes: shared.crashes.clone() }),
        };
        let rng = shared.rng.fork(&format!("agent {} {n}", self.name));
        let client = Client::new(Arc::new(ApiTap::new(shared.api.clone(), seam.clone())));
        let tapped = Arc::new(TappedRuntime { runtime: self.runtime.clone(), seam: seam.clone() });
        let mut tasks = JoinSet::new();
        self.driver.listen();
        let driver = Arc::new(csi::TappedDriver { driver: self.driver.clone(), seam });
        let deps = Deps {
            client: client.clone(),
            clock,
            rng: rng.fork("kubelet"),
            recorder,
            host: self.host.clone(),
            runtime: tapped.clone(),
            images: tapped,
            plugins: Some(driver.clone()),
        };
        let kubelet = Kubelet::new(self.config(), deps);
        let token = stop.clone();
        tasks.spawn(async move {
            if let Err(error) = kubelet.run(token).await {
                tracing::error!(%error, "agent ended");
            }
        });
        let config = ProvisionerConfig { driver: csi::NAME.to_owned(), socket: "/".into(), node: self.name.clone() };
        let provisioner = Provisioner::over(driver, config, client.clone(), clock, rng.fork("provisioner"));
        let token = stop.clone();
        tasks.spawn(async move { provisioner.run(token).await });
        let (attacher, token) = (Attacher::new(csi::NAME, client, clock), stop.clone());
        tasks.spawn(async move { attacher.run(token).await });
        *slot = Some(Running { dead, stop, tasks });
    }

    /// Kills the agent: no call of it has an effect from now on. Containers live on.
    pub(super) fn kill(&self) {
        if let Some(mut running) = self.agent.lock().take() {
            running.dead.cancel();
            running.tasks.abort_all();
            // What the agent had spawned sees this and lets go; it cannot reach anything any more.
            running.stop.cancel();
        }
    }

    /// Stops the agent as SIGTERM does, and waits for it.
    pub(super) async fn stop(&self) {
        let running = self.agent.lock().take();
        if let Some(mut running) = running {
            running.stop.cancel();
            let all = async { while running.tasks.join_next().await.is_some() {} };
            let _ = self.shared.clock.timeout(STOP, all).await;
            running.dead.cancel();
        }
    }

    /// Takes the whole node down at once.
    pub(super) fn power_off(&self) {
        self.kill();
        self.runtime.power_off();
        for s in self.runtime.sandboxes() {
            self.shared.network.forget(&s);
        }
        self.host.power_off(&format!("{:032x}", self.shared.rng.next_u64()));
    }

    fn config(&self) -> KubeletConfig {
        let (spec, ip) = (&self.shared.spec, address::node(self.index));
        let mut config = KubeletConfig::new(&self.name, vec![ip.to_string()]);
        config.cluster_dns = vec![address::DNS_SERVICE.to_string()];
        config.cluster_domain = address::DOMAIN.to_owned();
        config.cpu_milli = i64::try_from(spec.node_cpu_milli).ok();
        config.memory = i64::try_from(spec.node_memory).ok();
        config.ephemeral_storage = i64::try_from(spec.node_disk).ok();
        config.container_logs_dir = Some("/var/log/containers".into());
        config
    }

    /// The UIDs of Pods that have a cgroup.
    pub(super) fn pod_cgroups(&self) -> Vec<String> {
        let all = self.host.cgroups();
        let leaf = |p: &String| p.rsplit('/').next().unwrap_or_default().to_owned();
        all.keys().map(leaf).filter(|n| n.starts_with("pod") && n.len() > 30).collect()
    }

    /// A container's log from its file.
    pub(super) fn log(&self, path: &std::path::Path) -> Option<Vec<u8>> {
        let size = self.host.stat(path).ok()?.size;
        self.host.read_at(path, 0, usize::try_from(size).ok()?).ok()
    }
}
