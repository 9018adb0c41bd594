//! The runtime's view of one Pod: its sandboxes and containers as last observed. Decisions read this, never the wire.

use podlab_api::{core::Pod, jiff::Timestamp};

use crate::spec;

/// Where a container is. `Created → Running → Exited`; `Unknown` after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuntimeState {
    /// Made, not started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime lost track of it.
    Unknown,
}

/// Who a container's process runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunsAs {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Supplementary groups.
    pub groups: Vec<i64>,
}

/// One container of the runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerRecord {
    /// The runtime's id, without a scheme.
    pub id: String,
    /// Container name in the Pod.
    pub name: String,
    /// How many came before it under this name.
    pub restart_count: u32,
    /// Where it is.
    pub state: RuntimeState,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was started, if it was.
    pub started_at: Option<Timestamp>,
    /// When it ended, if it did.
    pub finished_at: Option<Timestamp>,
    /// Exit code, meaningful once exited; above 128 a signal ended it.
    pub exit_code: i32,
    /// The runtime's reason: `Completed`, `Error`, `OOMKilled`, `StartError`…
    pub reason: String,
    /// Termination message, or the runtime's own words.
    pub message: String,
    /// Image as the spec named it.
    pub image: String,
    /// Image reference to report as `imageID`.
    pub image_id: String,
    /// Hash of the part of the spec whose change means a restart; `None` when the annotation is missing.
    pub spec_hash: Option<u64>,
    /// Whom it runs as, if the runtime says so.
    pub user: Option<RunsAs>,
    /// CPU quota, period, shares and memory limit in force, if the runtime says so.
    pub resources: Option<RuntimeResources>,
}

/// Linux resources in force on a container, in the runtime's own units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeResources {
    /// CFS quota in µs per period; 0 or below is unlimited.
    pub cpu_quota: i64,
    /// CFS period in µs.
    pub cpu_period: i64,
    /// CPU shares (v1 scale).
    pub cpu_shares: i64,
    /// Memory limit in bytes; 0 is unlimited.
    pub memory_limit: i64,
}

/// One sandbox of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    /// The runtime's id.
    pub id: String,
    /// How many came before it.
    pub attempt: u32,
    /// Whether it is READY.
    pub ready: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its addresses; empty on the node's network.
    pub ips: Vec<String>,
    /// Whether it uses the node's network.
    pub host_network: bool,
}

/// Everything the runtime has of one Pod; newest first in both lists.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuntimePod {
    /// Sandboxes, newest first.
    pub sandboxes: Vec<SandboxRecord>,
    /// Containers, newest first.
    pub containers: Vec<ContainerRecord>,
}

/// Whether a sandbox must be made, and which attempt it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxCheck {
    /// A new sandbox is needed.
    pub changed: bool,
    /// Attempt number of the sandbox to make, or of the one in use.
    pub attempt: u32,
    /// The latest sandbox, if there is one.
    pub id: Option<String>,
}

impl RuntimePod {
    /// The newest container of a name.
    pub fn container(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Containers whose process may run.
    pub fn running(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.containers.iter().filter(|c| matches!(c.state, RuntimeState::Running | RuntimeState::Unknown))
    }

    /// Puts both lists in order, newest first.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
        self.containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.restart_count)));
    }

    /// Whether the Pod needs a new sandbox: none, more than one ready, the latest not ready, another network mode, or
    /// no address. Source: k/k pkg/kubelet/kuberuntime/util/util.go PodSandboxChanged.
    pub fn sandbox_changed(&self, pod: &Pod) -> SandboxCheck {
        let Some(latest) = self.sandboxes.first() else { return SandboxCheck { changed: true, attempt: 0, id: None } };
        let ready = self.sandboxes.iter().filter(|s| s.ready).count();
        let host = spec::host_network(pod);
        let unusable = ready > 1 || !latest.ready || latest.host_network != host || (!host && latest.ips.is_empty());
        let attempt = if unusable { latest.attempt + 1 } else { latest.attempt };
        SandboxCheck { changed: unusable, attempt, id: Some(latest.id.clone()) }
    }
}
