//! The container runtime as the node agent sees it: the CRI as two traits, so that a simulated runtime can stand in,
//! and the conversion of its answers into the lifecycle's records.

mod grpc;
mod records;

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
pub use grpc::CriSocket;
use podlab_cri::v1;
pub(crate) use records::{Expected, Reader};

/// A failed CRI call. `Display` is the text Go's gRPC client gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct RuntimeError {
    /// gRPC status code.
    pub code: tonic::Code,
    /// The runtime's own words.
    pub message: String,
}

impl RuntimeError {
    /// An error of a code.
    pub fn new(code: tonic::Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether the thing was not there, which a stop or a removal takes for success.
    pub fn is_not_found(&self) -> bool {
        self.code == tonic::Code::NotFound
    }
}

impl From<tonic::Status> for RuntimeError {
    fn from(s: tonic::Status) -> Self {
        Self { code: s.code(), message: s.message().to_owned() }
    }
}

/// Result of a CRI call.
pub type Cri<T> = Result<T, RuntimeError>;

/// Container events as they happen.
pub type EventStream = BoxStream<'static, Cri<v1::ContainerEventResponse>>;

/// What a synchronous exec gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit code.
    pub exit_code: i32,
}

impl ExecOutput {
    /// Both outputs, one after the other, as probes and hooks report them.
    pub fn combined(&self) -> String {
        let mut all = self.stdout.clone();
        all.extend_from_slice(&self.stderr);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// Sandboxes and containers. Dropping a call midway leaves it unknown whether it took effect.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Who answers.
    async fn version(&self) -> Cri<v1::VersionResponse>;
    /// Whether runtime and network are ready.
    async fn status(&self) -> Cri<v1::StatusResponse>;
    /// Makes a sandbox with its network; returns its id.
    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String>;
    /// Stops a sandbox and what runs in it. Idempotent.
    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()>;
    /// Removes a sandbox and its containers. Idempotent.
    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()>;
    /// One sandbox.
    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse>;
    /// Sandboxes that match.
    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>>;
    /// Makes a container; returns its id.
    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String>;
    /// Starts it.
    async fn start_container(&self, id: &str) -> Cri<()>;
    /// Signals it, waits, kills it. Idempotent.
    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()>;
    /// Removes it. Idempotent.
    async fn remove_container(&self, id: &str) -> Cri<()>;
    /// Containers that match.
    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>>;
    /// One container.
    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus>;
    /// Changes its resources.
    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()>;
    /// Opens its log file again after a rotation.
    async fn reopen_container_log(&self, id: &str) -> Cri<()>;
    /// Runs a command in it to its end. `None` waits for ever.
    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput>;
    /// URL of an interactive exec.
    async fn exec(&self, request: v1::ExecRequest) -> Cri<String>;
    /// URL to attach to its main process.
    async fn attach(&self, request: v1::AttachRequest) -> Cri<String>;
    /// URL to forward ports of a sandbox.
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Cri<String>;
    /// Usage of containers.
    async fn list_container_stats(&self, filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>>;
    /// Usage of sandboxes.
    async fn list_pod_sandbox_stats(&self, filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>>;
    /// The metrics sandboxes and containers have.
    async fn list_metric_descriptors(&self) -> Cri<Vec<v1::MetricDescriptor>> {
        Ok(Vec::new())
    }
    /// Their values.
    async fn list_pod_sandbox_metrics(&self) -> Cri<Vec<v1::PodSandboxMetrics>> {
        Ok(Vec::new())
    }
    /// Events from now on.
    async fn events(&self) -> Cri<EventStream>;
}

/// Images of the node.
#[async_trait]
pub trait Images: Send + Sync + 'static {
    /// One image; `None` when it is not on the node.
    async fn image_status(&self, image: v1::ImageSpec) -> Cri<Option<v1::Image>>;
    /// All images.
    async fn list_images(&self) -> Cri<Vec<v1::Image>>;
    /// Pulls; returns the reference to create containers with.
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Cri<String>;
    /// Removes an image. Idempotent.
    async fn remove_image(&self, image: v1::ImageSpec) -> Cri<()>;
    /// Usage of the image file systems.
    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse>;
}
