//! The calls there are: a demand on one that does not exist would hold of every run.

use crate::problem::suggest;

/// Who can be called, as the run log has it.
pub(crate) const LANES: [&str; 9] = ["api", "sched", "controllers", "agent", "csi", "cri", "cni", "image", "probe"];

/// Verbs of the API.
pub(crate) const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// CNI verbs.
pub(crate) const CNI: [&str; 5] = ["ADD", "DEL", "CHECK", "STATUS", "GC"];

/// CRI methods: all that the node agent calls.
pub(crate) const CRI: [&str; 26] = [
    "Version",
    "Status",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "ContainerStatus",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ListContainerStats",
    "ListPodSandboxStats",
    "GetContainerEvents",
    "ImageStatus",
    "ListImages",
    "PullImage",
    "RemoveImage",
];

/// Methods of the CRI that are in the log without being tapped.
const CRI_MORE: [&str; 12] = [
    "pull",
    "network.add",
    "network.del",
    "network.status",
    "ImageFsInfo",
    "UpdateRuntimeConfig",
    "RuntimeConfig",
    "PodSandboxStats",
    "ContainerStats",
    "CheckpointContainer",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
];

/// CSI methods, of a driver's node service those that are tapped first.
pub(crate) const CSI: [&str; 26] = [
    "NodeGetInfo",
    "NodeGetCapabilities",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeExpandVolume",
    "NodeGetVolumeStats",
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "ControllerGetCapabilities",
    "ControllerGetVolume",
    "ControllerModifyVolume",
    "ValidateVolumeCapabilities",
    "ListVolumes",
    "GetCapacity",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ListSnapshots",
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "SetUpVolume",
];

/// Probes.
const PROBES: [&str; 3] = ["Startup", "Liveness", "Readiness"];

/// What is wrong with `<lane>.<method>`.
pub(crate) fn call(name: &str) -> Option<String> {
    let Some((lane, method)) = name.split_once('.') else {
        return Some(format!("{name:?} is not <lane>.<method>, such as cri.StartContainer"));
    };
    if !LANES.contains(&lane) {
        return Some(format!("there is no lane {lane:?}{}", suggest(lane, LANES)));
    }
    let known: Vec<&str> = match lane {
        "api" => VERBS.to_vec(),
        "cni" => CNI.to_vec(),
        "cri" => CRI.iter().chain(&CRI_MORE).copied().collect(),
        "csi" => CSI.to_vec(),
        "probe" => PROBES.to_vec(),
        _ => return None,
    };
    (!known.contains(&method)).then(|| format!("{lane} has no {method:?}{}", suggest(method, known)))
}
