//! ImageService.

use std::{collections::BTreeMap, sync::Arc};

use podlab_timeline::{Lane, Outcome};
use tonic::{Request, Response, Status};

use super::Answers;
use crate::{
    error::Error,
    images::{Credentials, ImageRecord, Reference},
    runtime::{Runtime, pod_key},
    v1::{self, image_service_server::ImageService},
};

/// The service; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Images(pub Arc<Runtime>);

fn image_of(record: &ImageRecord) -> v1::Image {
    let user = record.config.user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    v1::Image {
        id: record.id.clone(),
        repo_tags: record.tags.iter().cloned().collect(),
        repo_digests: record.digests.iter().cloned().collect(),
        size: record.size,
        // An image without a user runs as root, and status says so.
        uid: uid.or_else(|| user.is_empty().then_some(0)).map(|value| v1::Int64Value { value }),
        username: if uid.is_none() { user.to_owned() } else { String::new() },
        spec: Some(v1::ImageSpec { image: record.id.clone(), annotations: BTreeMap::new(), ..Default::default() }),
        pinned: record.pinned,
    }
}

impl Images {
    fn list(&self, filter: Option<v1::ImageFilter>) -> Vec<v1::Image> {
        let wanted = filter.and_then(|f| f.image).map(|i| i.image).filter(|i| !i.is_empty());
        match wanted {
            Some(name) => self.0.images.get(&name).iter().map(|i| image_of(i)).collect(),
            None => self.0.images.list().iter().map(|i| image_of(i)).collect(),
        }
    }
}

#[tonic::async_trait]
impl ImageService for Images {
    type StreamImagesStream = Answers<v1::StreamImagesResponse>;

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        Ok(Response::new(v1::ListImagesResponse { images: self.list(request.into_inner().filter) }))
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let images = self.list(request.into_inner().filter);
        let answer = (!images.is_empty()).then_some(Ok(v1::StreamImagesResponse { images }));
        Ok(Response::new(Box::pin(futures::stream::iter(answer))))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let request = request.into_inner();
        let name = request.image.map(|i| i.image).unwrap_or_default();
        let mut info = BTreeMap::new();
        let found = self.0.images.get(&name);
        if let Some(record) = found.as_ref().filter(|_| request.verbose) {
            let json = serde_json::json!({"chainID": record.layers.last(), "imageSpec": {"config": record.config}});
            info.insert("info".to_owned(), json.to_string());
        }
        Ok(Response::new(v1::ImageStatusResponse { image: found.as_deref().map(image_of), info }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let request = request.into_inner();
        let name = request.image.map(|i| i.image).unwrap_or_default();
        let reference = Reference::parse(&name).map_err(Error::from)?;
        let key = pod_key(request.sandbox_config.as_ref().and_then(|c| c.metadata.as_ref()));
        let recorder = self.0.recorder.lane(Lane::Image);
        let start = recorder.now();
        let pulled = self.0.puller.pull(&reference, Credentials::from_cri(request.auth.as_ref())).await;
        let outcome = pulled.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        recorder.call(key.as_ref(), "pull", &reference.to_string(), start, outcome);
        let image_ref = pulled.map_err(Error::from)?.id.clone();
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let name = request.into_inner().image.map(|i| i.image).unwrap_or_default();
        self.0.blocking(move |this| this.images.remove(&name).map_err(Error::from)).await?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let answer = self.0.blocking(|this| {
            let usage = |(path, bytes, inodes): (std::path::PathBuf, u64, u64)| v1::FilesystemUsage {
                timestamp: this.now_ns(),
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: path.display().to_string() }),
                used_bytes: Some(v1::UInt64Value { value: bytes }),
                inodes_used: Some(v1::UInt64Value { value: inodes }),
            };
            let rw = this.config.run.join("rw/containers");
            let (bytes, inodes) = crate::images::disk_usage(&rw);
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: vec![usage(this.images.usage())],
                container_filesystems: vec![usage((rw, bytes, inodes))],
            })
        });
        Ok(Response::new(answer.await?))
    }
}
