//! The CRI over its unix socket.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use futures::StreamExt;
use podlab_cri::v1::{self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};
use tonic::transport::{Channel, Endpoint};

use super::{Cri, EventStream, ExecOutput, Images, Runtime, RuntimeError};

/// Largest message either way.
const MAX_MESSAGE: usize = 16 << 20;
/// Deadline of ordinary calls.
const DEADLINE: Duration = Duration::from_secs(120);

/// A runtime behind a unix socket. Connects on first use and again after a loss. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CriSocket {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl CriSocket {
    /// Prepares the client; nothing is sent yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` when the path does not make a URI.
    pub fn new(socket: &Path) -> Cri<Self> {
        let uri = format!("unix://{}", socket.display());
        let endpoint =
            Endpoint::from_shared(uri).map_err(|e| RuntimeError::new(tonic::Code::InvalidArgument, e.to_string()))?;
        let channel = endpoint.tcp_nodelay(true).connect_lazy();
        let runtime = RuntimeServiceClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let images = ImageServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok(Self { runtime, images })
    }
}

fn within<T>(message: T, deadline: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(deadline);
    request
}

fn usual<T>(message: T) -> tonic::Request<T> {
    within(message, DEADLINE)
}

fn seconds(d: Duration) -> i64 {
    // Whole seconds on the wire; a fraction counts as a second so that nothing is killed early.
    i64::try_from(d.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

#[async_trait]
impl Runtime for CriSocket {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        Ok(self.runtime.clone().version(usual(v1::VersionRequest { version: "0.1.0".to_owned() })).await?.into_inner())
    }

    async fn status(&self) -> Cri<v1::StatusResponse> {
        Ok(self.runtime.clone().status(usual(v1::StatusRequest { verbose: false })).await?.into_inner())
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let deadline = DEADLINE * 2;
        Ok(self.runtime.clone().run_pod_sandbox(within(request, deadline)).await?.into_inner().pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().stop_pod_sandbox(usual(request)).await?;
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().remove_pod_sandbox(usual(request)).await?;
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        Ok(self.runtime.clone().pod_sandbox_status(usual(request)).await?.into_inner())
    }

    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_pod_sandbox(usual(request)).await?.into_inner().items)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self.runtime.clone().create_container(usual(request)).await?.into_inner().container_id)
    }

    async fn start_container(&self, id: &str) -> Cri<()> {
        self.runtime.clone().start_container(usual(v1::StartContainerRequest { container_id: id.to_owned() })).await?;
        Ok(())
    }

    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: seconds(timeout) };
        self.runtime.clone().stop_container(within(request, DEADLINE + timeout)).await?;
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.runtime
            .clone()
            .remove_container(usual(v1::RemoveContainerRequest { container_id: id.to_owned() }))
            .await?;
        Ok(())
    }

    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        let request = v1::ListContainersRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_containers(usual(request)).await?.into_inner().containers)
    }

    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status = self.runtime.clone().container_status(usual(request)).await?.into_inner().status;
        status.ok_or_else(|| RuntimeError::new(tonic::Code::Internal, format!("status of container {id} is empty")))
    }

    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.runtime.clone().update_container_resources(usual(request)).await?;
        Ok(())
    }

    async fn reopen_container_log(&self, id: &str) -> Cri<()> {
        self.runtime
            .clone()
            .reopen_container_log(usual(v1::ReopenContainerLogRequest { container_id: id.to_owned() }))
            .await?;
        Ok(())
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        let request = v1::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: timeout.map_or(0, seconds) };
        let request = match timeout {
            Some(t) => within(request, DEADLINE + t),
            None => tonic::Request::new(request),
        };
        let out = self.runtime.clone().exec_sync(request).await?.into_inner();
        Ok(ExecOutput { stdout: out.stdout, stderr: out.stderr, exit_code: out.exit_code })
    }

    async fn exec(&self, request: v1::ExecRequest) -> Cri<String> {
        Ok(self.runtime.clone().exec(usual(request)).await?.into_inner().url)
    }

    async fn attach(&self, request: v1::AttachRequest) -> Cri<String> {
        Ok(self.runtime.clone().attach(usual(request)).await?.into_inner().url)
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Cri<String> {
        Ok(self.runtime.clone().port_forward(usual(request)).await?.into_inner().url)
    }

    async fn list_container_stats(&self, filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_container_stats(usual(request)).await?.into_inner().stats)
    }

    async fn list_pod_sandbox_stats(&self, filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        let request = v1::ListPodSandboxStatsRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_pod_sandbox_stats(usual(request)).await?.into_inner().stats)
    }

    async fn list_metric_descriptors(&self) -> Cri<Vec<v1::MetricDescriptor>> {
        let request = v1::ListMetricDescriptorsRequest {};
        Ok(self.runtime.clone().list_metric_descriptors(usual(request)).await?.into_inner().descriptors)
    }

    async fn list_pod_sandbox_metrics(&self) -> Cri<Vec<v1::PodSandboxMetrics>> {
        let request = v1::ListPodSandboxMetricsRequest {};
        Ok(self.runtime.clone().list_pod_sandbox_metrics(usual(request)).await?.into_inner().pod_metrics)
    }

    async fn events(&self) -> Cri<EventStream> {
        let stream =
            self.runtime.clone().get_container_events(tonic::Request::new(v1::GetEventsRequest {})).await?.into_inner();
        Ok(stream.map(|e| e.map_err(RuntimeError::from)).boxed())
    }
}

#[async_trait]
impl Images for CriSocket {
    async fn image_status(&self, image: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        let request = v1::ImageStatusRequest { image: Some(image), verbose: false };
        Ok(self.images.clone().image_status(usual(request)).await?.into_inner().image)
    }

    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        Ok(self.images.clone().list_images(usual(v1::ListImagesRequest { filter: None })).await?.into_inner().images)
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        // A pull may take as long as it takes: only the caller ends it.
        let request = v1::PullImageRequest { image: Some(image), auth, sandbox_config: Some(sandbox) };
        Ok(self.images.clone().pull_image(tonic::Request::new(request)).await?.into_inner().image_ref)
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Cri<()> {
        self.images.clone().remove_image(usual(v1::RemoveImageRequest { image: Some(image) })).await?;
        Ok(())
    }

    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        Ok(self.images.clone().image_fs_info(usual(v1::ImageFsInfoRequest {})).await?.into_inner())
    }
}
