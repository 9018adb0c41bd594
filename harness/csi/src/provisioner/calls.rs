//! What is asked of the driver and written to the API for one claim or volume.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use podlab_api::{
    ApiError,
    core::{PersistentVolume, PersistentVolumeClaim},
    storage::StorageClass,
};
use podlab_client::{
    DeleteOptions, PatchKind,
    events::{EventType, reference},
};
use serde_json::json;
use tonic::{Code, Request, Status};

use super::{Shared, Work, access_mode, objects};
use crate::v1::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, GetPluginInfoRequest,
    NodeGetInfoRequest, ProbeRequest, Topology, TopologyRequirement, Volume, VolumeCapability,
    controller_client::ControllerClient,
    identity_client::IdentityClient,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
};

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why a piece of work did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{}", text(.0))]
    Driver(Box<Status>),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{0}")]
    Refused(String),
}

impl From<Status> for CallError {
    fn from(s: Status) -> Self {
        Self::Driver(Box::new(s))
    }
}

/// A status as Go's gRPC client prints it.
fn text(s: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", s.code(), s.message())
}

/// Who and where a driver is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverIdentity {
    /// The name it answers to.
    pub name: String,
    /// Topology segments of its node.
    pub topology: BTreeMap<String, String>,
}

/// What the provisioner asks of a driver. Dropping a call midway leaves it unknown whether it took effect; all of them
/// may be repeated.
#[tonic::async_trait]
pub trait DriverCalls: Send + Sync + std::fmt::Debug + 'static {
    /// Who answers, once it is ready.
    async fn identity(&self) -> Result<DriverIdentity, Status>;
    /// CreateVolume.
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume, Status>;
    /// DeleteVolume.
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<(), Status>;
    /// ControllerExpandVolume; the new size in bytes.
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<i64, Status>;
}

/// A driver on its socket.
#[derive(Debug)]
pub(super) struct DriverSocket(pub(super) PathBuf);

fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

#[tonic::async_trait]
impl DriverCalls for DriverSocket {
    async fn identity(&self) -> Result<DriverIdentity, Status> {
        let channel = crate::connect(&self.0)?;
        let mut identity = IdentityClient::new(channel.clone());
        let name = identity.get_plugin_info(within(GetPluginInfoRequest {})).await?.into_inner().name;
        let ready = identity.probe(within(ProbeRequest {})).await?.into_inner().ready;
        if ready == Some(false) {
            return Err(Status::unavailable("the driver is not ready"));
        }
        let info = NodeClient::new(channel).node_get_info(within(NodeGetInfoRequest {})).await?.into_inner();
        let topology = info.accessible_topology.map(|t| t.segments).unwrap_or_default();
        Ok(DriverIdentity { name, topology })
    }

    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let made = self.controller()?.create_volume(within(request)).await?.into_inner().volume;
        Ok(made.unwrap_or_default())
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<(), Status> {
        self.controller()?.delete_volume(within(request)).await.map(drop)
    }

    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<i64, Status> {
        Ok(self.controller()?.controller_expand_volume(within(request)).await?.into_inner().capacity_bytes)
    }
}

impl DriverSocket {
    fn controller(&self) -> Result<ControllerClient<tonic::transport::Channel>, Status> {
        Ok(ControllerClient::new(crate::connect(&self.0)?))
    }
}

fn capability(claim: &PersistentVolumeClaim, class: &StorageClass) -> Vec<VolumeCapability> {
    let spec = claim.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let fs_type =
        class.parameters.as_ref().and_then(|p| p.get("csi.storage.k8s.io/fstype").cloned()).unwrap_or_default();
    let mount =
        MountVolume { fs_type, mount_flags: class.mount_options.clone().unwrap_or_default(), ..MountVolume::default() };
    let modes = spec.access_modes.unwrap_or_default();
    let of = |mode: &String| VolumeCapability {
        access_mode: Some(AccessMode { mode: access_mode(mode, false).into() }),
        access_type: Some(if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(mount.clone()) }),
    };
    modes.iter().map(of).collect()
}

impl Shared {
    /// Does one piece of work.
    pub(super) async fn act(&self, work: &Work, class: Option<&StorageClass>) -> Result<(), CallError> {
        match (work, class) {
            (Work::Provision { namespace, name, uid }, Some(class)) => {
                self.provision(namespace, name, uid, class).await
            }
            (Work::Provision { .. }, None) => Ok(()),
            (Work::Delete { volume }, _) => self.delete(volume).await,
            (Work::Expand { namespace, name }, _) => self.expand(namespace, name).await,
        }
    }

    async fn provision(&self, namespace: &str, name: &str, uid: &str, class: &StorageClass) -> Result<(), CallError> {
        // The cache may be behind; the API knows.
        let claims = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let Some(mut claim) = claims.get_opt(name).await? else { return Ok(()) };
        if claim.metadata.uid.as_deref() != Some(uid) || !self.mine.provisions(&claim, class) {
            return Ok(());
        }
        if self.client.all::<PersistentVolume>().get_opt(&format!("pvc-{uid}")).await?.is_some() {
            return Ok(());
        }
        if objects::selected_node(&claim).is_none() {
            // Of all nodes the first to write itself in takes the claim; the others meet a conflict.
            let node = self.config.node.clone();
            claim.metadata.annotations.get_or_insert_default().insert(objects::SELECTED_NODE.to_owned(), node);
            claim = match claims.update(&claim).await {
                Err(e) if e.is_conflict() || e.is_not_found() => return Ok(()),
                other => other?,
            };
        }
        let about = || reference(&claim);
        let note = format!("External provisioner is provisioning volume for claim \"{namespace}/{name}\"");
        self.events.event(about(), EventType::Normal, "Provisioning", note);
        let made = match self.create(&claim, class).await {
            Ok(made) => made,
            Err(CallError::Driver(status)) if status.code() == Code::ResourceExhausted => {
                self.events.event(about(), EventType::Warning, "ProvisioningFailed", text(&status));
                // Not here: the scheduler shall choose again.
                let body = json!({"metadata": {"annotations": {objects::SELECTED_NODE: null}}});
                claims.patch(name, &PatchKind::Merge, &body).await?;
                return Err(CallError::Driver(status));
            }
            Err(CallError::Driver(status)) if status.code() == Code::InvalidArgument => {
                let note = format!(
                    "Volume provisioning failed with infeasible error. Retries will be delayed. {}",
                    text(&status)
                );
                self.events.event(about(), EventType::Warning, "ProvisioningFailed", note);
                return Err(CallError::Driver(status));
            }
            Err(error) => {
                self.events.event(about(), EventType::Warning, "ProvisioningFailed", error.to_string());
                return Err(error);
            }
        };
        let volume = self.mine.volume(&claim, class, &made);
        match self.client.all::<PersistentVolume>().create(&volume).await {
            Err(e) if !e.is_already_exists() => {
                let note = format!(
                    "Error creating provisioned PV object for claim {namespace}/{name}: {}. Deleting the volume.",
                    e.message
                );
                self.events.event(about(), EventType::Warning, "ProvisioningFailed", note);
                if let Err(status) = self.remove(&made.volume_id).await {
                    let note = format!(
                        "Error cleaning provisioned volume for claim {namespace}/{name}: {}. Please delete manually.",
                        text(&status)
                    );
                    self.events.event(about(), EventType::Warning, "ProvisioningCleanupFailed", note);
                }
                Err(e.into())
            }
            _ => {
                let pv = volume.metadata.name.unwrap_or_default();
                self.events.event(
                    about(),
                    EventType::Normal,
                    "ProvisioningSucceeded",
                    format!("Successfully provisioned volume {pv}"),
                );
                Ok(())
            }
        }
    }

    async fn create(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Volume, CallError> {
        let here = Topology { segments: self.mine.topology.clone() };
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let wanted = objects::requested(claim);
        let request = CreateVolumeRequest {
            name: format!("pvc-{uid}"),
            capacity_range: Some(CapacityRange { required_bytes: wanted, limit_bytes: 0 }),
            volume_capabilities: capability(claim, class),
            parameters: objects::parameters(class),
            accessibility_requirements: Some(TopologyRequirement {
                requisite: vec![here.clone()],
                preferred: vec![here],
            }),
            ..CreateVolumeRequest::default()
        };
        let made = self.driver.create_volume(request).await?;
        if made.volume_id.is_empty() {
            return Err(CallError::Refused("the driver named no volume".into()));
        }
        if made.capacity_bytes > 0 && made.capacity_bytes < wanted {
            self.remove(&made.volume_id).await?;
            let why = format!("created volume capacity {} less than requested capacity {wanted}", made.capacity_bytes);
            return Err(CallError::Refused(why));
        }
        Ok(made)
    }

    async fn remove(&self, volume_id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..DeleteVolumeRequest::default() };
        self.driver.delete_volume(request).await
    }

    /// Removes the volume behind a released object, then the object.
    async fn delete(&self, name: &str) -> Result<(), CallError> {
        let volumes = self.client.all::<PersistentVolume>();
        let Some(mut volume) = volumes.get_opt(name).await? else { return Ok(()) };
        if self.mine.deletes(&volume) {
            let handle =
                volume.spec.as_ref().and_then(|s| s.csi.as_ref()).map(|c| c.volume_handle.clone()).unwrap_or_default();
            if let Err(status) = self.remove(&handle).await {
                self.events.event(reference(&volume), EventType::Warning, "VolumeFailedDelete", text(&status));
                return Err(status.into());
            }
            match volumes
                .delete(name, &DeleteOptions { uid: volume.metadata.uid.clone(), ..DeleteOptions::default() })
                .await
            {
                Err(e) if e.is_not_found() => return Ok(()),
                other => other?,
            }
            let Some(now) = volumes.get_opt(name).await? else { return Ok(()) };
            volume = now;
        } else if !self.mine.releases(&volume) {
            return Ok(());
        }
        let finalizers = volume.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|f| f != objects::FINALIZER);
        match volumes.update(&volume).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Grows a volume to what its claim asks for. Source: kubernetes-csi/external-resizer.
    async fn expand(&self, namespace: &str, name: &str) -> Result<(), CallError> {
        let claims = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let Some(claim) = claims.get_opt(name).await? else { return Ok(()) };
        let pv = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
        let volumes = self.client.all::<PersistentVolume>();
        let Some(volume) = volumes.get_opt(&pv).await? else { return Ok(()) };
        if !self.mine.expands(&claim, &volume) {
            return Ok(());
        }
        let note = format!("External resizer is resizing volume {pv}");
        self.events.event(reference(&claim), EventType::Normal, "Resizing", note);
        let request = ControllerExpandVolumeRequest {
            volume_id: volume
                .spec
                .as_ref()
                .and_then(|s| s.csi.as_ref())
                .map(|c| c.volume_handle.clone())
                .unwrap_or_default(),
            capacity_range: Some(CapacityRange { required_bytes: objects::requested(&claim), limit_bytes: 0 }),
            ..ControllerExpandVolumeRequest::default()
        };
        let grown = match self.driver.expand_volume(request).await {
            Ok(bytes) => bytes,
            Err(status) => {
                let note =
                    format!("resize volume \"{pv}\" by resizer \"{}\" failed: {}", self.config.driver, text(&status));
                self.events.event(reference(&claim), EventType::Warning, "VolumeResizeFailed", note);
                return Err(status.into());
            }
        };
        let size = objects::binary(grown);
        volumes.patch(&pv, &PatchKind::Merge, &json!({"spec": {"capacity": {"storage": size}}})).await?;
        claims.patch_status(name, &PatchKind::Merge, &json!({"status": {"capacity": {"storage": size}}})).await?;
        self.events.event(reference(&claim), EventType::Normal, "VolumeResizeSuccessful", "Resize volume succeeded");
        Ok(())
    }
}
