//! The runtime as an agent reaches it: behind a tap that knows the agent's life.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::StreamExt;
use podlab_cri::v1;
use podlab_fault::{Call, Effect};
use podlab_kubelet::{Cri, EventStream, ExecOutput, Images, Runtime, RuntimeError};
use podlab_timeline::{Lane, PodKey};

use crate::effects::disturbed;

use super::{
    super::seam::{Seam, Site},
    runtime::{SimRuntime, pod_key},
};

/// A runtime behind a tap.
pub(in crate::world) struct TappedRuntime {
    pub(in crate::world) runtime: Arc<SimRuntime>,
    pub(in crate::world) seam: Seam,
}

fn refused(code: u32, msg: String) -> RuntimeError {
    RuntimeError::new(tonic::Code::from_i32(i32::try_from(code).unwrap_or(2)), msg)
}

/// Whether a call changes something; only those are shown in the log.
#[derive(Clone, Copy, PartialEq)]
enum Shown {
    Yes,
    No,
}

impl TappedRuntime {
    async fn pass<T, F: Future<Output = Cri<T>>>(
        &self,
        method: &str,
        shown: Shown,
        about: (Option<PodKey>, String),
        make: impl Fn() -> F,
    ) -> Cri<T> {
        self.pass_with(method, shown, about, make).await.map(|(answer, _)| answer)
    }

    async fn pass_with<T, F: Future<Output = Cri<T>>>(
        &self,
        method: &str,
        shown: Shown,
        (pod, subject): (Option<PodKey>, String),
        make: impl Fn() -> F,
    ) -> Cri<(T, Option<Effect>)> {
        let name = pod.as_ref().map(|p| p.name.clone()).unwrap_or_default();
        let site = Site {
            call: Call::Cri { method, pod: &name },
            name: format!("cri.{method} {name}/{subject}"),
            pod,
            subject: &subject,
            lane: (shown == Shown::Yes).then_some(Lane::Cri),
        };
        self.seam.pass_with(site, make, refused).await
    }
}

#[async_trait]
impl Runtime for TappedRuntime {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        self.pass("Version", Shown::No, Default::default(), || self.runtime.version()).await
    }

    async fn status(&self) -> Cri<v1::StatusResponse> {
        self.pass("Status", Shown::No, Default::default(), || Runtime::status(self.runtime.as_ref())).await
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String> {
        let about = (pod_key(config.metadata.as_ref()), String::new());
        // Finished even when the caller is dropped: a sandbox half made would be nobody's.
        let call = || {
            let (runtime, handler, config) = (self.runtime.clone(), handler.to_owned(), config.clone());
            async move {
                let made = runtime.clone().tasks.spawn(async move { runtime.run_pod_sandbox(config, &handler).await });
                made.await.unwrap_or_else(|e| Err(RuntimeError::new(tonic::Code::Internal, e.to_string())))
            }
        };
        self.pass("RunPodSandbox", Shown::Yes, about, call).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.pass("StopPodSandbox", Shown::Yes, self.runtime.subject(id), || self.runtime.stop_pod_sandbox(id)).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.pass("RemovePodSandbox", Shown::Yes, self.runtime.subject(id), || self.runtime.remove_pod_sandbox(id))
            .await
    }

    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        let about = self.runtime.subject(id);
        self.pass("PodSandboxStatus", Shown::No, about, || self.runtime.pod_sandbox_status(id)).await
    }

    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        self.pass("ListPodSandbox", Shown::No, Default::default(), || self.runtime.list_pod_sandbox(filter.clone()))
            .await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let about = (pod_key(sandbox_config.metadata.as_ref()), name);
        let call = || self.runtime.create_container(sandbox, config.clone(), sandbox_config.clone());
        self.pass("CreateContainer", Shown::Yes, about, call).await
    }

    async fn start_container(&self, id: &str) -> Cri<()> {
        self.pass("StartContainer", Shown::Yes, self.runtime.subject(id), || self.runtime.start_container(id)).await
    }

    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        let about = self.runtime.subject(id);
        self.pass("StopContainer", Shown::Yes, about, || self.runtime.stop_container(id, timeout)).await
    }

    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.pass("RemoveContainer", Shown::Yes, self.runtime.subject(id), || self.runtime.remove_container(id)).await
    }

    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        self.pass("ListContainers", Shown::No, Default::default(), || self.runtime.list_containers(filter.clone()))
            .await
    }

    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        self.pass("ContainerStatus", Shown::No, self.runtime.subject(id), || self.runtime.container_status(id)).await
    }

    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        let about = self.runtime.subject(id);
        let call = || self.runtime.update_container_resources(id, linux.clone());
        self.pass("UpdateContainerResources", Shown::Yes, about, call).await
    }

    async fn reopen_container_log(&self, id: &str) -> Cri<()> {
        let about = self.runtime.subject(id);
        self.pass("ReopenContainerLog", Shown::Yes, about, || self.runtime.reopen_container_log(id)).await
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        let about = self.runtime.subject(id);
        self.pass("ExecSync", Shown::No, about, || self.runtime.exec_sync(id, cmd.clone(), timeout)).await
    }

    async fn exec(&self, request: v1::ExecRequest) -> Cri<String> {
        self.runtime.exec(request).await
    }

    async fn attach(&self, request: v1::AttachRequest) -> Cri<String> {
        self.runtime.attach(request).await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Cri<String> {
        self.runtime.port_forward(request).await
    }

    async fn list_container_stats(&self, filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        let call = || self.runtime.list_container_stats(filter.clone());
        self.pass("ListContainerStats", Shown::No, Default::default(), call).await
    }

    async fn list_pod_sandbox_stats(&self, filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        let call = || self.runtime.list_pod_sandbox_stats(filter.clone());
        self.pass("ListPodSandboxStats", Shown::No, Default::default(), call).await
    }

    async fn events(&self) -> Cri<EventStream> {
        let make = || self.runtime.events();
        let (stream, effect) = self.pass_with("GetContainerEvents", Shown::No, Default::default(), make).await?;
        let (seam, runtime) = (self.seam.clone(), self.runtime.clone());
        let paused = stream.then(move |event| {
            let (seam, runtime) = (seam.clone(), runtime.clone());
            async move {
                let about = event.as_ref().map(|e| runtime.subject(&e.container_id)).unwrap_or_default();
                let pod = about.0.map(|p| p.name).unwrap_or_default();
                seam.pause(&format!("event of {pod}/{}", about.1)).await;
                event
            }
        });
        Ok(disturbed(paused.boxed(), effect.as_ref(), self.seam.clock))
    }
}

#[async_trait]
impl Images for TappedRuntime {
    async fn image_status(&self, image: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        self.pass("ImageStatus", Shown::No, Default::default(), || self.runtime.image_status(image.clone())).await
    }

    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        self.pass("ListImages", Shown::No, Default::default(), || self.runtime.list_images()).await
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let about = (pod_key(sandbox.metadata.as_ref()), image.image.clone());
        let call = || self.runtime.pull_image(image.clone(), auth.clone(), sandbox.clone());
        self.pass("PullImage", Shown::Yes, about, call).await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Cri<()> {
        let about = (None, image.image.clone());
        self.pass("RemoveImage", Shown::Yes, about, || self.runtime.remove_image(image.clone())).await
    }

    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        self.pass("ImageFsInfo", Shown::No, Default::default(), || self.runtime.image_fs_info()).await
    }
}
