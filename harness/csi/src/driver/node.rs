//! The Node service: volumes are put where Pods want them.

use std::path::Path;

use nix::{mount::MsFlags, sys::statvfs::statvfs};
use podlab_mutant::{self as mutant, Mutant};
use tonic::{Request, Response, Status};

use super::{Service, missing, mounts, required};
use crate::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, VolumeCapability, VolumeUsage,
    node_server::Node,
    node_service_capability::{Rpc, Type, rpc},
    volume_capability::AccessType,
    volume_usage::Unit,
};

fn io(what: &str) -> impl Fn(std::io::Error) -> Status + '_ {
    move |e| Status::internal(format!("failed to {what}: {e}"))
}

fn flags_of(capability: &VolumeCapability) -> MsFlags {
    match &capability.access_type {
        // Unknown ones were refused before.
        Some(AccessType::Mount(m)) => mounts::flags(&m.mount_flags).unwrap_or_else(MsFlags::empty),
        _ => MsFlags::empty(),
    }
}

/// What is at a path already.
enum Found {
    Nothing,
    This { read_only: bool },
    Other,
}

fn look(path: &Path, data: &Path) -> Result<Found, Status> {
    let options = mounts::mounted(path).map_err(io("read the mount table"))?;
    Ok(match options {
        None => Found::Nothing,
        Some(o) if mounts::same(path, data) => Found::This { read_only: o.iter().any(|o| o == "ro") },
        Some(_) => Found::Other,
    })
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.staging_target_path.is_empty() {
            return Err(missing("staging target path"));
        }
        let capability = required(r.volume_capability.as_ref())?;
        let _turn = self.volumes.turn(&r.volume_id)?;
        self.volumes.find(&r.volume_id)?;
        let (data, path) = (self.volumes.data(&r.volume_id), Path::new(&r.staging_target_path));
        let flags = flags_of(capability);
        match look(path, &data)? {
            Found::Nothing => mounts::bind(&data, path, flags).map_err(io("stage the volume"))?,
            Found::This { .. } if mutant::is(Mutant::StagesOnce) => return Err(Status::internal("staged already")),
            Found::This { read_only } if read_only == flags.contains(MsFlags::MS_RDONLY) => {}
            Found::This { .. } => return Err(Status::already_exists("the volume is staged there in another way")),
            Found::Other => {
                return Err(Status::already_exists(format!("something else is mounted at {}", path.display())));
            }
        }
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.staging_target_path.is_empty() {
            return Err(missing("staging target path"));
        }
        let _turn = self.volumes.turn(&r.volume_id)?;
        // A volume that has gone is not staged; what is left of its mount goes too.
        mounts::unmount(Path::new(&r.staging_target_path)).map_err(io("unstage the volume"))?;
        if mutant::is(Mutant::VolumesComeEmpty) {
            self.volumes.clear(&r.volume_id).map_err(io("clear the volume"))?;
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.target_path.is_empty() {
            return Err(missing("target path"));
        }
        let capability = required(r.volume_capability.as_ref())?;
        if r.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging target path is not set"));
        }
        let _turn = self.volumes.turn(&r.volume_id)?;
        self.volumes.find(&r.volume_id)?;
        let data = self.volumes.data(&r.volume_id);
        let (staging, target) = (Path::new(&r.staging_target_path), Path::new(&r.target_path));
        if !matches!(look(staging, &data)?, Found::This { .. }) {
            return Err(Status::failed_precondition(format!(
                "volume {} is not staged at {}",
                r.volume_id,
                staging.display()
            )));
        }
        let mut flags = flags_of(capability);
        let read_only = r.readonly || mutant::is(Mutant::PublishesReadOnly);
        flags.set(MsFlags::MS_RDONLY, read_only || flags.contains(MsFlags::MS_RDONLY));
        match look(target, &data)? {
            Found::Nothing => mounts::bind(staging, target, flags).map_err(io("publish the volume"))?,
            Found::This { read_only } if read_only == flags.contains(MsFlags::MS_RDONLY) => {}
            Found::This { .. } => return Err(Status::already_exists("the volume is published there in another way")),
            Found::Other => {
                return Err(Status::already_exists(format!("something else is mounted at {}", target.display())));
            }
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.target_path.is_empty() {
            return Err(missing("target path"));
        }
        let _turn = self.volumes.turn(&r.volume_id)?;
        let target = Path::new(&r.target_path);
        mounts::unmount(target).map_err(io("unpublish the volume"))?;
        match std::fs::remove_dir(target) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io("remove the target path")(e)),
            _ => Ok(Response::new(NodeUnpublishVolumeResponse {})),
        }
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.volume_path.is_empty() {
            return Err(missing("volume path"));
        }
        self.volumes.find(&r.volume_id)?;
        let path = Path::new(&r.volume_path);
        if !mounts::same(path, &self.volumes.data(&r.volume_id)) {
            return Err(Status::not_found(format!("volume {} is not at {}", r.volume_id, path.display())));
        }
        let s = statvfs(path).map_err(|e| io("read the file system's size")(e.into()))?;
        let n = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
        let bytes = |blocks: u64| n(blocks.saturating_mul(s.fragment_size()));
        let usage = vec![
            VolumeUsage {
                available: bytes(s.blocks_available()),
                total: bytes(s.blocks()),
                used: bytes(s.blocks().saturating_sub(s.blocks_free())),
                unit: Unit::Bytes.into(),
            },
            VolumeUsage {
                available: n(s.files_free()),
                total: n(s.files()),
                used: n(s.files().saturating_sub(s.files_free())),
                unit: Unit::Inodes.into(),
            },
        ];
        Ok(Response::new(NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.volume_path.is_empty() {
            return Err(missing("volume path"));
        }
        let record = self.volumes.find(&r.volume_id)?;
        if !mounts::same(Path::new(&r.volume_path), &self.volumes.data(&r.volume_id)) {
            return Err(Status::not_found(format!("volume {} is not at {}", r.volume_id, r.volume_path)));
        }
        if r.capacity_range.is_some_and(|c| c.required_bytes > record.capacity) {
            return Err(Status::out_of_range("the volume has not been expanded that far"));
        }
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: record.capacity }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let all = [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume];
        let of = |t: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: t.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: all.into_iter().map(of).collect() }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let topology = Some(self.topology());
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: topology,
        }))
    }
}
