//! RuntimeService: unpacks requests, calls the runtime, records the call.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt;
use podlab_clock::Mono;
use podlab_timeline::{Outcome, PodKey};
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use super::Answers;
use crate::{
    error::Error,
    runtime::{Runtime, pod_key},
    streaming::StreamRequest,
    v1::{self, runtime_service_server::RuntimeService},
};

/// The service; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub runtime: Arc<Runtime>,
    /// Base of streaming URLs.
    pub stream_base: String,
}

type Reply<T> = Result<Response<T>, Status>;

impl Server {
    fn pod_of_sandbox(&self, id: &str) -> Option<PodKey> {
        let sandbox = self.runtime.sandbox(id).ok()?;
        let record = sandbox.record.lock();
        pod_key(record.config.metadata.as_ref())
    }

    /// The Pod and the name of a container.
    fn subject(&self, id: &str) -> (Option<PodKey>, String) {
        let Ok(container) = self.runtime.container(id) else { return (None, String::new()) };
        let record = container.record.lock();
        let name = record.config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let sandbox = record.sandbox_id.clone();
        drop(record);
        (self.pod_of_sandbox(&sandbox), name)
    }

    fn note<T>(&self, method: &str, pod: Option<&PodKey>, subject: &str, start: Mono, result: &Result<T, Error>) {
        let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        self.runtime.recorder.call(pod, method, subject, start, outcome);
    }

    fn url(&self, kind: &str, request: StreamRequest) -> Result<String, Error> {
        Ok(format!("{}/{kind}/{}", self.stream_base, self.runtime.tokens.insert(request)?))
    }
}

/// At most so many items a message of a streamed list.
const PER_MESSAGE: usize = 100;

fn stream_of<I: Send + 'static, T: Send + 'static>(
    items: Vec<I>,
    wrap: impl Fn(Vec<I>) -> T + Send + 'static,
) -> Answers<T> {
    let mut items = items.into_iter();
    Box::pin(futures::stream::iter(std::iter::from_fn(move || {
        let part: Vec<I> = items.by_ref().take(PER_MESSAGE).collect();
        (!part.is_empty()).then(|| Ok(wrap(part)))
    })))
}

#[tonic::async_trait]
impl RuntimeService for Server {
    type StreamPodSandboxesStream = Answers<v1::StreamPodSandboxesResponse>;
    type StreamContainersStream = Answers<v1::StreamContainersResponse>;
    type StreamContainerStatsStream = Answers<v1::StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Answers<v1::StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Answers<v1::StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Answers<v1::ContainerEventResponse>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Reply<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "podlab".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusResponse> {
        Ok(Response::new(self.runtime.status(request.into_inner().verbose).await))
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> Reply<v1::RuntimeConfigResponse> {
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
        Ok(Response::new(v1::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Reply<v1::UpdateRuntimeConfigResponse> {
        // The pod CIDR is a hint; the network plugin has its own.
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Reply<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("sandbox config is missing"))?;
        let (pod, start) = (pod_key(config.metadata.as_ref()), self.runtime.recorder.now());
        let runtime = Arc::clone(&self.runtime);
        // Finished even when the caller gives up: a sandbox half made would be nobody's.
        let task =
            self.runtime.tasks.spawn(async move { runtime.run_pod_sandbox(config, request.runtime_handler).await });
        let result = task.await.unwrap_or_else(|e| Err(Error::State(format!("internal error: {e}"))));
        self.note("RunPodSandbox", pod.as_ref(), "", start, &result);
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: result? }))
    }

    async fn stop_pod_sandbox(&self, request: Request<v1::StopPodSandboxRequest>) -> Reply<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let (pod, start) = (self.pod_of_sandbox(&id), self.runtime.recorder.now());
        let result = self.runtime.stop_pod_sandbox(&id).await;
        self.note("StopPodSandbox", pod.as_ref(), "", start, &result);
        result?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Reply<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let (pod, start) = (self.pod_of_sandbox(&id), self.runtime.recorder.now());
        let result = self.runtime.remove_pod_sandbox(&id).await;
        self.note("RemovePodSandbox", pod.as_ref(), "", start, &result);
        result?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Reply<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let mut answer = self.runtime.pod_sandbox_status(&request.pod_sandbox_id, request.verbose)?;
        if let Some(id) = answer.status.as_ref().map(|s| s.id.clone()) {
            answer.containers_statuses =
                self.runtime.containers_of(&id).iter().map(|c| self.runtime.container_status_of(c)).collect();
            answer.timestamp = self.runtime.now_ns();
        }
        Ok(Response::new(answer))
    }

    async fn list_pod_sandbox(&self, request: Request<v1::ListPodSandboxRequest>) -> Reply<v1::ListPodSandboxResponse> {
        Ok(Response::new(v1::ListPodSandboxResponse {
            items: self.runtime.list_pod_sandbox(request.into_inner().filter),
        }))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Reply<Self::StreamPodSandboxesStream> {
        let items = self.runtime.list_pod_sandbox(request.into_inner().filter);
        Ok(Response::new(stream_of(items, |pod_sandboxes| v1::StreamPodSandboxesResponse { pod_sandboxes })))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Reply<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("container config is missing"))?;
        let (pod, start) = (self.pod_of_sandbox(&request.pod_sandbox_id), self.runtime.recorder.now());
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let result = self.runtime.create_container(&request.pod_sandbox_id, config, request.sandbox_config).await;
        self.note("CreateContainer", pod.as_ref(), &name, start, &result);
        Ok(Response::new(v1::CreateContainerResponse { container_id: result? }))
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Reply<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        let ((pod, name), start) = (self.subject(&id), self.runtime.recorder.now());
        let runtime = Arc::clone(&self.runtime);
        let task = self.runtime.tasks.spawn(async move { runtime.start_container(&id).await });
        let result = task.await.unwrap_or_else(|e| Err(Error::State(format!("internal error: {e}"))));
        self.note("StartContainer", pod.as_ref(), &name, start, &result);
        result?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Reply<v1::StopContainerResponse> {
        let request = request.into_inner();
        let ((pod, name), start) = (self.subject(&request.container_id), self.runtime.recorder.now());
        let result = match self.runtime.container(&request.container_id) {
            Ok(container) => self.runtime.stop_container(&container, request.timeout).await,
            Err(_) => Ok(()),
        };
        self.note("StopContainer", pod.as_ref(), &name, start, &result);
        result?;
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Reply<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let ((pod, name), start) = (self.subject(&id), self.runtime.recorder.now());
        let result = self.runtime.remove_container(&id).await;
        self.note("RemoveContainer", pod.as_ref(), &name, start, &result);
        result?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Reply<v1::ListContainersResponse> {
        Ok(Response::new(v1::ListContainersResponse {
            containers: self.runtime.list_containers(request.into_inner().filter),
        }))
    }

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Reply<Self::StreamContainersStream> {
        let items = self.runtime.list_containers(request.into_inner().filter);
        Ok(Response::new(stream_of(items, |containers| v1::StreamContainersResponse { containers })))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Reply<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        Ok(Response::new(self.runtime.container_status(&request.container_id, request.verbose)?))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Reply<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let ((pod, name), start) = (self.subject(&request.container_id), self.runtime.recorder.now());
        let result =
            self.runtime.update_container_resources(&request.container_id, request.linux.unwrap_or_default()).await;
        self.note("UpdateContainerResources", pod.as_ref(), &name, start, &result);
        result?;
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Reply<v1::ReopenContainerLogResponse> {
        let container = self.runtime.running(&request.into_inner().container_id)?;
        let handle = container.log.lock().clone();
        let handle = handle.ok_or_else(|| Error::State("container output has ended".into()))?;
        handle.reopen().await.map_err(Error::io("reopen the container's log"))?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Reply<v1::ExecSyncResponse> {
        let request = request.into_inner();
        let ((pod, name), start) = (self.subject(&request.container_id), self.runtime.recorder.now());
        let result = self.runtime.exec_sync(&request.container_id, request.cmd, request.timeout).await;
        self.note("ExecSync", pod.as_ref(), &name, start, &result);
        Ok(Response::new(result?))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Reply<v1::ExecResponse> {
        let r = request.into_inner();
        check_streams(r.tty, r.stdin, r.stdout, r.stderr)?;
        let container = self.runtime.running(&r.container_id)?.id.clone();
        let url = self.url(
            "exec",
            StreamRequest::Exec {
                container,
                command: r.cmd,
                tty: r.tty,
                stdin: r.stdin,
                stdout: r.stdout,
                stderr: r.stderr,
            },
        )?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Reply<v1::AttachResponse> {
        let r = request.into_inner();
        check_streams(r.tty, r.stdin, r.stdout, r.stderr)?;
        let container = self.runtime.running(&r.container_id)?.id.clone();
        let url = self.url(
            "attach",
            StreamRequest::Attach { container, tty: r.tty, stdin: r.stdin, stdout: r.stdout, stderr: r.stderr },
        )?;
        Ok(Response::new(v1::AttachResponse { url }))
    }

    async fn port_forward(&self, request: Request<v1::PortForwardRequest>) -> Reply<v1::PortForwardResponse> {
        let r = request.into_inner();
        let sandbox = self.runtime.sandbox(&r.pod_sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::State(format!("sandbox container {:?} is not running", sandbox.id)).into());
        }
        let url = self.url("portforward", StreamRequest::PortForward { sandbox: sandbox.id.clone(), ports: r.port })?;
        Ok(Response::new(v1::PortForwardResponse { url }))
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Reply<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        let container = self.runtime.container(&id)?;
        let stats = self.runtime.blocking(move |this| Ok(this.stats_of_container(&container))).await?;
        Ok(Response::new(v1::ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Reply<v1::ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let stats = self.runtime.blocking(move |this| Ok(this.list_container_stats(filter))).await?;
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Reply<Self::StreamContainerStatsStream> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let stats = self.runtime.blocking(move |this| Ok(this.list_container_stats(filter))).await?;
        Ok(Response::new(stream_of(stats, |container_stats| v1::StreamContainerStatsResponse { container_stats })))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Reply<v1::PodSandboxStatsResponse> {
        let sandbox = self.runtime.sandbox(&request.into_inner().pod_sandbox_id)?;
        let stats = self.runtime.blocking(move |this| Ok(this.stats_of_sandbox(&sandbox))).await?;
        Ok(Response::new(v1::PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Reply<v1::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let stats = self.runtime.blocking(move |this| Ok(this.list_sandbox_stats(filter))).await?;
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Reply<Self::StreamPodSandboxStatsStream> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let stats = self.runtime.blocking(move |this| Ok(this.list_sandbox_stats(filter))).await?;
        Ok(Response::new(stream_of(stats, |pod_sandbox_stats| v1::StreamPodSandboxStatsResponse { pod_sandbox_stats })))
    }

    async fn checkpoint_container(
        &self,
        _: Request<v1::CheckpointContainerRequest>,
    ) -> Reply<v1::CheckpointContainerResponse> {
        Err(Status::unimplemented("checkpoints are not supported"))
    }

    async fn checkpoint_pod(&self, _: Request<v1::CheckpointPodRequest>) -> Reply<v1::CheckpointPodResponse> {
        Err(Status::unimplemented("checkpoints are not supported"))
    }

    async fn restore_pod(&self, _: Request<v1::RestorePodRequest>) -> Reply<v1::RestorePodResponse> {
        Err(Status::unimplemented("checkpoints are not supported"))
    }

    async fn get_container_events(&self, _: Request<v1::GetEventsRequest>) -> Reply<Self::GetContainerEventsStream> {
        let events = BroadcastStream::new(self.runtime.events.subscribe());
        // A reader that lags has lost events: the stream ends with an error, and it lists anew.
        let events = events.map(|e| e.map_err(|lag| Status::resource_exhausted(lag.to_string())));
        Ok(Response::new(Box::pin(events)))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Reply<v1::ListMetricDescriptorsResponse> {
        Ok(Response::new(v1::ListMetricDescriptorsResponse { descriptors: crate::metrics::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Reply<v1::ListPodSandboxMetricsResponse> {
        let pod_metrics = self.runtime.blocking(|this| Ok(this.sandbox_metrics())).await?;
        Ok(Response::new(v1::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Reply<Self::StreamPodSandboxMetricsStream> {
        let metrics = self.runtime.blocking(|this| Ok(this.sandbox_metrics())).await?;
        Ok(Response::new(stream_of(metrics, |pod_sandbox_metrics| v1::StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics,
        })))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Reply<v1::UpdatePodSandboxResourcesResponse> {
        let request = request.into_inner();
        let sandbox = self.runtime.sandbox(&request.pod_sandbox_id)?;
        {
            // The cgroup itself is the node agent's; the record shows what it set.
            let mut record = sandbox.record.lock();
            let linux = record.config.linux.get_or_insert_default();
            linux.overhead = request.overhead;
            linux.resources = request.resources;
        }
        self.runtime.save_sandbox(&sandbox)?;
        Ok(Response::new(v1::UpdatePodSandboxResourcesResponse {}))
    }
}

fn check_streams(tty: bool, stdin: bool, stdout: bool, stderr: bool) -> Result<(), Error> {
    if tty && stderr {
        return Err(Error::Invalid("tty and stderr cannot both be true".into()));
    }
    if stdin || stdout || stderr {
        Ok(())
    } else {
        Err(Error::Invalid("one of stdin, stdout, or stderr must be set".into()))
    }
}

impl Runtime {
    /// Whether the runtime and its network work.
    pub(crate) async fn status(self: &Arc<Self>, verbose: bool) -> v1::StatusResponse {
        let condition = |kind: &str, problem: Option<(&str, String)>| v1::RuntimeCondition {
            r#type: kind.into(),
            status: problem.is_none(),
            reason: problem.as_ref().map(|p| p.0.to_owned()).unwrap_or_default(),
            message: problem.map(|p| p.1).unwrap_or_default(),
        };
        let network = self.network.status().await.err();
        let network = network.map(|e| ("NetworkPluginNotReady", format!("Network plugin returns error: {e}")));
        let conditions = vec![condition("RuntimeReady", None), condition("NetworkReady", network)];
        let handlers = std::iter::once(String::new()).chain(self.config.runtime_handlers.iter().cloned());
        let features =
            v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: !self.in_user_namespace };
        let mut info = BTreeMap::new();
        if verbose {
            let config = serde_json::json!({"root": self.config.root, "run": self.config.run, "content": self.config.content, "streamServerAddress": self.config.stream_address});
            info.insert("config".to_owned(), config.to_string());
        }
        v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            info,
            runtime_handlers: handlers.map(|name| v1::RuntimeHandler { name, features: Some(features) }).collect(),
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: false,
                mount_options: true,
            }),
        }
    }
}
