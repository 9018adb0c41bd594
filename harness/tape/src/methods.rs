//! The methods of the seams: from bytes to JSON and back.

use bytes::Bytes;
use podlab_cri::v1 as cri;
use podlab_csi::v1 as csi;
use prost::Message;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A gRPC seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Seam {
    /// Node agent and runtime.
    Cri,
    /// Node agent and driver.
    Csi,
}

/// One side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Reply,
}

/// Bytes that are not such a message, or JSON that is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoMessage(String);

fn to_json<M: Message + Default + Serialize>(bytes: &[u8]) -> Result<Value, NoMessage> {
    let message = M::decode(bytes).map_err(|e| NoMessage(e.to_string()))?;
    serde_json::to_value(message).map_err(|e| NoMessage(e.to_string()))
}

fn to_bytes<M: Message + DeserializeOwned>(value: &Value) -> Result<Bytes, NoMessage> {
    let message = M::deserialize(value).map_err(|e| NoMessage(e.to_string()))?;
    Ok(message.encode_to_vec().into())
}

macro_rules! methods {
    ($($seam:ident $package:literal $service:literal { $($method:ident: $request:ident => $reply:ident,)+ })+) => {
        fn decode_known(service: &str, method: &str, side: Side, bytes: &[u8]) -> Option<Result<Value, NoMessage>> {
            $($(if service == concat!($package, ".", $service) && method == stringify!($method) {
                return Some(match side {
                    Side::Request => to_json::<$seam::$request>(bytes),
                    Side::Reply => to_json::<$seam::$reply>(bytes),
                });
            })+)+
            None
        }

        fn encode_known(service: &str, method: &str, side: Side, value: &Value) -> Option<Result<Bytes, NoMessage>> {
            $($(if service == concat!($package, ".", $service) && method == stringify!($method) {
                return Some(match side {
                    Side::Request => to_bytes::<$seam::$request>(value),
                    Side::Reply => to_bytes::<$seam::$reply>(value),
                });
            })+)+
            None
        }

        /// Service of a method, by seam.
        fn service_of(seam: Seam, method: &str) -> Option<&'static str> {
            $(if seam.package() == $package && [$(stringify!($method)),+].contains(&method) {
                return Some(concat!($package, ".", $service));
            })+
            None
        }
    };
}

methods! {
    cri "runtime.v1" "RuntimeService" {
        Version: VersionRequest => VersionResponse,
        RunPodSandbox: RunPodSandboxRequest => RunPodSandboxResponse,
        StopPodSandbox: StopPodSandboxRequest => StopPodSandboxResponse,
        RemovePodSandbox: RemovePodSandboxRequest => RemovePodSandboxResponse,
        PodSandboxStatus: PodSandboxStatusRequest => PodSandboxStatusResponse,
        ListPodSandbox: ListPodSandboxRequest => ListPodSandboxResponse,
        CreateContainer: CreateContainerRequest => CreateContainerResponse,
        StartContainer: StartContainerRequest => StartContainerResponse,
        StopContainer: StopContainerRequest => StopContainerResponse,
        RemoveContainer: RemoveContainerRequest => RemoveContainerResponse,
        ListContainers: ListContainersRequest => ListContainersResponse,
        ContainerStatus: ContainerStatusRequest => ContainerStatusResponse,
        UpdateContainerResources: UpdateContainerResourcesRequest => UpdateContainerResourcesResponse,
        ReopenContainerLog: ReopenContainerLogRequest => ReopenContainerLogResponse,
        ExecSync: ExecSyncRequest => ExecSyncResponse,
        Exec: ExecRequest => ExecResponse,
        Attach: AttachRequest => AttachResponse,
        PortForward: PortForwardRequest => PortForwardResponse,
        ContainerStats: ContainerStatsRequest => ContainerStatsResponse,
        ListContainerStats: ListContainerStatsRequest => ListContainerStatsResponse,
        PodSandboxStats: PodSandboxStatsRequest => PodSandboxStatsResponse,
        ListPodSandboxStats: ListPodSandboxStatsRequest => ListPodSandboxStatsResponse,
        UpdateRuntimeConfig: UpdateRuntimeConfigRequest => UpdateRuntimeConfigResponse,
        Status: StatusRequest => StatusResponse,
        RuntimeConfig: RuntimeConfigRequest => RuntimeConfigResponse,
    }
    cri "runtime.v1" "ImageService" {
        ListImages: ListImagesRequest => ListImagesResponse,
        ImageStatus: ImageStatusRequest => ImageStatusResponse,
        PullImage: PullImageRequest => PullImageResponse,
        RemoveImage: RemoveImageRequest => RemoveImageResponse,
        ImageFsInfo: ImageFsInfoRequest => ImageFsInfoResponse,
    }
    csi "csi.v1" "Identity" {
        GetPluginInfo: GetPluginInfoRequest => GetPluginInfoResponse,
        GetPluginCapabilities: GetPluginCapabilitiesRequest => GetPluginCapabilitiesResponse,
        Probe: ProbeRequest => ProbeResponse,
    }
    csi "csi.v1" "Controller" {
        CreateVolume: CreateVolumeRequest => CreateVolumeResponse,
        DeleteVolume: DeleteVolumeRequest => DeleteVolumeResponse,
        ControllerPublishVolume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse,
        ControllerUnpublishVolume: ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse,
        ValidateVolumeCapabilities: ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse,
        ListVolumes: ListVolumesRequest => ListVolumesResponse,
        GetCapacity: GetCapacityRequest => GetCapacityResponse,
        ControllerGetCapabilities: ControllerGetCapabilitiesRequest => ControllerGetCapabilitiesResponse,
        ControllerExpandVolume: ControllerExpandVolumeRequest => ControllerExpandVolumeResponse,
    }
    csi "csi.v1" "Node" {
        NodeStageVolume: NodeStageVolumeRequest => NodeStageVolumeResponse,
        NodeUnstageVolume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse,
        NodePublishVolume: NodePublishVolumeRequest => NodePublishVolumeResponse,
        NodeUnpublishVolume: NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse,
        NodeGetVolumeStats: NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse,
        NodeExpandVolume: NodeExpandVolumeRequest => NodeExpandVolumeResponse,
        NodeGetCapabilities: NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse,
        NodeGetInfo: NodeGetInfoRequest => NodeGetInfoResponse,
    }
}

impl Seam {
    /// `cri` or `csi`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::Csi => "csi",
        }
    }

    /// The one of a name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Cri, Self::Csi].into_iter().find(|s| s.name() == name)
    }

    /// Whether it has such a method, with one answer.
    pub fn knows(self, method: &str) -> bool {
        service_of(self, method).is_some()
    }

    fn package(self) -> &'static str {
        match self {
            Self::Cri => "runtime.v1",
            Self::Csi => "csi.v1",
        }
    }

    /// gRPC path of a method.
    pub(crate) fn path(self, method: &str) -> Option<String> {
        service_of(self, method).map(|service| format!("/{service}/{method}"))
    }
}

/// `/package.Service/Method` as service and method.
pub(crate) fn parts(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.split_once('/')
}

/// A message as JSON; `None` for a method that is not on tapes.
pub(crate) fn decode(path: &str, side: Side, bytes: &[u8]) -> Option<Result<Value, NoMessage>> {
    let (service, method) = parts(path)?;
    decode_known(service, method, side, bytes)
}

/// JSON as a message.
pub(crate) fn encode(path: &str, side: Side, value: &Value) -> Result<Bytes, NoMessage> {
    let known = parts(path).and_then(|(service, method)| encode_known(service, method, side, value));
    known.unwrap_or_else(|| Err(NoMessage(format!("there is no method {path}"))))
}
