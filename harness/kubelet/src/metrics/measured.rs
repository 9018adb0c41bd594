//! A runtime whose calls are counted and timed. Source: k/k pkg/kubelet/kuberuntime/instrumented_services.go.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use podlab_clock::Clock;
use podlab_cri::v1;

use super::Metrics;
use crate::runtime::{Cri, EventStream, ExecOutput, Images, Runtime};

/// Passes calls through and counts them.
pub(crate) struct Measured<T: ?Sized> {
    inner: Arc<T>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl<T: ?Sized> Measured<T> {
    pub(crate) fn new(inner: Arc<T>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self { inner, clock, metrics }
    }

    async fn op<R>(&self, name: &'static str, call: impl Future<Output = Cri<R>> + Send) -> Cri<R> {
        let labels = [("operation_type", name)];
        let began = self.clock.now();
        let result = call.await;
        self.metrics.inc("kubelet_runtime_operations_total", &labels);
        let took = self.clock.now().since(began);
        self.metrics.observe("kubelet_runtime_operations_duration_seconds", &labels, took);
        if result.is_err() {
            self.metrics.inc("kubelet_runtime_operations_errors_total", &labels);
        }
        result
    }
}

#[async_trait]
impl Runtime for Measured<dyn Runtime> {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        self.op("version", self.inner.version()).await
    }
    async fn status(&self) -> Cri<v1::StatusResponse> {
        self.op("status", self.inner.status()).await
    }
    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String> {
        let began = self.clock.now();
        let made = self.op("run_podsandbox", self.inner.run_pod_sandbox(config, handler)).await;
        let labels = [("runtime_handler", handler)];
        let took = self.clock.now().since(began);
        self.metrics.observe("kubelet_run_podsandbox_duration_seconds", &labels, took);
        let (all, failed) = ("kubelet_started_pods_total", "kubelet_started_pods_errors_total");
        self.metrics.inc(all, &[]);
        if made.is_err() {
            self.metrics.inc("kubelet_run_podsandbox_errors_total", &labels);
            self.metrics.inc(failed, &[]);
        }
        made
    }
    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.op("stop_podsandbox", self.inner.stop_pod_sandbox(id)).await
    }
    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.op("remove_podsandbox", self.inner.remove_pod_sandbox(id)).await
    }
    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        self.op("podsandbox_status", self.inner.pod_sandbox_status(id)).await
    }
    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        self.op("list_podsandbox", self.inner.list_pod_sandbox(filter)).await
    }
    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        self.op("create_container", self.inner.create_container(sandbox, config, sandbox_config)).await
    }
    async fn start_container(&self, id: &str) -> Cri<()> {
        self.op("start_container", self.inner.start_container(id)).await
    }
    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        self.op("stop_container", self.inner.stop_container(id, timeout)).await
    }
    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.op("remove_container", self.inner.remove_container(id)).await
    }
    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        self.op("list_containers", self.inner.list_containers(filter)).await
    }
    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        self.op("container_status", self.inner.container_status(id)).await
    }
    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        self.op("update_container", self.inner.update_container_resources(id, linux)).await
    }
    async fn reopen_container_log(&self, id: &str) -> Cri<()> {
        self.op("reopen_container_log", self.inner.reopen_container_log(id)).await
    }
    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        self.op("exec_sync", self.inner.exec_sync(id, cmd, timeout)).await
    }
    async fn exec(&self, request: v1::ExecRequest) -> Cri<String> {
        self.op("exec", self.inner.exec(request)).await
    }
    async fn attach(&self, request: v1::AttachRequest) -> Cri<String> {
        self.op("attach", self.inner.attach(request)).await
    }
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Cri<String> {
        self.op("port_forward", self.inner.port_forward(request)).await
    }
    async fn list_container_stats(&self, filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        self.op("list_container_stats", self.inner.list_container_stats(filter)).await
    }
    async fn list_pod_sandbox_stats(&self, filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        self.op("list_podsandbox_stats", self.inner.list_pod_sandbox_stats(filter)).await
    }
    async fn list_metric_descriptors(&self) -> Cri<Vec<v1::MetricDescriptor>> {
        self.op("list_metric_descriptors", self.inner.list_metric_descriptors()).await
    }
    async fn list_pod_sandbox_metrics(&self) -> Cri<Vec<v1::PodSandboxMetrics>> {
        self.op("list_podsandbox_metrics", self.inner.list_pod_sandbox_metrics()).await
    }
    async fn events(&self) -> Cri<EventStream> {
        self.op("get_container_events", self.inner.events()).await
    }
}

#[async_trait]
impl Images for Measured<dyn Images> {
    async fn image_status(&self, image: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        self.op("image_status", self.inner.image_status(image)).await
    }
    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        self.op("list_images", self.inner.list_images()).await
    }
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        self.op("pull_image", self.inner.pull_image(image, auth, sandbox)).await
    }
    async fn remove_image(&self, image: v1::ImageSpec) -> Cri<()> {
        self.op("remove_image", self.inner.remove_image(image)).await
    }
    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        self.op("image_fs_info", self.inner.image_fs_info()).await
    }
}
