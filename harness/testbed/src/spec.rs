//! What cluster is wanted, and the addresses that follow from it.

use std::{net::Ipv4Addr, path::PathBuf};

use podlab_clock::Clock;
use podlab_timeline::Recorder;
use serde::{Deserialize, Serialize};

/// How much an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Memory only.
    Off,
    /// SIGKILL of any process.
    #[default]
    Batch,
    /// Power loss.
    Always,
}

/// Tapes that every node records: `<dir>/<node>.<seam>.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tapes {
    /// Folder, which exists.
    pub dir: PathBuf,
    /// Which seams.
    pub seams: Vec<podlab_tape::Seam>,
}

/// A cluster to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Name; also the name of its state directory.
    pub name: String,
    /// Number of nodes, `node-1` to `node-K`.
    pub nodes: u8,
    /// CPUs each node reports, in thousandths.
    pub node_cpu_milli: u64,
    /// Memory each node reports, bytes.
    pub node_memory: u64,
    /// Size of each node's disk, bytes.
    pub node_disk: u64,
    /// Image archives put on every node before it is Ready.
    pub image_archives: Vec<PathBuf>,
    /// Ports of 127.0.0.1 forwarded to the same port of `node-1`.
    pub publish: Vec<u16>,
    /// Durability of the store.
    pub durable: Durability,
    /// User and password of `private.registry.test`.
    pub registry_user: String,
    /// See `registry_user`.
    pub registry_password: String,
    /// Ends with this process's lifeline (a run), or lives until `down` (`up`).
    pub tied_to_runner: bool,
    /// Seed of every component's randomness; 0 takes one from the kernel.
    pub seed: u64,
    /// Where the run log goes; the cluster's own directory when absent.
    pub run_log: Option<PathBuf>,
    /// `KubeletConfiguration` of every node agent, as text.
    #[serde(default)]
    pub kubelet_config: Option<String>,
    /// Flags of every node agent, `name=value`, over the configuration.
    #[serde(default)]
    pub kubelet_flags: Vec<String>,
    /// Faults at the seams of every node.
    pub faults: Vec<podlab_fault::Fault>,
    /// Where the API listens; a free port of loopback when absent. Certificates name loopback only, so clients elsewhere
    /// come through a forwarded port.
    #[serde(default)]
    pub api_listen: Option<std::net::SocketAddr>,
    /// Whether components keep a run log.
    #[serde(default)]
    pub tracing: Tracing,
    /// A phase made slower on purpose, to see that a comparison finds it.
    #[serde(default)]
    pub planted: Option<Planted>,
    /// Tapes to record.
    #[serde(default)]
    pub tapes: Option<Tapes>,
    /// A known-bad change to its components, for tests of what is to find it.
    #[serde(default)]
    pub mutant: Option<podlab_mutant::Mutant>,
}

/// Whether the components of a cluster write down what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Tracing {
    /// Into the run log.
    #[default]
    On,
    /// Nowhere: there are no timelines and no phases.
    Off,
}

/// A delay before a milestone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planted {
    /// Which milestone.
    pub stage: podlab_timeline::Stage,
    /// How long.
    pub delay: std::time::Duration,
}

impl ClusterSpec {
    /// One node with 2 CPUs and 4 GiB, as `podlab up` boots it.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: 1,
            node_cpu_milli: 2000,
            node_memory: 4 << 30,
            node_disk: 4 << 30,
            image_archives: Vec::new(),
            publish: Vec::new(),
            durable: Durability::Batch,
            registry_user: "bench".into(),
            registry_password: "s3cret".into(),
            tied_to_runner: false,
            seed: 0,
            run_log: None,
            kubelet_config: None,
            kubelet_flags: Vec::new(),
            faults: Vec::new(),
            api_listen: None,
            tracing: Tracing::On,
            planted: None,
            tapes: None,
            mutant: None,
        }
    }

    /// How a component of this cluster records, given the way it would.
    pub(crate) fn recorder(&self, recorder: Recorder, clock: Clock) -> Recorder {
        let recorder = match self.tracing {
            Tracing::On => recorder,
            Tracing::Off => Recorder::disabled(clock),
        };
        self.planted.map_or(recorder.clone(), |p| recorder.planted(p.stage, p.delay))
    }

    /// The names of the nodes, in order.
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|i| format!("node-{i}")).collect()
    }
}

/// Where things are inside a capsule. Every capsule has its own network namespace, so all use the same addresses.
pub mod address {
    use super::Ipv4Addr;

    /// The plane, on the bridge that connects the nodes.
    pub const PLANE: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
    /// `registry.test`.
    pub const REGISTRY: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 2);
    /// `private.registry.test`.
    pub const PRIVATE_REGISTRY: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 3);
    /// The cluster DNS server behind [`DNS_SERVICE`].
    pub const DNS: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 4);
    /// Prefix of the bridge's network.
    pub const PLANE_PREFIX: u8 = 24;
    /// The API server's port on [`PLANE`].
    pub const API_PORT: u16 = 6443;
    /// Address of the `kubernetes` Service.
    pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
    /// Tenth address of the service range: cluster DNS.
    pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
    /// The cluster's DNS domain.
    pub const DOMAIN: &str = "cluster.local";
    /// The node agent's port.
    pub const KUBELET_PORT: u16 = 10250;

    /// Address of node `index` (1-based).
    pub fn node(index: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 18, 0, 10 + index)
    }

    /// Pod network of node `index` (1-based), a /24.
    pub fn pod_network(index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, index, 0)
    }
}
