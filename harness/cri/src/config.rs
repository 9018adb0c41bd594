//! What a bridge is told before it starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// Settings of one bridge. [`BridgeConfig::new`] gives defaults below two directories.
#[derive(Debug, Clone)]
pub struct BridgeConfig {
    /// Where the gRPC server listens; a stale socket is replaced.
    pub listen: PathBuf,
    /// State that survives the bridge: sandboxes, containers, images.
    pub root: PathBuf,
    /// State that dies with the node: writable layers, mount points, the pause program.
    pub run: PathBuf,
    /// Unpacked layers, by digest. May be shared by several bridges.
    pub content: PathBuf,
    /// Others use `content` too, so nothing is deleted from it.
    pub shared_content: bool,
    /// The control socket of the init whose child this process is.
    pub init_socket: PathBuf,
    /// The cgroup below which everything is made, as seen from the mount points; `None`: this process's own.
    pub cgroup_base: Option<String>,
    /// Cgroup of sandboxes that name none.
    pub default_cgroup_parent: String,
    /// Where network namespaces are kept.
    pub netns_dir: PathBuf,
    /// Mount a tmpfs for the writable layers, unless `run` already lies on one.
    pub upper_on_tmpfs: bool,
    /// Address of the streaming server; port 0: any.
    pub stream_address: SocketAddr,
    /// Where Localhost seccomp profiles without an absolute path are looked up.
    pub seccomp_dir: PathBuf,
    /// Registries.
    pub registries: RegistryConfig,
    /// For the run log.
    pub node_name: String,
    /// Names of the accepted runtime handlers besides the default, empty one.
    pub runtime_handlers: BTreeSet<String>,
}

/// How registries are reached. Credentials come with each pull.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// `host` or `host:port` spoken to in plain HTTP. Loopback addresses always are.
    pub plain_http: BTreeSet<String>,
    /// Addresses of names that no resolver knows; keys as in `plain_http`.
    pub hosts: BTreeMap<String, SocketAddr>,
    /// Certificates to trust, PEM; `None`: the system's.
    pub ca_file: Option<PathBuf>,
}

impl BridgeConfig {
    /// Defaults: state below `root`, volatile state below `run`.
    pub fn new(root: PathBuf, run: PathBuf) -> Self {
        Self {
            listen: run.join("cri.sock"),
            content: root.join("content"),
            shared_content: false,
            init_socket: run.join("init.sock"),
            cgroup_base: None,
            default_cgroup_parent: "podlab".into(),
            netns_dir: "/var/run/netns".into(),
            upper_on_tmpfs: true,
            stream_address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            seccomp_dir: "/var/lib/kubelet/seccomp".into(),
            registries: RegistryConfig::default(),
            node_name: String::new(),
            runtime_handlers: BTreeSet::new(),
            root,
            run,
        }
    }
}
