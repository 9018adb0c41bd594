//! The Controller service: volumes come and go.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use super::{
    Service, missing, required, unsupported,
    volumes::{Record, id_of},
};
use crate::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerServiceCapability, ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    controller_server::Controller,
    controller_service_capability::{Rpc, Type, rpc},
    list_volumes_response::Entry,
    validate_volume_capabilities_response::Confirmed,
};

/// Size of a volume that asks for none.
const DEFAULT_SIZE: i64 = 1 << 30;
/// Largest volume; nothing is reserved, so this only keeps nonsense out.
const LARGEST: i64 = 16 << 40;
/// Most entries of one list answer.
const PAGE: usize = 1000;

/// The size to make: what is required, or the default, within the limit.
fn size(range: Option<&CapacityRange>) -> Result<i64, Status> {
    let Some(range) = range else { return Ok(DEFAULT_SIZE) };
    let (required, limit) = (range.required_bytes, range.limit_bytes);
    if required < 0 || limit < 0 {
        return Err(Status::invalid_argument("capacity must not be negative"));
    }
    if limit > 0 && required > limit {
        return Err(Status::invalid_argument("required capacity is above its limit"));
    }
    let wanted = match (required, limit) {
        (0, 0) => DEFAULT_SIZE,
        (0, limit) => limit.min(DEFAULT_SIZE),
        (required, _) => required,
    };
    if wanted > LARGEST {
        return Err(Status::out_of_range(format!("capacity {wanted} is above the largest volume, {LARGEST}")));
    }
    Ok(wanted)
}

/// Whether an existing size answers a request.
fn within(capacity: i64, range: Option<&CapacityRange>) -> bool {
    range.is_none_or(|r| capacity >= r.required_bytes && (r.limit_bytes == 0 || capacity <= r.limit_bytes))
}

impl Service {
    fn volume(&self, id: &str, record: &Record) -> Volume {
        Volume {
            capacity_bytes: record.capacity,
            volume_id: id.to_owned(),
            volume_context: BTreeMap::new(),
            content_source: None,
            accessible_topology: vec![self.topology()],
        }
    }

    /// Whether this node is one of those asked for.
    fn reachable(&self, wanted: &TopologyRequirement) -> bool {
        let ours = self.topology().segments;
        let fits = |t: &crate::v1::Topology| t.segments.iter().all(|(k, v)| ours.get(k) == Some(v));
        wanted.requisite.is_empty() || wanted.requisite.iter().any(fits)
    }
}

fn io(what: &str) -> impl Fn(std::io::Error) -> Status + '_ {
    move |e| Status::internal(format!("failed to {what}: {e}"))
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.name.is_empty() {
            return Err(missing("name"));
        }
        if r.volume_capabilities.is_empty() {
            return Err(missing("volume capabilities"));
        }
        for capability in &r.volume_capabilities {
            required(Some(capability))?;
        }
        if r.volume_content_source.is_some() {
            return Err(Status::invalid_argument("volumes are made empty: no content source is supported"));
        }
        if !r.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("mutable parameters are not supported"));
        }
        if r.accessibility_requirements.as_ref().is_some_and(|t| !self.reachable(t)) {
            return Err(Status::resource_exhausted(format!("volumes are made on node {} only", self.node_id)));
        }
        let capacity = size(r.capacity_range.as_ref())?;
        let id = id_of(&r.name);
        let _turn = self.volumes.turn(&id)?;
        if let Some(found) = self.volumes.get(&id) {
            if !within(found.capacity, r.capacity_range.as_ref()) || found.parameters != r.parameters {
                return Err(Status::already_exists(format!(
                    "volume {} exists with another size or other parameters",
                    r.name
                )));
            }
            return Ok(Response::new(CreateVolumeResponse { volume: Some(self.volume(&id, &found)) }));
        }
        let record = Record { name: r.name, capacity, parameters: r.parameters };
        self.volumes.create(&id, record.clone()).map_err(io("make the volume"))?;
        Ok(Response::new(CreateVolumeResponse { volume: Some(self.volume(&id, &record)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        if id.is_empty() {
            return Err(missing("volume id"));
        }
        let turn = self.volumes.turn(&id)?;
        if self.volumes.get(&id).is_none() {
            return Ok(Response::new(DeleteVolumeResponse {}));
        }
        if super::mounts::in_use(&self.volumes.data(&id)).map_err(io("read the mount table"))? {
            return Err(Status::failed_precondition(format!("volume {id} is in use")));
        }
        drop(turn);
        // Many files take long: not on a thread that others need.
        let volumes = self.volumes.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let _turn = volumes.turn(&id)?;
            volumes.remove(&id).map_err(io("remove the volume"))
        });
        removed.await.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need no attaching"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes need no attaching"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        if r.volume_capabilities.is_empty() {
            return Err(missing("volume capabilities"));
        }
        self.volumes.find(&r.volume_id)?;
        let why = r.volume_capabilities.iter().find_map(unsupported);
        let confirmed = why.is_none().then_some(Confirmed {
            volume_context: r.volume_context,
            volume_capabilities: r.volume_capabilities,
            parameters: r.parameters,
            mutable_parameters: r.mutable_parameters,
        });
        let message = why.unwrap_or_default().to_owned();
        Ok(Response::new(ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let r = request.into_inner();
        let most =
            usize::try_from(r.max_entries).map_err(|_| Status::invalid_argument("max_entries must not be negative"))?;
        // A token is the id the last page ended with; that volume may have gone since.
        let token = r.starting_token.as_str();
        if !token.is_empty() && !token.starts_with("vol-") {
            return Err(Status::aborted(format!("starting_token {token:?} is not one of ours")));
        }
        let most = if most == 0 { PAGE } else { most.min(PAGE) };
        let all = self.volumes.list((!token.is_empty()).then_some(token));
        let next_token = if all.len() > most { all[most - 1].0.clone() } else { String::new() };
        let entries = all
            .iter()
            .take(most)
            .map(|(id, record)| Entry { volume: Some(self.volume(id, record)), status: None })
            .collect();
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let r = request.into_inner();
        let elsewhere = r
            .accessible_topology
            .is_some_and(|t| !self.reachable(&TopologyRequirement { requisite: vec![t], preferred: vec![] }));
        if elsewhere || r.volume_capabilities.iter().any(|c| unsupported(c).is_some()) {
            return Ok(Response::new(GetCapacityResponse::default()));
        }
        let usage = self.volumes.usage().map_err(io("read the file system's size"))?;
        let free = usage.blocks_available().saturating_mul(usage.fragment_size());
        let available_capacity = i64::try_from(free).unwrap_or(i64::MAX);
        Ok(Response::new(GetCapacityResponse {
            available_capacity,
            maximum_volume_size: Some(LARGEST),
            minimum_volume_size: Some(1),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let all =
            [rpc::Type::CreateDeleteVolume, rpc::Type::ListVolumes, rpc::Type::GetCapacity, rpc::Type::ExpandVolume];
        let of = |t: rpc::Type| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: t.into() })) };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: all.into_iter().map(of).collect() }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let r = request.into_inner();
        if r.volume_id.is_empty() {
            return Err(missing("volume id"));
        }
        let range = r.capacity_range.ok_or_else(|| missing("capacity range"))?;
        let wanted = size(Some(&range))?;
        if let Some(why) = r.volume_capability.as_ref().and_then(unsupported) {
            return Err(Status::invalid_argument(why));
        }
        let _turn = self.volumes.turn(&r.volume_id)?;
        let record = self.volumes.find(&r.volume_id)?;
        if range.limit_bytes > 0 && record.capacity > range.limit_bytes {
            return Err(Status::out_of_range("the volume is larger than the limit"));
        }
        let capacity_bytes = record.capacity.max(wanted);
        if capacity_bytes > record.capacity {
            self.volumes.resize(&r.volume_id, capacity_bytes).map_err(io("resize the volume"))?;
        }
        // A directory has no file system of its own that would have to grow.
        Ok(Response::new(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_what_is_required_within_the_limit() {
        let of = |required_bytes, limit_bytes| {
            size(Some(&CapacityRange { required_bytes, limit_bytes })).map_err(|s| s.code())
        };
        assert_eq!(size(None).unwrap(), DEFAULT_SIZE);
        assert_eq!(of(5, 0), Ok(5));
        assert_eq!(of(0, 7), Ok(7));
        assert_eq!(of(9, 7), Err(tonic::Code::InvalidArgument));
        assert_eq!(of(-1, 0), Err(tonic::Code::InvalidArgument));
        assert_eq!(of(LARGEST + 1, 0), Err(tonic::Code::OutOfRange));
    }
}
