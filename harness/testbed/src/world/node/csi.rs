//! The simulated CSI driver of a node: directories in memory, bound where the node agent wants them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use podlab_csi::{
    provisioner::{DriverCalls, DriverIdentity},
    v1::{ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, Topology, Volume},
};
use podlab_fault::Call;
use podlab_kubelet::{
    CsiError, CsiNode, CsiNodeInfo, Host, NodeCapabilities, PluginInfo, Plugins, PublishRequest, StageRequest,
    fake::MemoryHost,
};
use podlab_timeline::Lane;

use super::super::seam::{Seam, Site};

/// The driver's name; the bundled one's, so that the same classes and claims work.
pub(super) const NAME: &str = podlab_csi::driver::NAME;
/// Where volumes are on the node.
const ROOT: &str = "/var/lib/sim-csi/volumes";
/// Topology key of the driver.
const TOPOLOGY: &str = podlab_csi::driver::TOPOLOGY;

/// The driver of one node; its volumes outlive agents and power.
pub(super) struct SimDriver {
    node: String,
    host: Arc<MemoryHost>,
}

impl SimDriver {
    pub(super) fn new(node: &str, host: Arc<MemoryHost>) -> Arc<Self> {
        Arc::new(Self { node: node.to_owned(), host })
    }

    /// Puts the registration socket where the node agent looks for it.
    pub(super) fn listen(&self) {
        let registry = Path::new("/var/lib/kubelet/plugins_registry");
        // A file system in memory has room.
        let _ = self.host.create_dir_all(registry, 0o750);
        self.host.socket(&registry.join(format!("{NAME}-reg.sock")));
    }

    fn path(&self, volume: &str) -> Result<PathBuf, CsiError> {
        let path = Path::new(ROOT).join(volume);
        if volume.is_empty() || volume.contains('/') || self.host.stat(&path).is_err() {
            return Err(failed(tonic::Code::NotFound, format!("volume {volume:?} not found")));
        }
        Ok(path)
    }
}

fn failed(code: tonic::Code, message: String) -> CsiError {
    CsiError::Rpc { code, message }
}

fn io(e: std::io::Error) -> CsiError {
    failed(tonic::Code::Internal, e.to_string())
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDriver").field("node", &self.node).finish_non_exhaustive()
    }
}

fn status(e: CsiError) -> tonic::Status {
    tonic::Status::new(e.code(), e.to_string())
}

#[async_trait]
impl DriverCalls for TappedDriver {
    async fn identity(&self) -> Result<DriverIdentity, tonic::Status> {
        let topology: BTreeMap<String, String> = [(TOPOLOGY.to_owned(), self.driver.node.clone())].into();
        let call = || async { Ok(DriverIdentity { name: NAME.to_owned(), topology: topology.clone() }) };
        self.pass("GetPluginInfo", "", call).await.map_err(status)
    }

    async fn create_volume(&self, r: CreateVolumeRequest) -> Result<Volume, tonic::Status> {
        let call = || async {
            self.driver.host.create_dir_all(&Path::new(ROOT).join(&r.name), 0o777).map_err(io)?;
            let segments = [(TOPOLOGY.to_owned(), self.driver.node.clone())].into();
            Ok(Volume {
                volume_id: r.name.clone(),
                capacity_bytes: r.capacity_range.map_or(0, |c| c.required_bytes),
                accessible_topology: vec![Topology { segments }],
                ..Volume::default()
            })
        };
        self.pass("CreateVolume", "", call).await.map_err(status)
    }

    async fn delete_volume(&self, r: DeleteVolumeRequest) -> Result<(), tonic::Status> {
        let call = || async { self.driver.host.remove_tree(&Path::new(ROOT).join(&r.volume_id)).map_err(io) };
        self.pass("DeleteVolume", "", call).await.map_err(status)
    }

    async fn expand_volume(&self, r: ControllerExpandVolumeRequest) -> Result<i64, tonic::Status> {
        let bytes = r.capacity_range.map_or(0, |c| c.required_bytes);
        self.pass("ControllerExpandVolume", "", || async { Ok(bytes) }).await.map_err(status)
    }
}

/// The driver behind a tap, as one agent reaches it.
#[derive(Debug, Clone)]
pub(super) struct TappedDriver {
    pub(super) driver: Arc<SimDriver>,
    pub(super) seam: Seam,
}

impl TappedDriver {
    async fn pass<T, F: Future<Output = Result<T, CsiError>>>(
        &self,
        method: &str,
        subject: &str,
        call: impl Fn() -> F,
    ) -> Result<T, CsiError> {
        let site = Site {
            call: Call::Csi { method },
            name: format!("csi.{method}"),
            pod: None,
            subject,
            // The node service's calls are written down by the node agent.
            lane: (!method.starts_with("Node")).then_some(Lane::Csi),
        };
        let refused = |code: u32, msg| failed(tonic::Code::from_i32(i32::try_from(code).unwrap_or(2)), msg);
        self.seam.pass(site, call, refused).await
    }
}

#[async_trait]
impl CsiNode for TappedDriver {
    async fn info(&self) -> Result<CsiNodeInfo, CsiError> {
        let node = self.driver.node.clone();
        let topology = [(TOPOLOGY.to_owned(), node.clone())].into();
        let info = CsiNodeInfo { node_id: node, topology, ..CsiNodeInfo::default() };
        self.pass("NodeGetInfo", "", || async { Ok(info.clone()) }).await
    }

    async fn capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let all = NodeCapabilities { stage_unstage: true, ..NodeCapabilities::default() };
        self.pass("NodeGetCapabilities", "", || async { Ok(all) }).await
    }

    async fn stage(&self, r: StageRequest) -> Result<(), CsiError> {
        let call = || async {
            let path = self.driver.path(&r.volume_id)?;
            self.driver.host.create_dir_all(&r.staging_path, 0o750).map_err(io)?;
            self.driver.host.bind_mount(&path, &r.staging_path).map_err(io)
        };
        self.pass("NodeStageVolume", "", call).await
    }

    async fn unstage(&self, _volume: &str, staging: &Path) -> Result<(), CsiError> {
        self.pass("NodeUnstageVolume", "", || async { self.driver.host.unmount(staging).map_err(io) }).await
    }

    async fn publish(&self, r: PublishRequest) -> Result<(), CsiError> {
        let call = || async {
            let path = self.driver.path(&r.volume_id)?;
            let staged =
                r.staging_path.as_ref().is_some_and(|s| self.driver.host.mounts_under(s).is_ok_and(|m| m.contains(s)));
            if !staged {
                // The rule a real driver would break on: publish needs a stage before it.
                return Err(failed(tonic::Code::FailedPrecondition, "the volume is not staged".into()));
            }
            self.driver.host.create_dir_all(&r.target_path, 0o750).map_err(io)?;
            self.driver.host.bind_mount(&path, &r.target_path).map_err(io)
        };
        self.pass("NodePublishVolume", "", call).await
    }

    async fn unpublish(&self, _volume: &str, target: &Path) -> Result<(), CsiError> {
        let call = || async {
            self.driver.host.unmount(target).map_err(io)?;
            self.driver.host.remove_tree(target).map_err(io)
        };
        self.pass("NodeUnpublishVolume", "", call).await
    }
}

#[async_trait]
impl Plugins for TappedDriver {
    async fn info(&self, _socket: &Path) -> Result<PluginInfo, CsiError> {
        Ok(PluginInfo {
            kind: "CSIPlugin".into(),
            name: NAME.into(),
            endpoint: String::new(),
            versions: vec!["1.0.0".into()],
        })
    }

    async fn notify(&self, _socket: &Path, error: &str) -> Result<(), CsiError> {
        if !error.is_empty() {
            tracing::warn!(error, "the driver was refused");
        }
        Ok(())
    }

    async fn connect(&self, _endpoint: &Path) -> Result<Arc<dyn CsiNode>, CsiError> {
        Ok(Arc::new(self.clone()))
    }
}
