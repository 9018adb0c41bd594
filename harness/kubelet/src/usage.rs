//! What the node and its Pods use: read for eviction and for the statistics the agent serves.
//! Source: k/k pkg/kubelet/stats/cri_stats_provider.go, pkg/kubelet/server/stats/summary.go.

use std::{collections::BTreeMap, path::PathBuf};

use podlab_api::core::{Pod, Volume};
use podlab_cri::v1;
use podlab_lifecycle::{
    eviction::{ContainerUsage, Files, Observation, Observations, PodUsage, Signal},
    spec,
};

use crate::{
    agent::Agent,
    host::{CgroupStats, DiskStats},
    labels,
};

/// The node's own numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeUsage {
    /// Everything in the node's cgroup.
    pub(crate) all: CgroupStats,
    /// Pods alone.
    pub(crate) pods: CgroupStats,
    /// File system of the agent's state.
    pub(crate) nodefs: DiskStats,
    /// File system of the images.
    pub(crate) imagefs: DiskStats,
    /// Most process ids and those in use.
    pub(crate) pids: Option<(u64, u64)>,
}

impl NodeUsage {
    /// Whether images have a file system of their own.
    pub(crate) fn dedicated_imagefs(&self) -> bool {
        self.imagefs.id != self.nodefs.id
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Where images are, by configuration or by the runtime's word.
async fn image_path(agent: &Agent) -> PathBuf {
    if let Some(path) = &agent.config.image_fs {
        return path.clone();
    }
    let info = agent.image_service.image_fs_info().await.unwrap_or_default();
    let mount = info.image_filesystems.into_iter().find_map(|f| f.fs_id).map(|id| id.mountpoint);
    mount.filter(|m| !m.is_empty()).map_or_else(|| agent.config.root_dir.clone(), PathBuf::from)
}

/// Reads the node's numbers.
pub(crate) async fn of_node(agent: &Agent) -> NodeUsage {
    let host = &agent.host;
    let image_path = image_path(agent).await;
    let nodefs = host.disk(&agent.config.root_dir).unwrap_or_default();
    let cgroup = |path: &str| {
        let mut used = host.cgroup_stats(path).unwrap_or_default();
        if agent.config.disk_is_memory {
            used.working_set = used.working_set.saturating_sub(nodefs.used);
        }
        used
    };
    NodeUsage {
        all: cgroup("/"),
        pods: cgroup("/kubepods"),
        nodefs,
        imagefs: host.disk(&image_path).unwrap_or(nodefs),
        pids: host.pids().ok(),
    }
}

/// The eviction signals.
pub(crate) fn observations(agent: &Agent, n: &NodeUsage) -> Observations {
    let mut out = Observations::new();
    let mut add = |signal: Signal, available: i64, capacity: i64| {
        if capacity > 0 {
            out.insert(signal, Observation { available, capacity });
        }
    };
    let memory = agent.capacity.memory;
    add(Signal::MemoryAvailable, memory.saturating_sub(signed(n.all.working_set)).max(0), memory);
    let of_pods = memory - agent.config.reserved.get("memory").copied().unwrap_or(0);
    add(Signal::AllocatableMemoryAvailable, of_pods.saturating_sub(signed(n.pods.working_set)).max(0), of_pods);
    add(Signal::NodefsAvailable, signed(n.nodefs.available), signed(n.nodefs.capacity));
    add(Signal::NodefsInodesFree, signed(n.nodefs.inodes_free), signed(n.nodefs.inodes));
    for (bytes, inodes) in [
        (Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
        (Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree),
    ] {
        add(bytes, signed(n.imagefs.available), signed(n.imagefs.capacity));
        add(inodes, signed(n.imagefs.inodes_free), signed(n.imagefs.inodes));
    }
    if let Some((most, used)) = n.pids {
        add(Signal::PidAvailable, signed(most.saturating_sub(used)), signed(most));
    }
    out
}

/// Statistics of the runtime, by Pod UID.
pub(crate) async fn sandboxes(agent: &Agent) -> BTreeMap<String, v1::PodSandboxStats> {
    let all = agent.runtime.list_pod_sandbox_stats(v1::PodSandboxStatsFilter::default()).await.unwrap_or_default();
    all.into_iter().filter_map(|s| Some((s.attributes.as_ref()?.metadata.as_ref()?.uid.clone(), s))).collect()
}

/// Whether the volume lies on the node's own disk and counts as the Pod's.
fn is_local(v: &Volume) -> bool {
    v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref().unwrap_or_default().is_empty())
        || v.config_map.is_some()
        || v.downward_api.is_some()
}

fn plugin_dir(v: &Volume) -> Option<&'static str> {
    if v.empty_dir.is_some() {
        Some("kubernetes.io~empty-dir")
    } else if v.config_map.is_some() {
        Some("kubernetes.io~configmap")
    } else if v.downward_api.is_some() {
        Some("kubernetes.io~downward-api")
    } else if v.secret.is_some() {
        Some("kubernetes.io~secret")
    } else if v.projected.is_some() {
        Some("kubernetes.io~projected")
    } else {
        None
    }
}

/// Volumes of a Pod whose files the agent made, with whether they lie on its disk and what is in them.
pub(crate) fn volumes(agent: &Agent, pod: &Pod) -> Vec<(String, bool, Files)> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let measure = |v: &Volume| {
        let path = agent.config.volume_dir(uid, plugin_dir(v)?, &v.name);
        let (bytes, inodes) = agent.host.usage(&path).ok()?;
        Some((v.name.clone(), is_local(v), Files { bytes, inodes }))
    };
    spec::pod_spec(pod).volumes.iter().flatten().filter_map(measure).collect()
}

/// What is in a container's log directory.
pub(crate) fn logs(agent: &Agent, pod: &Pod, container: &str) -> Files {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let m = &pod.metadata;
    let dir = agent.config.log_dir(&text(&m.namespace), &text(&m.name), &text(&m.uid)).join(container);
    let (bytes, inodes) = agent.host.usage(&dir).unwrap_or_default();
    Files { bytes, inodes }
}

/// What a Pod uses; `None` when the runtime says nothing of it.
pub(crate) fn of_pod(agent: &Agent, pod: &Pod, stats: Option<&v1::PodSandboxStats>) -> Option<PodUsage> {
    let linux = stats?.linux.as_ref()?;
    let number = |v: &Option<v1::UInt64Value>| v.as_ref().map(|v| v.value);
    let containers = linux
        .containers
        .iter()
        .filter_map(|c| {
            let name = c.attributes.as_ref()?.labels.get(labels::CONTAINER_NAME)?.clone();
            let layer = c.writable_layer.as_ref();
            let rootfs = Files {
                bytes: layer.and_then(|l| number(&l.used_bytes)).unwrap_or(0),
                inodes: layer.and_then(|l| number(&l.inodes_used)).unwrap_or(0),
            };
            let memory = c.memory.as_ref().and_then(|m| number(&m.working_set_bytes));
            Some(ContainerUsage { logs: logs(agent, pod, &name), name, memory, rootfs })
        })
        .collect();
    Some(PodUsage {
        memory: linux.memory.as_ref().and_then(|m| number(&m.working_set_bytes)),
        processes: linux.process.as_ref().and_then(|p| number(&p.process_count)).unwrap_or(0),
        containers,
        volumes: volumes(agent, pod).into_iter().filter(|(_, local, _)| *local).map(|(n, _, f)| (n, f)).collect(),
    })
}
