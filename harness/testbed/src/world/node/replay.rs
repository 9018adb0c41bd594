//! The simulated runtime of a node as what calls of a tape can be made to: does it answer as a real one did?

use std::time::Duration;

use async_trait::async_trait;
use podlab_cri::v1;
use podlab_kubelet::{Images, Runtime, RuntimeError};
use podlab_tape::{Refused, Target};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::SimRuntime;

/// What is answered to what is no message, or no method here.
const INTERNAL: i32 = 13;
const UNIMPLEMENTED: i32 = 12;

fn odd(code: i32, message: String) -> Refused {
    Refused { code, message }
}

fn read<M: DeserializeOwned>(request: &Value) -> Result<M, Refused> {
    serde_json::from_value(request.clone()).map_err(|e| odd(INTERNAL, e.to_string()))
}

fn said(reply: impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(reply).map_err(|e| odd(INTERNAL, e.to_string()))
}

fn cri(e: RuntimeError) -> Refused {
    odd(e.code as i32, e.message)
}

/// The simulated runtime of a node.
pub(in crate::world) struct RuntimeTarget<'a>(pub(in crate::world) &'a SimRuntime);

#[async_trait]
impl Target for RuntimeTarget<'_> {
    async fn answer(&self, method: &str, request: &Value) -> Result<Value, Refused> {
        let rt = self.0;
        match method {
            "Version" => said(rt.version().await.map_err(cri)?),
            "Status" => said(Runtime::status(rt).await.map_err(cri)?),
            "RunPodSandbox" => {
                let r: v1::RunPodSandboxRequest = read(request)?;
                let made = rt.run_pod_sandbox(r.config.unwrap_or_default(), &r.runtime_handler).await.map_err(cri)?;
                said(v1::RunPodSandboxResponse { pod_sandbox_id: made })
            }
            "StopPodSandbox" => {
                let r: v1::StopPodSandboxRequest = read(request)?;
                rt.stop_pod_sandbox(&r.pod_sandbox_id).await.map_err(cri)?;
                said(v1::StopPodSandboxResponse::default())
            }
            "RemovePodSandbox" => {
                let r: v1::RemovePodSandboxRequest = read(request)?;
                rt.remove_pod_sandbox(&r.pod_sandbox_id).await.map_err(cri)?;
                said(v1::RemovePodSandboxResponse::default())
            }
            "PodSandboxStatus" => {
                let r: v1::PodSandboxStatusRequest = read(request)?;
                said(rt.pod_sandbox_status(&r.pod_sandbox_id).await.map_err(cri)?)
            }
            "ListPodSandbox" => {
                let r: v1::ListPodSandboxRequest = read(request)?;
                let items = rt.list_pod_sandbox(r.filter.unwrap_or_default()).await.map_err(cri)?;
                said(v1::ListPodSandboxResponse { items })
            }
            "CreateContainer" => {
                let r: v1::CreateContainerRequest = read(request)?;
                let (config, of) = (r.config.unwrap_or_default(), r.sandbox_config.unwrap_or_default());
                let container_id = rt.create_container(&r.pod_sandbox_id, config, of).await.map_err(cri)?;
                said(v1::CreateContainerResponse { container_id })
            }
            "StartContainer" => {
                let r: v1::StartContainerRequest = read(request)?;
                rt.start_container(&r.container_id).await.map_err(cri)?;
                said(v1::StartContainerResponse::default())
            }
            "StopContainer" => {
                let r: v1::StopContainerRequest = read(request)?;
                let timeout = Duration::from_secs(u64::try_from(r.timeout).unwrap_or(0));
                rt.stop_container(&r.container_id, timeout).await.map_err(cri)?;
                said(v1::StopContainerResponse::default())
            }
            "RemoveContainer" => {
                let r: v1::RemoveContainerRequest = read(request)?;
                rt.remove_container(&r.container_id).await.map_err(cri)?;
                said(v1::RemoveContainerResponse::default())
            }
            "ListContainers" => {
                let r: v1::ListContainersRequest = read(request)?;
                let containers = rt.list_containers(r.filter.unwrap_or_default()).await.map_err(cri)?;
                said(v1::ListContainersResponse { containers })
            }
            "ContainerStatus" => {
                let r: v1::ContainerStatusRequest = read(request)?;
                let status = rt.container_status(&r.container_id).await.map_err(cri)?;
                said(v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
            }
            "ExecSync" => {
                let r: v1::ExecSyncRequest = read(request)?;
                let timeout = u64::try_from(r.timeout).ok().filter(|t| *t > 0).map(Duration::from_secs);
                let out = rt.exec_sync(&r.container_id, r.cmd, timeout).await.map_err(cri)?;
                said(v1::ExecSyncResponse { stdout: out.stdout, stderr: out.stderr, exit_code: out.exit_code })
            }
            "ImageStatus" => {
                let r: v1::ImageStatusRequest = read(request)?;
                let image = rt.image_status(r.image.unwrap_or_default()).await.map_err(cri)?;
                said(v1::ImageStatusResponse { image, ..Default::default() })
            }
            "ListImages" => said(v1::ListImagesResponse { images: rt.list_images().await.map_err(cri)? }),
            "PullImage" => {
                let r: v1::PullImageRequest = read(request)?;
                let of = r.sandbox_config.unwrap_or_default();
                let image_ref = rt.pull_image(r.image.unwrap_or_default(), r.auth, of).await.map_err(cri)?;
                said(v1::PullImageResponse { image_ref })
            }
            "ImageFsInfo" => said(rt.image_fs_info().await.map_err(cri)?),
            "ListPodSandboxStats" => {
                let r: v1::ListPodSandboxStatsRequest = read(request)?;
                let stats = rt.list_pod_sandbox_stats(r.filter.unwrap_or_default()).await.map_err(cri)?;
                said(v1::ListPodSandboxStatsResponse { stats })
            }
            "ListContainerStats" => {
                let r: v1::ListContainerStatsRequest = read(request)?;
                let stats = rt.list_container_stats(r.filter.unwrap_or_default()).await.map_err(cri)?;
                said(v1::ListContainerStatsResponse { stats })
            }
            other => Err(odd(UNIMPLEMENTED, format!("the simulated runtime has no {other}"))),
        }
    }
}
