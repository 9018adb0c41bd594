//! What a node agent is told at its start.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use podlab_api::core::Taint;

/// TLS of the agent's own server, all PEM.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Certificate chain.
    pub cert: String,
    /// Private key.
    pub key: String,
    /// CA of the clients that are let in.
    pub client_ca: String,
}

/// The agent's HTTPS server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes any.
    pub listen: SocketAddr,
    /// Certificates.
    pub tls: ServerTls,
}

/// How many images may be pulled at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePulls {
    /// One, the others wait in a queue (`serializeImagePulls: true`).
    Serial,
    /// At most this many; `None` for any number.
    Parallel(Option<usize>),
}

/// Configuration of one node agent. Defaults are upstream's, except where the doc says so.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// Node name.
    pub node_name: String,
    /// Hostname to report and to label the node with; the node name when empty.
    pub hostname: String,
    /// Addresses of the node, the primary one first.
    pub node_ips: Vec<String>,
    /// State of the agent.
    pub root_dir: PathBuf,
    /// Container logs.
    pub pod_logs_dir: PathBuf,
    /// Symbolic links `<pod>_<namespace>_<container>-<id>.log`; `None` leaves them out.
    pub container_logs_dir: Option<PathBuf>,
    /// Labels the node registers with.
    pub labels: BTreeMap<String, String>,
    /// Taints the node registers with.
    pub taints: Vec<Taint>,
    /// Kubernetes version to report, e.g. `v1.36.3`.
    pub version: String,
    /// Cluster DNS servers.
    pub cluster_dns: Vec<String>,
    /// Cluster domain.
    pub cluster_domain: String,
    /// The node's resolver configuration, for Pods that use it.
    pub resolv_conf: PathBuf,
    /// CPUs to report, in thousandths; the machine's when `None`.
    pub cpu_milli: Option<i64>,
    /// Memory to report, bytes; the machine's when `None`.
    pub memory: Option<i64>,
    /// Ephemeral storage to report, bytes; the file system's when `None`.
    pub ephemeral_storage: Option<i64>,
    /// Most Pods on the node.
    pub max_pods: i64,
    /// Path of the cgroup (below [`Self::cgroup_root`]) that holds all Pods; `None` leaves Pod cgroups to the runtime.
    pub cgroup_root: Option<String>,
    /// The agent's server; `None` for no server.
    pub server: Option<ServerConfig>,
    /// Port to report when it differs from where the server listens.
    pub advertise_port: Option<u16>,
    /// Image pulls.
    pub image_pulls: ImagePulls,
    /// Longest crash-loop back-off.
    pub max_restart_period: Duration,
    /// How often the node's status is computed.
    pub node_status_period: Duration,
    /// How often an unchanged node status is written.
    pub node_report_period: Duration,
    /// Lease duration; renewed every quarter of it.
    pub lease_duration: Duration,
    /// Safety net under the runtime's events.
    pub relist_period: Duration,
    /// Provider id of the node, if any.
    pub provider_id: Option<String>,
    /// Most images listed in the node's status.
    pub node_status_max_images: usize,
    /// Whether a container without a seccomp profile gets the runtime's default.
    pub seccomp_default: bool,
    /// Log size from which a container's log is rotated, bytes.
    pub container_log_max_size: u64,
    /// Log files kept per container.
    pub container_log_max_files: usize,
    /// A fault put in on purpose, for tests of what is to find it.
    #[doc(hidden)]
    pub mutant: Mutant,
}

/// Faults that can be put into the agent on purpose, to see that a search finds them. Nothing but such a test sets one.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// None.
    #[default]
    Sound,
    /// An agent that starts takes no notice of the containers its predecessor left.
    ForgetsWhatRuns,
}

impl KubeletConfig {
    /// Upstream's defaults for a node; reports only its own addresses.
    pub fn new(node_name: &str, node_ips: Vec<String>) -> Self {
        Self {
            node_name: node_name.to_owned(),
            hostname: node_name.to_owned(),
            node_ips,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            container_logs_dir: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            version: "v1.36.3".to_owned(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            cpu_milli: None,
            memory: None,
            ephemeral_storage: None,
            max_pods: 110,
            cgroup_root: Some("/".to_owned()),
            server: None,
            advertise_port: None,
            image_pulls: ImagePulls::Serial,
            max_restart_period: podlab_lifecycle::backoff::MAX,
            node_status_period: Duration::from_secs(10),
            node_report_period: Duration::from_secs(300),
            lease_duration: Duration::from_secs(40),
            relist_period: Duration::from_secs(10),
            provider_id: None,
            node_status_max_images: 50,
            seccomp_default: false,
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            mutant: Mutant::Sound,
        }
    }

    /// Directory of a Pod.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// Directory of a Pod's volume of a plugin, e.g. `kubernetes.io~empty-dir`.
    pub(crate) fn volume_dir(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes").join(plugin).join(name)
    }

    /// Directory of a Pod's logs.
    pub(crate) fn log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }

    /// Where plugins register.
    pub(crate) fn plugin_registry(&self) -> PathBuf {
        self.root_dir.join("plugins_registry")
    }

    /// Where CSI volumes of a driver are staged.
    pub(crate) fn csi_dir(&self, driver: &str) -> PathBuf {
        self.root_dir.join(Path::new("plugins/kubernetes.io/csi")).join(driver)
    }
}
