//! Which Pod goes first. Source: k/k pkg/kubelet/eviction/helpers.go rank*.

use std::{cmp::Ordering, sync::Arc};

use podlab_api::core::Pod;

use super::Signal;
use crate::{resources::pod_requests, spec};

/// Bytes and inodes used by files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Files {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Files {
    fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, inodes: self.inodes + other.inodes }
    }
}

/// What one container uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerUsage {
    /// Name.
    pub name: String,
    /// Working set, bytes; `None` when it is not measured.
    pub memory: Option<u64>,
    /// Its writable layer.
    pub rootfs: Files,
    /// Its logs.
    pub logs: Files,
}

/// What one Pod uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodUsage {
    /// Working set, bytes; `None` when it is not measured.
    pub memory: Option<u64>,
    /// Processes.
    pub processes: u64,
    /// By container.
    pub containers: Vec<ContainerUsage>,
    /// Volumes on the node's disk, by name.
    pub volumes: Vec<(String, Files)>,
}

impl PodUsage {
    /// Ephemeral storage altogether: writable layers, logs, volumes on the node's disk.
    pub fn ephemeral(&self) -> Files {
        self.measured(Signal::NodefsAvailable, false)
    }

    /// What counts for a disk signal, given whether images have a file system of their own.
    fn measured(&self, signal: Signal, dedicated_imagefs: bool) -> Files {
        let image_side = matches!(
            signal,
            Signal::ImagefsAvailable
                | Signal::ImagefsInodesFree
                | Signal::ContainerfsAvailable
                | Signal::ContainerfsInodesFree
        );
        let (layers, rest) = if !dedicated_imagefs { (true, true) } else { (image_side, !image_side) };
        let mut total = Files::default();
        for c in &self.containers {
            if layers {
                total = total.plus(c.rootfs);
            }
            if rest {
                total = total.plus(c.logs);
            }
        }
        if rest {
            for (_, f) in &self.volumes {
                total = total.plus(*f);
            }
        }
        total
    }
}

/// Sorts Pods so that the first is the one to evict.
pub fn rank<'a>(
    pods: &mut [Arc<Pod>],
    signal: Signal,
    dedicated_imagefs: bool,
    usage: &dyn Fn(&Pod) -> Option<&'a PodUsage>,
) {
    let priority = |p: &Pod| spec::pod_spec(p).priority.unwrap_or(0);
    let request = |p: &Pod, key: &str| pod_requests(p).get(key).copied().unwrap_or(0);
    // A Pod nothing is known of goes first: it may be the culprit.
    let unknown = |a: Option<i128>, b: Option<i128>| match (a, b) {
        (None, Some(_)) => Some(Ordering::Less),
        (Some(_), None) => Some(Ordering::Greater),
        (None, None) => Some(Ordering::Equal),
        (Some(_), Some(_)) => None,
    };
    let by_usage = |a: &Pod, b: &Pod, used: &dyn Fn(&Pod) -> Option<i128>, key: &str, over_request: bool| {
        let (ua, ub) = (used(a), used(b));
        let (ra, rb) = (i128::from(request(a, key)), i128::from(request(b, key)));
        let exceeds = unknown(ua, ub).unwrap_or_else(|| (ub.unwrap_or(0) > rb).cmp(&(ua.unwrap_or(0) > ra)));
        let larger = unknown(ua, ub).unwrap_or_else(|| {
            let (oa, ob) = if over_request { (ra, rb) } else { (0, 0) };
            (ub.unwrap_or(0) - ob).cmp(&(ua.unwrap_or(0) - oa))
        });
        exceeds.then(priority(a).cmp(&priority(b))).then(larger)
    };
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => {
            let used = |p: &Pod| usage(p).and_then(|u| u.memory).map(i128::from);
            pods.sort_by(|a, b| by_usage(a, b, &used, "memory", true));
        }
        Signal::PidAvailable => {
            let used = |p: &Pod| usage(p).map_or(0, |u| u.processes);
            pods.sort_by(|a, b| priority(a).cmp(&priority(b)).then(used(b).cmp(&used(a))));
        }
        Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => {
            let used = |p: &Pod| usage(p).map(|u| i128::from(u.measured(signal, dedicated_imagefs).bytes));
            pods.sort_by(|a, b| by_usage(a, b, &used, "ephemeral-storage", false));
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::ContainerfsInodesFree => {
            let used = |p: &Pod| usage(p).map(|u| i128::from(u.measured(signal, dedicated_imagefs).inodes));
            pods.sort_by(|a, b| by_usage(a, b, &used, "inodes", false));
        }
    }
}
