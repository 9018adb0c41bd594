//! What a node agent is told at its start.

mod file;
mod flags;
pub(crate) mod go_duration;
mod show;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use file::ConfigFileError;
use podlab_api::core::Taint;
use podlab_lifecycle::eviction::{self, Threshold};

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

/// When Pods are evicted for want of a resource of the node.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionConfig {
    /// Below what the node's signals must not fall.
    pub thresholds: Vec<Threshold>,
    /// How long a pressure condition is held.
    pub transition: Duration,
    /// Grace of a Pod evicted for a soft threshold, seconds.
    pub max_pod_grace: i64,
    /// Whether limits on ephemeral storage and emptyDir volumes are enforced.
    pub local_storage: bool,
}

impl EvictionConfig {
    /// Hard thresholds that hold when a configuration names none, as upstream's on Linux.
    pub const HARD: [(&str, &str); 5] = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
}

impl Default for EvictionConfig {
    fn default() -> Self {
        let none = BTreeMap::new();
        let hard = Self::HARD.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let thresholds = eviction::thresholds(&hard, &none, &BTreeMap::new(), &none);
        Self {
            thresholds: thresholds.expect("the defaults are well-formed"),
            transition: eviction::TRANSITION,
            max_pod_grace: 0,
            local_storage: true,
        }
    }
}

/// When images nobody uses are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcConfig {
    /// Percent of the images' file system from which images are removed…
    pub high: u8,
    /// …down to this.
    pub low: u8,
    /// Youngest age of an image to remove.
    pub min_age: Duration,
    /// Age from which an unused image goes whatever the disk says; zero for none.
    pub max_age: Duration,
}

impl Default for ImageGcConfig {
    fn default() -> Self {
        Self { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: Duration::ZERO }
    }
}

/// How long Pods of a priority and above have when the node shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// Lowest priority of the group.
    pub priority: i32,
    /// Grace of its Pods.
    pub grace: Duration,
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
    /// How often log sizes are looked at.
    pub container_log_monitor_period: Duration,
    /// Directory of static Pods' manifests.
    pub static_pod_path: Option<PathBuf>,
    /// How often that directory is read although nothing is said to have changed.
    pub file_check_period: Duration,
    /// Node-pressure eviction.
    pub eviction: EvictionConfig,
    /// Image garbage collection.
    pub image_gc: ImageGcConfig,
    /// File system whose fullness counts for images; where the runtime says it keeps them when `None`.
    pub image_fs: Option<PathBuf>,
    /// Whether the node's disk is a tmpfs: what lies on it is charged as memory and must not count as such.
    pub disk_is_memory: bool,
    /// What happens when the node shuts down, lowest priority first; empty switches graceful shutdown off.
    pub shutdown: Vec<ShutdownGroup>,
    /// Most Pods per CPU; 0 for no such bound.
    pub pods_per_core: i64,
    /// What is kept back from Pods, by resource (`cpu` in thousandths): the sum of both reservations.
    pub reserved: BTreeMap<String, i64>,
    /// Most processes of a Pod; 0 or below for no bound.
    pub pod_pids_limit: i64,
    /// Sysctls allowed beside the safe ones; a trailing `*` matches any rest.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Resync of a healthy Pod.
    pub sync_period: Duration,
    /// Whether the agent makes its Node itself.
    pub register_node: bool,
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
            container_log_monitor_period: Duration::from_secs(10),
            static_pod_path: None,
            file_check_period: Duration::from_secs(20),
            eviction: EvictionConfig::default(),
            image_gc: ImageGcConfig::default(),
            image_fs: None,
            disk_is_memory: false,
            shutdown: Vec::new(),
            pods_per_core: 0,
            reserved: BTreeMap::new(),
            pod_pids_limit: -1,
            allowed_unsafe_sysctls: Vec::new(),
            sync_period: podlab_lifecycle::worker::RESYNC,
            register_node: true,
        }
    }

    /// Most Pods on a node of so many CPUs (thousandths).
    pub(crate) fn pod_capacity(&self, cpu_milli: i64) -> i64 {
        if self.pods_per_core <= 0 {
            return self.max_pods;
        }
        (self.pods_per_core * (cpu_milli / 1000)).min(self.max_pods)
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
