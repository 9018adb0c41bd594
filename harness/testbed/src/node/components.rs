//! What runs beside the bridge in the agent's process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_client::Client;
use podlab_clock::{Clock, Rng};
use podlab_csi::{
    attacher::Attacher,
    driver::{self, Driver, DriverConfig},
    provisioner::{Provisioner, ProvisionerConfig},
    registrar::Registrar,
};
use podlab_kubelet::{
    ConfigFileError, CriSocket, Deps, Images, Kubelet, KubeletConfig, LinuxHost, PluginSockets, Plugins, Runtime,
    ServerConfig, ServerTls,
};
use podlab_tape::Seam;
use podlab_timeline::Recorder;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{agent::Settings, cri_tap::CriTap, csi_tap::CsiTap, tap::Tap};
use crate::spec::{ClusterSpec, address};

/// Where the node agent keeps its things.
const KUBELET_DIR: &str = "/var/lib/kubelet";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What every component gets.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) client: Client,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) recorder: Recorder,
    pub(super) shutdown: CancellationToken,
}

/// The taps at the node agent's seams, where the fault plan has work for them.
pub(super) struct Taps {
    pub(super) cri: Option<Tap>,
    pub(super) csi: Option<Tap>,
}

/// Starts the node agent on the bridge's socket.
pub(super) fn start_kubelet(
    tasks: &mut JoinSet<Result<(), Failure>>,
    s: &Settings,
    socket: &Path,
    taps: Taps,
    common: &Common,
) -> Result<(), Failure> {
    let cri = CriSocket::new(socket)?;
    let (runtime, images): (Arc<dyn Runtime>, Arc<dyn Images>) = if let Some(tap) = taps.cri {
        let tapped = Arc::new(CriTap::new(cri, tap));
        (tapped.clone(), tapped)
    } else {
        let plain = Arc::new(cri);
        (plain.clone(), plain)
    };
    let plugins: Arc<dyn Plugins> = match taps.csi {
        Some(tap) => Arc::new(CsiTap::new(PluginSockets, tap)),
        None => Arc::new(PluginSockets),
    };
    let deps = Deps {
        client: common.client.clone(),
        clock: common.clock,
        rng: common.rng.fork("kubelet"),
        recorder: common.recorder.clone(),
        host: Arc::new(LinuxHost::new(common.clock, "/")),
        runtime,
        images,
        plugins: Some(plugins),
    };
    let kubelet = Kubelet::new(kubelet_config(s)?, deps);
    let token = common.shutdown.clone();
    tasks.spawn(async move { Ok(kubelet.run(token).await?) });
    Ok(())
}

/// The socket to reach a plugin by: its own, or that of a recorder in front of it.
pub(super) fn recorded(
    tasks: &mut JoinSet<Result<(), Failure>>,
    s: &Settings,
    seam: Seam,
    plugin: PathBuf,
    clock: Clock,
    shutdown: &CancellationToken,
) -> Result<PathBuf, Failure> {
    let Some(recorder) = s.recorder(seam, clock)? else { return Ok(plugin) };
    let (listen, token) = (plugin.with_extension("tape.sock"), shutdown.clone());
    let proxy = listen.clone();
    tasks.spawn(async move { Ok(podlab_tape::record(&listen, &plugin, recorder, token).await?) });
    Ok(proxy)
}

/// Starts the bundled CSI driver, tells the node agent of it, and provisions for the node's claims.
pub(super) fn start_csi(
    tasks: &mut JoinSet<Result<(), Failure>>,
    s: &Settings,
    common: &Common,
) -> Result<(), Failure> {
    let home = Path::new(KUBELET_DIR).join("plugins").join(driver::NAME);
    let socket = home.join("csi.sock");
    let config = DriverConfig { socket: socket.clone(), root: home.join("volumes"), node_id: s.name.clone() };
    let (csi, token) = (Driver::new(config)?, common.shutdown.clone());
    tasks.spawn(async move { Ok(csi.run(token).await?) });
    let socket = recorded(tasks, s, Seam::Csi, socket, common.clock, &common.shutdown)?;
    let registration = Path::new(KUBELET_DIR).join("plugins_registry").join(format!("{}-reg.sock", driver::NAME));
    let registrar = Registrar { socket: registration, name: driver::NAME.to_owned(), endpoint: socket.clone() };
    let token = common.shutdown.clone();
    tasks.spawn(async move { Ok(registrar.run(token).await?) });
    let config = ProvisionerConfig { driver: driver::NAME.to_owned(), socket, node: s.name.clone() };
    let provisioner = Provisioner::new(config, common.client.clone(), common.clock, common.rng.fork("provisioner"));
    let token = common.shutdown.clone();
    tasks.spawn(async move {
        provisioner.run(token).await;
        Ok(())
    });
    let attacher = Attacher::new(driver::NAME, common.client.clone(), common.clock);
    let token = common.shutdown.clone();
    tasks.spawn(async move {
        attacher.run(token).await;
        Ok(())
    });
    Ok(())
}

/// Starts the Service proxy in the node's network namespace.
pub(super) fn start_proxy(tasks: &mut JoinSet<Result<(), Failure>>, s: &Settings, common: &Common) {
    let proxy = podlab_services::proxy::Proxy::new(common.client.clone(), common.clock, &s.name);
    let token = common.shutdown.clone();
    tasks.spawn(async move {
        proxy.run(token).await;
        Ok(())
    });
}

/// Where manifests of static Pods lie in a node, as kubeadm has them.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Takes over a cluster's configuration and flags of node agents; returns what changes nothing here.
///
/// # Errors
/// What is wrong with them, in a sentence.
pub(crate) fn configure(config: &mut KubeletConfig, spec: &ClusterSpec) -> Result<Vec<&'static str>, ConfigFileError> {
    let mut idle = match &spec.kubelet_config {
        Some(text) => config.apply_file(text)?,
        None => Vec::new(),
    };
    idle.extend(config.apply_flags(&spec.kubelet_flags)?);
    Ok(idle)
}

fn kubelet_config(s: &Settings) -> Result<KubeletConfig, ConfigFileError> {
    let ip = address::node(s.index);
    let mut config = KubeletConfig::new(&s.name, vec![ip.to_string()]);
    config.static_pod_path = Some(MANIFESTS.into());
    // Layers are shared with other nodes and runs: what counts for this node is its own disk, which is a tmpfs.
    config.image_fs = Some(KUBELET_DIR.into());
    config.disk_is_memory = true;
    config.cluster_dns = vec![address::DNS_SERVICE.to_string()];
    config.cluster_domain = address::DOMAIN.to_owned();
    config.cpu_milli = i64::try_from(s.spec.node_cpu_milli).ok();
    config.memory = i64::try_from(s.spec.node_memory).ok();
    config.ephemeral_storage = i64::try_from(s.spec.node_disk).ok();
    config.container_logs_dir = Some("/var/log/containers".into());
    let (cert, key) = s.server.clone();
    let tls = ServerTls { cert, key, client_ca: s.ca.clone() };
    config.server = Some(ServerConfig { listen: SocketAddr::from((ip, address::KUBELET_PORT)), tls });
    for field in configure(&mut config, &s.spec)? {
        tracing::warn!(field, "changes nothing here");
    }
    Ok(config)
}
