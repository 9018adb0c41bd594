//! Plugins over their unix sockets.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use podlab_csi::v1::{
    self,
    node_client::NodeClient,
    node_service_capability::{Type, rpc},
    registration::{InfoRequest, RegistrationStatus, registration_client::RegistrationClient},
    volume_capability::{AccessMode, AccessType as Wire, BlockVolume, MountVolume},
};
use tonic::{Request, transport::Channel};

use super::{
    AccessType, CsiError, CsiNode, CsiNodeInfo, NodeCapabilities, PluginInfo, Plugins, PublishRequest, StageRequest,
};

/// Deadline of a call to a driver. Source: k/k pkg/volume/csi csiTimeout.
const DRIVER: Duration = Duration::from_secs(120);
/// Deadlines of the registration calls. Source: k/k pkg/kubelet/pluginmanager/operationexecutor.
const INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// Plugins and drivers behind unix sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct PluginSockets;

fn within<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

#[async_trait]
impl Plugins for PluginSockets {
    async fn info(&self, socket: &Path) -> Result<PluginInfo, CsiError> {
        let mut client = RegistrationClient::new(podlab_csi::connect(socket)?);
        let info = client.get_info(within(InfoRequest {}, INFO)).await?.into_inner();
        Ok(PluginInfo {
            kind: info.r#type,
            name: info.name,
            endpoint: info.endpoint,
            versions: info.supported_versions,
        })
    }

    async fn notify(&self, socket: &Path, error: &str) -> Result<(), CsiError> {
        let mut client = RegistrationClient::new(podlab_csi::connect(socket)?);
        let status = RegistrationStatus { plugin_registered: error.is_empty(), error: error.to_owned() };
        client.notify_registration_status(within(status, NOTIFY)).await?;
        Ok(())
    }

    async fn connect(&self, endpoint: &Path) -> Result<Arc<dyn CsiNode>, CsiError> {
        Ok(Arc::new(NodeSocket(NodeClient::new(podlab_csi::connect(endpoint)?))))
    }
}

/// The node service of one driver.
#[derive(Debug)]
struct NodeSocket(NodeClient<Channel>);

/// The capability a volume is asked for with.
fn capability(access: &AccessType) -> v1::VolumeCapability {
    let mode = podlab_csi::access_mode(&access.mode, access.tells_writers_apart);
    let access_type = if access.block {
        Wire::Block(BlockVolume {})
    } else {
        Wire::Mount(MountVolume {
            fs_type: access.fs_type.clone(),
            mount_flags: access.mount_flags.clone(),
            volume_mount_group: access.mount_group.clone(),
        })
    };
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[async_trait]
impl CsiNode for NodeSocket {
    async fn info(&self) -> Result<CsiNodeInfo, CsiError> {
        let info = self.0.clone().node_get_info(within(v1::NodeGetInfoRequest {}, DRIVER)).await?.into_inner();
        let topology = info.accessible_topology.map(|t| t.segments).unwrap_or_default();
        Ok(CsiNodeInfo { node_id: info.node_id, max_volumes: info.max_volumes_per_node, topology })
    }

    async fn capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let answer =
            self.0.clone().node_get_capabilities(within(v1::NodeGetCapabilitiesRequest {}, DRIVER)).await?.into_inner();
        let mut out = NodeCapabilities::default();
        for capability in answer.capabilities {
            let Some(Type::Rpc(rpc)) = capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => out.stage_unstage = true,
                rpc::Type::GetVolumeStats => out.volume_stats = true,
                rpc::Type::ExpandVolume => out.expand = true,
                rpc::Type::SingleNodeMultiWriter => out.single_node_multi_writer = true,
                rpc::Type::VolumeMountGroup => out.volume_mount_group = true,
                rpc::Type::Unknown | rpc::Type::VolumeCondition => {}
            }
        }
        Ok(out)
    }

    async fn stage(&self, r: StageRequest) -> Result<(), CsiError> {
        let request = v1::NodeStageVolumeRequest {
            volume_capability: Some(capability(&r.access)),
            volume_id: r.volume_id,
            publish_context: r.publish_context,
            staging_target_path: text(&r.staging_path),
            secrets: r.secrets,
            volume_context: r.volume_context,
        };
        self.0.clone().node_stage_volume(within(request, DRIVER)).await?;
        Ok(())
    }

    async fn unstage(&self, volume_id: &str, staging_path: &Path) -> Result<(), CsiError> {
        let request =
            v1::NodeUnstageVolumeRequest { volume_id: volume_id.to_owned(), staging_target_path: text(staging_path) };
        self.0.clone().node_unstage_volume(within(request, DRIVER)).await?;
        Ok(())
    }

    async fn publish(&self, r: PublishRequest) -> Result<(), CsiError> {
        let request = v1::NodePublishVolumeRequest {
            volume_capability: Some(capability(&r.access)),
            volume_id: r.volume_id,
            publish_context: r.publish_context,
            staging_target_path: r.staging_path.as_deref().map(text).unwrap_or_default(),
            target_path: text(&r.target_path),
            readonly: r.read_only,
            secrets: r.secrets,
            volume_context: r.volume_context,
        };
        self.0.clone().node_publish_volume(within(request, DRIVER)).await?;
        Ok(())
    }

    async fn unpublish(&self, volume_id: &str, target_path: &Path) -> Result<(), CsiError> {
        let request =
            v1::NodeUnpublishVolumeRequest { volume_id: volume_id.to_owned(), target_path: text(target_path) };
        self.0.clone().node_unpublish_volume(within(request, DRIVER)).await?;
        Ok(())
    }
}
