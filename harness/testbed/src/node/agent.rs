//! The agent of a node: node agent, CRI bridge, CSI driver and Service proxy in one process, a child of node init.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_client::{Api, Client, http::HttpApi, kubeconfig::ClusterAccess};
use podlab_clock::Clock;
use podlab_cni::chain::Mode;
use podlab_cri::{Bridge, BridgeConfig, BridgeDeps, CniConfig, CniNetwork};
use podlab_tape::Seam;
use podlab_timeline::{Lane, Recorder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    RUN_DIR,
    components::{self, Common, Taps},
    network::CniTap,
    rootfs,
    tap::{ApiGate, Life, Tap},
};
use crate::{
    api_tap::ApiTap,
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
    /// Tapes to record, each an open file and its path outside.
    tapes: Vec<(Seam, File, PathBuf)>,
}

impl Settings {
    pub(super) fn new(capsule: &Capsule, index: u8) -> io::Result<Self> {
        let name = format!("node-{index}");
        let pki = |file: &str| fs::read_to_string(capsule.state.join("pki").join(file));
        let log = capsule.spec.run_log.clone().unwrap_or_else(|| capsule.state.join("run.jsonl"));
        let mut tapes = Vec::new();
        for (seam, dir) in capsule.spec.tapes.iter().flat_map(|t| t.seams.iter().map(|s| (*s, &t.dir))) {
            let path = dir.join(format!("{name}.{}.jsonl", seam.name()));
            tapes.push((seam, File::options().create(true).append(true).open(&path)?, path));
        }
        Ok(Self {
            tapes,
            spec: capsule.spec.clone(),
            index,
            ca: pki("ca.crt")?,
            client: (pki(&format!("{name}-client.crt"))?, pki(&format!("{name}-client.key"))?),
            server: (pki(&format!("{name}-server.crt"))?, pki(&format!("{name}-server.key"))?),
            run_log: File::options().create(true).append(true).open(log)?,
            name,
        })
    }

    /// Who records a seam, if anybody does.
    pub(super) fn recorder(&self, seam: Seam, clock: Clock) -> Result<Option<podlab_tape::Recorder>, Failure> {
        let Some((_, file, path)) = self.tapes.iter().find(|(s, ..)| *s == seam) else { return Ok(None) };
        Ok(Some(podlab_tape::Recorder::begin(file.try_clone()?, path, seam, clock)?))
    }

    /// The API server as this node reaches it.
    fn api(&self) -> Result<Arc<dyn Api>, podlab_client::http::AccessError> {
        let access = ClusterAccess {
            server: format!("https://{}:{}", address::PLANE, address::API_PORT),
            ca_pem: Some(self.ca.clone().into_bytes()),
            token: None,
            cert_pem: Some(self.client.0.clone().into_bytes()),
            key_pem: Some(self.client.1.clone().into_bytes()),
        };
        Ok(Arc::new(HttpApi::new(&access)?))
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
    podlab_mutant::for_process(settings.spec.mutant);
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
    let rng = telemetry::rng(s.spec.seed, &s.name, Path::new(CRI_ROOT))?;
    let recorder = Recorder::new(Arc::new(s.run_log.try_clone()?), clock);
    let recorder = s.spec.recorder(recorder, clock).on_node(&s.name);
    let shutdown = CancellationToken::new();
    let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();

    let life = Life::new(RUN_DIR);
    clock.sleep(life.away()).await;
    let plan = Arc::new(life.plan(s.spec.faults.clone()));
    Mode::Linked.set_for_process();
    let cni = CniConfig {
        conf_dir: "/etc/cni/net.d".into(),
        bin_dirs: vec![PathBuf::from(rootfs::CNI_BIN)],
        cache_dir: "/run/cni/results".into(),
        mode: Mode::Linked,
    };
    let network = CniTap::new(CniNetwork::new(cni, clock), plan.clone(), &recorder, clock).of_life(&life);
    let config = s.bridge_config();
    let socket = config.listen.clone();
    let deps = BridgeDeps { clock, rng: rng.fork("cri"), recorder: recorder.clone(), network: Arc::new(network) };
    let bridge = Bridge::new(config, deps)?;
    let token = shutdown.clone();
    tasks.spawn(async move { Ok(bridge.run(token).await?) });
    let socket = components::recorded(&mut tasks, s, Seam::Cri, socket, clock, &shutdown)?;

    let tap = |lane| Tap::new(plan.clone(), recorder.lane(lane), clock).of_life(&life);
    let client = Client::new(match plan.at("api") {
        true => Arc::new(ApiTap::new(s.api()?, ApiGate::new(tap(Lane::Api), &s.name))),
        false => s.api()?,
    });
    let taps = Taps { cri: plan.at("cri").then(|| tap(Lane::Cri)), csi: plan.at("csi").then(|| tap(Lane::Csi)) };
    let common = Common { client, clock, rng, recorder, shutdown: shutdown.clone() };
    components::start_csi(&mut tasks, s, &common)?;
    components::start_proxy(&mut tasks, s, &common);
    components::start_kubelet(&mut tasks, s, &socket, taps, &common)?;
    crate::plane::finish(tasks, &shutdown).await
}
