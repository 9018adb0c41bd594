//! CSI drivers of the node: what the node agent asks of them, and which of them have registered.

mod grpc;
mod registry;
mod watch;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
pub use grpc::PluginSockets;
pub(crate) use registry::{Driver, Drivers};
pub use registry::{PluginInfo, Plugins};
pub(crate) use watch::watch_plugins;

/// A failed CSI call. `Display` is the text Go's gRPC client gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsiError {
    /// The driver answered with an error.
    #[error("rpc error: code = {code:?} desc = {message}")]
    Rpc {
        /// gRPC status code.
        code: tonic::Code,
        /// The driver's words.
        message: String,
    },
    /// No driver of this name has registered.
    #[error(
        "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name {0} not found in the list of registered CSI drivers"
    )]
    NotRegistered(String),
}

impl CsiError {
    /// The gRPC code.
    pub fn code(&self) -> tonic::Code {
        match self {
            Self::Rpc { code, .. } => *code,
            Self::NotRegistered(_) => tonic::Code::NotFound,
        }
    }
}

impl From<tonic::Status> for CsiError {
    fn from(s: tonic::Status) -> Self {
        Self::Rpc { code: s.code(), message: s.message().to_owned() }
    }
}

/// What the driver calls this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsiNodeInfo {
    /// The driver's id of the node.
    pub node_id: String,
    /// Most volumes; 0 for no limit.
    pub max_volumes: i64,
    /// Topology segments of the node.
    pub topology: BTreeMap<String, String>,
}

/// What the node service can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCapabilities {
    /// NodeStageVolume and NodeUnstageVolume.
    pub stage_unstage: bool,
    /// NodeGetVolumeStats.
    pub volume_stats: bool,
    /// NodeExpandVolume.
    pub expand: bool,
    /// The driver applies fsGroup itself.
    pub volume_mount_group: bool,
    /// It tells RWO and RWOP apart.
    pub single_node_multi_writer: bool,
}

/// How a volume is to be accessed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessType {
    /// Raw block instead of a file system.
    pub block: bool,
    /// File system type; empty for the driver's default.
    pub fs_type: String,
    /// Mount options.
    pub mount_flags: Vec<String>,
    /// Group for drivers that apply it.
    pub mount_group: String,
    /// Kubernetes' access mode, e.g. `ReadWriteOnce`; empty for an ephemeral volume.
    pub mode: String,
    /// The driver tells RWO and RWOP apart.
    pub tells_writers_apart: bool,
}

/// NodeStageVolume.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the CSI specification's field names")]
pub struct StageRequest {
    pub volume_id: String,
    pub staging_path: PathBuf,
    pub publish_context: BTreeMap<String, String>,
    pub volume_context: BTreeMap<String, String>,
    pub access: AccessType,
    pub secrets: BTreeMap<String, String>,
}

/// NodePublishVolume.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the CSI specification's field names")]
pub struct PublishRequest {
    pub volume_id: String,
    pub staging_path: Option<PathBuf>,
    pub target_path: PathBuf,
    pub publish_context: BTreeMap<String, String>,
    pub volume_context: BTreeMap<String, String>,
    pub access: AccessType,
    pub read_only: bool,
    pub secrets: BTreeMap<String, String>,
}

/// The node service of one driver. All calls are idempotent; dropping one midway leaves it unknown whether it took effect.
#[async_trait]
pub trait CsiNode: Send + Sync + 'static {
    /// NodeGetInfo.
    async fn info(&self) -> Result<CsiNodeInfo, CsiError>;
    /// NodeGetCapabilities.
    async fn capabilities(&self) -> Result<NodeCapabilities, CsiError>;
    /// NodeStageVolume.
    async fn stage(&self, request: StageRequest) -> Result<(), CsiError>;
    /// NodeUnstageVolume.
    async fn unstage(&self, volume_id: &str, staging_path: &Path) -> Result<(), CsiError>;
    /// NodePublishVolume.
    async fn publish(&self, request: PublishRequest) -> Result<(), CsiError>;
    /// NodeUnpublishVolume.
    async fn unpublish(&self, volume_id: &str, target_path: &Path) -> Result<(), CsiError>;
}
