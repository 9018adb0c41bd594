//! The bundled CSI driver: a volume is a directory on the node's disk, bind-mounted to where it is wanted. Sizes are
//! remembered and answered for, not enforced. A volume lives on its node; its topology says so.
//!
//! Volumes are found again on disk after a restart; what is mounted is read from the kernel. One call per volume at a
//! time: another gets `ABORTED`. Source: container-storage-interface/spec v1.12.

mod controller;
mod identity;
mod mounts;
mod node;
mod volumes;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use volumes::Volumes;

use crate::{
    grpc::{ServeError, listen, serve},
    v1::{
        Topology, VolumeCapability,
        controller_server::ControllerServer,
        identity_server::IdentityServer,
        node_server::NodeServer,
        volume_capability::{AccessType, access_mode::Mode},
    },
};

/// The driver's name.
pub const NAME: &str = "csi.podlab.dev";
/// The topology key that names a volume's node.
pub const TOPOLOGY: &str = "topology.csi.podlab.dev/node";

/// Where a driver serves and what it manages.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// The unix socket to serve on.
    pub socket: PathBuf,
    /// Holds the volumes.
    pub root: PathBuf,
    /// What this node is called; at most 256 bytes.
    pub node_id: String,
}

/// The driver: Identity, Controller and Node on one socket.
#[derive(Debug)]
pub struct Driver {
    config: DriverConfig,
    volumes: Arc<Volumes>,
}

/// What the services share.
#[derive(Debug, Clone)]
struct Service {
    node_id: String,
    volumes: Arc<Volumes>,
}

impl Driver {
    /// Opens the driver's directory and finds its volumes.
    ///
    /// # Errors
    /// A directory that cannot be made or read.
    pub fn new(config: DriverConfig) -> Result<Self, ServeError> {
        let volumes =
            Volumes::open(&config.root).map_err(|source| ServeError::Root { path: config.root.clone(), source })?;
        Ok(Self { config, volumes: Arc::new(volumes) })
    }

    /// Serves until `shutdown`. Mounts and volumes stay.
    ///
    /// # Errors
    /// A socket that cannot be opened.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let listener = listen(&self.config.socket, 0o660)?;
        let service = Service { node_id: self.config.node_id, volumes: self.volumes };
        let mut routes = Routes::builder();
        routes
            .add_service(IdentityServer::new(service.clone()))
            .add_service(ControllerServer::new(service.clone()))
            .add_service(NodeServer::new(service));
        serve(&self.config.socket, listener, routes.routes(), &shutdown).await
    }
}

impl Service {
    fn topology(&self) -> Topology {
        Topology { segments: BTreeMap::from([(TOPOLOGY.to_owned(), self.node_id.clone())]) }
    }
}

/// Why a capability is not offered; `None` when it is.
fn unsupported(capability: &VolumeCapability) -> Option<&'static str> {
    match &capability.access_type {
        None => return Some("access type missing"),
        Some(AccessType::Block(_)) => return Some("block volumes are not supported"),
        Some(AccessType::Mount(m)) => {
            if mounts::flags(&m.mount_flags).is_none() {
                return Some("unknown mount flag");
            }
        }
    }
    match capability.access_mode.as_ref().map(|m| m.mode()) {
        None | Some(Mode::Unknown) => Some("access mode missing"),
        Some(Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
            Some("a volume is reachable from one node only")
        }
        Some(
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter,
        ) => None,
    }
}

fn missing(field: &str) -> tonic::Status {
    tonic::Status::invalid_argument(format!("{field} missing in request"))
}

/// The capability of a request, or why it is refused.
fn required(capability: Option<&VolumeCapability>) -> Result<&VolumeCapability, tonic::Status> {
    let capability = capability.ok_or_else(|| missing("volume capability"))?;
    match unsupported(capability) {
        Some(why) => Err(tonic::Status::invalid_argument(why)),
        None => Ok(capability),
    }
}
