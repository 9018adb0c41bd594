//! The tap at the CRI seam of a node, on the node agent's side: it works in front of any runtime. The bridge records the
//! calls it gets; what a fault keeps from it is recorded here.

use std::{collections::BTreeMap, sync::Mutex, sync::PoisonError, time::Duration};

use async_trait::async_trait;
use podlab_cri::v1;
use podlab_fault::{Call, Effect};
use podlab_kubelet::{Cri, EventStream, ExecOutput, Images, Runtime, RuntimeError};
use podlab_timeline::{Outcome, PodKey};

use super::tap::{Injected, Tap};
use crate::effects::disturbed;

/// A runtime with a tap in front.
pub(super) struct CriTap<R> {
    inner: R,
    tap: Tap,
    /// Whose sandbox or container an id is. Ids made before this agent started are nobody's: a fault that names a Pod
    /// passes them by.
    pods: Mutex<BTreeMap<String, PodKey>>,
}

fn failed(e: Injected) -> RuntimeError {
    RuntimeError::new(tonic::Code::from_i32(i32::try_from(e.code).unwrap_or(2)), e.message)
}

fn key_of(config: &v1::PodSandboxConfig) -> Option<PodKey> {
    let m = config.metadata.as_ref()?;
    Some(PodKey { namespace: m.namespace.clone(), name: m.name.clone(), uid: m.uid.clone() })
}

impl<R> CriTap<R> {
    pub(super) fn new(inner: R, tap: Tap) -> Self {
        Self { inner, tap, pods: Mutex::default() }
    }

    fn pods(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PodKey>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tapped<T, F: Future<Output = Cri<T>>>(
        &self,
        method: &str,
        pod: Option<PodKey>,
        make: impl Fn() -> F,
    ) -> Cri<T> {
        self.tapped_with(method, pod, make).await.map(|(answer, _)| answer)
    }

    async fn tapped_with<T, F: Future<Output = Cri<T>>>(
        &self,
        method: &str,
        pod: Option<PodKey>,
        make: impl Fn() -> F,
    ) -> Cri<(T, Option<Effect>)> {
        let start = self.tap.recorder.now();
        let mut kept = None;
        let name = pod.as_ref().map_or("", |p| p.name.as_str());
        let call = Call::Cri { method, pod: name };
        let words = |e: Injected| (e.made, failed(e));
        let real = || async { make().await.map_err(|e| (true, e)) };
        let result = self.tap.through_with(call, pod.as_ref(), words, real).await.map_err(|(made, e)| {
            kept = (!made).then(|| e.to_string());
            e
        });
        if let Some(error) = kept {
            self.tap.recorder.call(pod.as_ref(), method, "", start, Outcome::Error(error));
        }
        result
    }

    async fn of_id<T, F: Future<Output = Cri<T>>>(&self, method: &str, id: &str, make: impl Fn() -> F) -> Cri<T> {
        let pod = self.pods().get(id).cloned();
        self.tapped(method, pod, make).await
    }
}

#[async_trait]
impl<R: Runtime> Runtime for CriTap<R> {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        self.tapped("Version", None, || self.inner.version()).await
    }

    async fn status(&self) -> Cri<v1::StatusResponse> {
        self.tapped("Status", None, || self.inner.status()).await
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String> {
        let pod = key_of(&config);
        let id =
            self.tapped("RunPodSandbox", pod.clone(), || self.inner.run_pod_sandbox(config.clone(), handler)).await?;
        self.pods().extend(pod.map(|p| (id.clone(), p)));
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.of_id("StopPodSandbox", id, || self.inner.stop_pod_sandbox(id)).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.of_id("RemovePodSandbox", id, || self.inner.remove_pod_sandbox(id)).await?;
        self.pods().remove(id);
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        self.of_id("PodSandboxStatus", id, || self.inner.pod_sandbox_status(id)).await
    }

    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        self.tapped("ListPodSandbox", None, || self.inner.list_pod_sandbox(filter.clone())).await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let pod = key_of(&sandbox_config);
        let real = || self.inner.create_container(sandbox, config.clone(), sandbox_config.clone());
        let id = self.tapped("CreateContainer", pod.clone(), real).await?;
        self.pods().extend(pod.map(|p| (id.clone(), p)));
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Cri<()> {
        self.of_id("StartContainer", id, || self.inner.start_container(id)).await
    }

    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        self.of_id("StopContainer", id, || self.inner.stop_container(id, timeout)).await
    }

    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.of_id("RemoveContainer", id, || self.inner.remove_container(id)).await?;
        self.pods().remove(id);
        Ok(())
    }

    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        self.tapped("ListContainers", None, || self.inner.list_containers(filter.clone())).await
    }

    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        self.of_id("ContainerStatus", id, || self.inner.container_status(id)).await
    }

    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        self.of_id("UpdateContainerResources", id, || self.inner.update_container_resources(id, linux.clone())).await
    }

    async fn reopen_container_log(&self, id: &str) -> Cri<()> {
        self.of_id("ReopenContainerLog", id, || self.inner.reopen_container_log(id)).await
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        self.of_id("ExecSync", id, || self.inner.exec_sync(id, cmd.clone(), timeout)).await
    }

    async fn exec(&self, request: v1::ExecRequest) -> Cri<String> {
        let id = request.container_id.clone();
        self.of_id("Exec", &id, || self.inner.exec(request.clone())).await
    }

    async fn attach(&self, request: v1::AttachRequest) -> Cri<String> {
        let id = request.container_id.clone();
        self.of_id("Attach", &id, || self.inner.attach(request.clone())).await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Cri<String> {
        let id = request.pod_sandbox_id.clone();
        self.of_id("PortForward", &id, || self.inner.port_forward(request.clone())).await
    }

    async fn list_container_stats(&self, filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        self.tapped("ListContainerStats", None, || self.inner.list_container_stats(filter.clone())).await
    }

    async fn list_pod_sandbox_stats(&self, filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        self.tapped("ListPodSandboxStats", None, || self.inner.list_pod_sandbox_stats(filter.clone())).await
    }

    async fn events(&self) -> Cri<EventStream> {
        let (stream, effect) = self.tapped_with("GetContainerEvents", None, || self.inner.events()).await?;
        Ok(disturbed(stream, effect.as_ref(), self.tap.clock()))
    }
}

#[async_trait]
impl<R: Images> Images for CriTap<R> {
    async fn image_status(&self, image: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        self.tapped("ImageStatus", None, || self.inner.image_status(image.clone())).await
    }

    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        self.tapped("ListImages", None, || self.inner.list_images()).await
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let pod = key_of(&sandbox);
        self.tapped("PullImage", pod, || self.inner.pull_image(image.clone(), auth.clone(), sandbox.clone())).await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Cri<()> {
        self.tapped("RemoveImage", None, || self.inner.remove_image(image.clone())).await
    }

    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        self.tapped("ImageFsInfo", None, || self.inner.image_fs_info()).await
    }
}
