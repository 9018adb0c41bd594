//! The agent of a node: node agent, CRI bridge, CSI driver and Service proxy in one process, a child of node init.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_client::{Client, http::HttpApi, kubeconfig::ClusterAccess};
use podlab_clock::Clock;
use podlab_cni::chain::Mode;
use podlab_cri::{Bridge, BridgeConfig, BridgeDeps, CniConfig, CniNetwork};
use podlab_fault::Plan;
use podlab_timeline::Recorder;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    RUN_DIR,
    components::{self, Common},
    network::CniTap,
    rootfs,
};
use crate::{
    capsule::Capsule,
    plane::chain,
    spec::{ClusterSpec, address},
    telemetry,
};

/// Where the bridge keeps what survives it, on the node's disk.
pub(crate) const CRI_ROOT: &str = "/var/lib/podlab/cri";
/// Unpacked layers, shared by all nodes and runs of this user.
pub(crate) const CONTENT: &str = "/var/lib/podlab/content";

/// Everything the agent needs from outside the node, read before the node's root hides it.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) spec: ClusterSpec,
    pub(super) index: u8,
    pub(super) name: String,
    pub(super) ca: String,
    pub(super) client: (String, String),
    pub(super) server: (String, String),
    run_log: File,
}

impl Settings {
    pub(super) fn new(capsule: &Capsule, index: u8) -> io::Result<Self> {
        let name = format!("node-{index}");
        let pki = |file: &str| fs::read_to_string(capsule.state.join("pki").join(file));
        let log = capsule.spec.run_log.clone().unwrap_or_else(|| capsule.state.join("run.jsonl"));
        Ok(Self {
            spec: capsule.spec.clone(),
            index,
            ca: pki("ca.crt")?,
            client: (pki(&format!("{name}-client.crt"))?, pki(&format!("{name}-client.key"))?),
            server: (pki(&format!("{name}-server.crt"))?, pki(&format!("{name}-server.key"))?),
            run_log: File::options().create(true).append(true).open(log)?,
            name,
        })
    }

    /// A client of the API server as this node.
    fn api(&self) -> Result<Client, podlab_client::http::AccessError> {
        let access = ClusterAccess {
            server: format!("https://{}:{}", address::PLANE, address::API_PORT),
            ca_pem: Some(self.ca.clone().into_bytes()),
            token: None,
            cert_pem: Some(self.client.0.clone().into_bytes()),
            key_pem: Some(self.client.1.clone().into_bytes()),
        };
        Ok(Client::new(Arc::new(HttpApi::new(&access)?)))
    }

    fn bridge_config(&self) -> BridgeConfig {
        let mut config = BridgeConfig::new(CRI_ROOT.into(), "/run/cri".into());
        config.init_socket = Path::new(RUN_DIR).join("init.sock");
        config.content = CONTENT.into();
        config.shared_content = true;
        config.cgroup_base = Some("/".into());
        config.node_name.clone_from(&self.name);
        for (host, ip) in [("registry.test", address::REGISTRY), ("private.registry.test", address::PRIVATE_REGISTRY)] {
            config.registries.plain_http.insert(host.to_owned());
            config.registries.hosts.insert(host.to_owned(), SocketAddr::from((ip, 80)));
        }
        config
    }
}

/// The body of the agent, in a fresh child of node init.
pub(super) fn main(settings: &Settings) -> i32 {
    telemetry::init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            crate::telemetry::say(format_args!("agent: {e}"));
            return 1;
        }
    };
    match runtime.block_on(run(settings)) {
        Ok(()) => 0,
        Err(e) => {
            tracing::error!(error = %chain(&*e), "agent ended");
            1
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn run(s: &Settings) -> Result<(), Failure> {
    let clock = Clock::real();
    let rng = telemetry::rng(s.spec.seed, &s.name);
    let recorder = Recorder::new(Arc::new(s.run_log.try_clone()?), clock);
    let recorder = s.spec.recorder(recorder, clock).on_node(&s.name);
    let shutdown = CancellationToken::new();
    let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();

    let plan = Arc::new(Plan::new(s.spec.faults.clone()));
    Mode::Linked.set_for_process();
    let cni = CniConfig {
        conf_dir: "/etc/cni/net.d".into(),
        bin_dirs: vec![PathBuf::from(rootfs::CNI_BIN)],
        cache_dir: "/run/cni/results".into(),
        mode: Mode::Linked,
    };
    let network = CniTap::new(CniNetwork::new(cni, clock), plan.clone(), &recorder, clock);
    let config = s.bridge_config();
    let socket = config.listen.clone();
    let deps = BridgeDeps { clock, rng: rng.fork("cri"), recorder: recorder.clone(), network: Arc::new(network) };
    let bridge = Bridge::new(config, deps)?;
    let token = shutdown.clone();
    tasks.spawn(async move { Ok(bridge.run(token).await?) });

    let common = Common { client: s.api()?, clock, rng, recorder, shutdown: shutdown.clone() };
    components::start_csi(&mut tasks, s, &common)?;
    components::start_proxy(&mut tasks, s, &common);
    components::start_kubelet(&mut tasks, s, &socket, &plan, &common)?;
    crate::plane::finish(tasks, &shutdown).await
}
