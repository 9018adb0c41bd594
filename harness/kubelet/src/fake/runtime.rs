//! Sandboxes and containers in memory.
//!
//! ```text
//! Created ──start──► Running ──script ends, TERM, KILL──► Exited ──remove──► gone
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use podlab_clock::{Clock, Mono};
use podlab_cri::v1;
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tokio_util::task::TaskTracker;

use super::script::{ExecScript, ImageScript, Script, Usage};
use crate::runtime::{Cri, EventStream, ExecOutput, Runtime, RuntimeError};

/// Events kept for a slow listener; one that falls behind relists.
const EVENTS: usize = 1024;

pub(super) struct Container {
    status: v1::ContainerStatus,
    sandbox: String,
    script: Script,
    began: Mono,
    ended: watch::Sender<bool>,
}

pub(super) struct State {
    sandboxes: BTreeMap<String, v1::PodSandboxStatus>,
    containers: BTreeMap<String, Container>,
    pub(super) images: BTreeMap<String, ImageScript>,
    scripts: BTreeMap<String, Vec<Script>>,
    exec: ExecScript,
    sandbox_errors: Vec<String>,
    usage: BTreeMap<String, Usage>,
    next: u64,
    calls: Vec<String>,
}

/// A runtime in memory.
pub struct MemoryRuntime {
    pub(super) clock: Clock,
    pub(super) state: Arc<Mutex<State>>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
    tasks: TaskTracker,
}

impl MemoryRuntime {
    /// An empty runtime that is ready.
    pub fn new(clock: Clock) -> Arc<Self> {
        let state = State {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            scripts: BTreeMap::new(),
            exec: ExecScript::default(),
            sandbox_errors: Vec::new(),
            usage: BTreeMap::new(),
            next: 0,
            calls: Vec::new(),
        };
        Arc::new(Self {
            clock,
            state: Arc::new(Mutex::new(state)),
            events: broadcast::channel(EVENTS).0,
            tasks: TaskTracker::new(),
        })
    }

    /// What containers of a name do, one script per start; the last one repeats. Without any they run for ever.
    pub fn script(&self, container: &str, scripts: Vec<Script>) {
        self.state.lock().scripts.insert(container.to_owned(), scripts);
    }

    /// Makes an image known.
    pub fn image(&self, name: &str, script: ImageScript) {
        self.state.lock().images.insert(name.to_owned(), script);
    }

    /// Forgets every sandbox and container, as a node that was set up anew does. Nobody is told.
    pub fn lose_everything(&self) {
        let mut state = self.state.lock();
        state.sandboxes.clear();
        state.containers.clear();
    }

    /// Images that are on the node.
    pub fn images_present(&self) -> Vec<String> {
        self.state.lock().images.iter().filter(|(_, s)| s.present).map(|(n, _)| n.clone()).collect()
    }

    /// What commands in containers give.
    pub fn exec_script(&self, exec: ExecScript) {
        self.state.lock().exec = exec;
    }

    /// What containers of a name use from now on.
    pub fn set_usage(&self, container: &str, usage: Usage) {
        self.state.lock().usage.insert(container.to_owned(), usage);
    }

    /// The next sandboxes fail with these messages, in order.
    pub fn fail_sandboxes(&self, errors: Vec<String>) {
        self.state.lock().sandbox_errors = errors;
    }

    /// Calls that changed something, in order: `RunPodSandbox a`, `StartContainer c`, …
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// How many sandboxes and containers there are.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.sandboxes.len(), state.containers.len())
    }

    fn now_ns(&self) -> i64 {
        i64::try_from(self.clock.wall().as_nanosecond()).unwrap_or(0)
    }

    fn emit(&self, kind: v1::ContainerEventType, id: &str, sandbox: &str) {
        let state = self.state.lock();
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.now_ns(),
            pod_sandbox_status: state.sandboxes.get(sandbox).cloned(),
            containers_statuses: state
                .containers
                .values()
                .filter(|c| c.sandbox == sandbox)
                .map(|c| c.status.clone())
                .collect(),
        };
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }

    /// Ends a container's process.
    fn exit(&self, id: &str, code: i32, reason: Option<String>) {
        let sandbox = {
            let mut state = self.state.lock();
            let now = self.now_ns();
            let Some(c) =
                state.containers.get_mut(id).filter(|c| c.status.state() == v1::ContainerState::ContainerRunning)
            else {
                return;
            };
            c.status.state = v1::ContainerState::ContainerExited.into();
            c.status.finished_at = now;
            c.status.exit_code = code;
            c.status.reason = reason.unwrap_or_else(|| if code == 0 { "Completed" } else { "Error" }.to_owned());
            c.ended.send_replace(true);
            c.sandbox.clone()
        };
        self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, &sandbox);
    }

    fn clone_handle(&self) -> Self {
        Self { clock: self.clock, state: self.state.clone(), events: self.events.clone(), tasks: self.tasks.clone() }
    }

    fn log(&self, what: String) {
        self.state.lock().calls.push(what);
    }
}

/// What a sandbox and its containers use, by the usage that was set for their names.
fn stats_of(state: &State, s: &v1::PodSandboxStatus) -> v1::PodSandboxStats {
    let value = |n: u64| Some(v1::UInt64Value { value: n });
    let memory = |n: u64| Some(v1::MemoryUsage { working_set_bytes: value(n), ..Default::default() });
    let mine = state.containers.values().filter(|c| c.sandbox == s.id);
    let mut total = 0;
    let containers = mine
        .map(|c| {
            let name = c.status.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
            let used = state.usage.get(&name).copied().unwrap_or_default();
            total += used.memory;
            v1::ContainerStats {
                attributes: Some(v1::ContainerAttributes {
                    id: c.status.id.clone(),
                    metadata: c.status.metadata.clone(),
                    labels: c.status.labels.clone(),
                    annotations: c.status.annotations.clone(),
                }),
                memory: memory(used.memory),
                writable_layer: Some(v1::FilesystemUsage {
                    used_bytes: value(used.layer),
                    inodes_used: value(1),
                    ..Default::default()
                }),
                ..Default::default()
            }
        })
        .collect();
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: s.id.clone(),
            metadata: s.metadata.clone(),
            ..Default::default()
        }),
        linux: Some(v1::LinuxPodSandboxStats { memory: memory(total), containers, ..Default::default() }),
        windows: None,
    }
}

fn not_found(what: &str, id: &str) -> RuntimeError {
    RuntimeError::new(tonic::Code::NotFound, format!("an error occurred when try to find {what} \"{id}\": not found"))
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[async_trait]
impl Runtime for MemoryRuntime {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        Ok(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "memory".into(),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        })
    }

    async fn status(&self) -> Cri<v1::StatusResponse> {
        let ok = |kind: &str| v1::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let status = v1::RuntimeStatus { conditions: vec![ok("RuntimeReady"), ok("NetworkReady")] };
        Ok(v1::StatusResponse { status: Some(status), ..Default::default() })
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, _handler: &str) -> Cri<String> {
        let id = {
            let mut state = self.state.lock();
            if !state.sandbox_errors.is_empty() {
                let message = state.sandbox_errors.remove(0);
                return Err(RuntimeError::new(tonic::Code::Unknown, message));
            }
            state.next += 1;
            let n = state.next;
            let id = format!("{n:064x}");
            let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
            state.calls.push(format!("RunPodSandbox {name}"));
            let status = v1::PodSandboxStatus {
                id: id.clone(),
                metadata: config.metadata,
                state: v1::PodSandboxState::SandboxReady.into(),
                created_at: self.now_ns(),
                network: Some(v1::PodSandboxNetworkStatus {
                    ip: format!("10.0.{}.{}", n / 250, n % 250 + 1),
                    additional_ips: Vec::new(),
                }),
                labels: config.labels,
                annotations: config.annotations,
                ..Default::default()
            };
            state.sandboxes.insert(id.clone(), status);
            id
        };
        self.emit(v1::ContainerEventType::ContainerStartedEvent, &id, &id);
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        let running: Vec<String> =
            self.state.lock().containers.iter().filter(|(_, c)| c.sandbox == id).map(|(i, _)| i.clone()).collect();
        for c in running {
            self.exit(&c, 137, None);
        }
        let stopped = match self.state.lock().sandboxes.get_mut(id) {
            Some(s) => {
                s.state = v1::PodSandboxState::SandboxNotready.into();
                true
            }
            None => false,
        };
        if stopped {
            self.log(format!("StopPodSandbox {id}"));
            self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, id);
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.stop_pod_sandbox(id).await?;
        let mut state = self.state.lock();
        state.containers.retain(|_, c| c.sandbox != id);
        state.sandboxes.remove(id);
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        let status = self.state.lock().sandboxes.get(id).cloned().ok_or_else(|| not_found("sandbox", id))?;
        Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        let state = self.state.lock();
        let wanted = |s: &&v1::PodSandboxStatus| {
            (filter.id.is_empty() || s.id == filter.id)
                && filter.state.as_ref().is_none_or(|f| f.state == s.state)
                && matches(&s.labels, &filter.label_selector)
        };
        let shape = |s: &v1::PodSandboxStatus| v1::PodSandbox {
            id: s.id.clone(),
            metadata: s.metadata.clone(),
            state: s.state,
            created_at: s.created_at,
            labels: s.labels.clone(),
            annotations: s.annotations.clone(),
            runtime_handler: String::new(),
        };
        Ok(state.sandboxes.values().filter(wanted).map(shape).collect())
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        _sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let mut state = self.state.lock();
        let ready = state.sandboxes.get(sandbox).is_some_and(|s| s.state() == v1::PodSandboxState::SandboxReady);
        if !ready {
            return Err(RuntimeError::new(
                tonic::Code::Unknown,
                format!("sandbox container \"{sandbox}\" is not running"),
            ));
        }
        state.next += 1;
        let id = format!("{:064x}", state.next);
        let metadata = config.metadata.clone().unwrap_or_default();
        let starts = usize::try_from(metadata.attempt).unwrap_or(0);
        let script = state
            .scripts
            .get(&metadata.name)
            .and_then(|s| s.get(starts).or_else(|| s.last()).cloned())
            .unwrap_or_else(Script::forever);
        state.calls.push(format!("CreateContainer {}", metadata.name));
        let status = v1::ContainerStatus {
            id: id.clone(),
            metadata: Some(metadata),
            state: v1::ContainerState::ContainerCreated.into(),
            created_at: self.now_ns(),
            image: config.image.clone(),
            image_ref: config.image.map(|i| i.image).unwrap_or_default(),
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: config.log_path,
            resources: config
                .linux
                .and_then(|l| l.resources)
                .map(|r| v1::ContainerResources { linux: Some(r), windows: None }),
            ..Default::default()
        };
        let container = Container {
            status,
            sandbox: sandbox.to_owned(),
            script,
            began: Mono::default(),
            ended: watch::Sender::new(false),
        };
        state.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Cri<()> {
        let (script, sandbox, name, error) = {
            let mut state = self.state.lock();
            let now = self.now_ns();
            let c = state.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
            let name = c.status.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
            if let Some(e) = c.script.start_error.clone() {
                c.status.state = v1::ContainerState::ContainerExited.into();
                c.status.exit_code = 128;
                c.status.reason = "StartError".into();
                c.status.message.clone_from(&e);
                c.status.finished_at = now;
                (c.script.clone(), c.sandbox.clone(), name, Some(e))
            } else {
                c.status.state = v1::ContainerState::ContainerRunning.into();
                c.status.started_at = now;
                c.began = self.clock.now();
                (c.script.clone(), c.sandbox.clone(), name, None)
            }
        };
        self.log(format!("StartContainer {name}"));
        if let Some(e) = error {
            self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, &sandbox);
            return Err(RuntimeError::new(tonic::Code::Unknown, e));
        }
        self.emit(v1::ContainerEventType::ContainerStartedEvent, id, &sandbox);
        if let Some(after) = script.runs_for {
            let (this, id) = (self.clone_handle(), id.to_owned());
            self.tasks.spawn(async move {
                this.clock.sleep(after).await;
                this.exit(&id, script.exit_code, script.reason);
            });
        }
        Ok(())
    }

    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        let (script, mut ended) = {
            let state = self.state.lock();
            let Some(c) = state.containers.get(id) else { return Ok(()) };
            if c.status.state() != v1::ContainerState::ContainerRunning {
                return Ok(());
            }
            (c.script.clone(), c.ended.subscribe())
        };
        self.log(format!("StopContainer {}s", timeout.as_secs()));
        if let Some((after, code)) = script.on_term.filter(|(after, _)| *after <= timeout) {
            let _ = self.clock.timeout(after, ended.wait_for(|e| *e)).await;
            self.exit(id, code, None);
        } else {
            let _ = self.clock.timeout(timeout, ended.wait_for(|e| *e)).await;
            self.exit(id, 137, None);
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.exit(id, 137, None);
        self.state.lock().containers.remove(id);
        Ok(())
    }

    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        let state = self.state.lock();
        let wanted = |c: &&Container| {
            (filter.id.is_empty() || c.status.id == filter.id)
                && filter.state.as_ref().is_none_or(|f| f.state == c.status.state)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == c.sandbox)
                && matches(&c.status.labels, &filter.label_selector)
        };
        let shape = |c: &Container| v1::Container {
            id: c.status.id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            metadata: c.status.metadata.clone(),
            image: c.status.image.clone(),
            image_ref: c.status.image_ref.clone(),
            state: c.status.state,
            created_at: c.status.created_at,
            labels: c.status.labels.clone(),
            annotations: c.status.annotations.clone(),
            image_id: String::new(),
        };
        Ok(state.containers.values().filter(wanted).map(shape).collect())
    }

    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        self.state.lock().containers.get(id).map(|c| c.status.clone()).ok_or_else(|| not_found("container", id))
    }

    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        let mut state = self.state.lock();
        let c = state.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        c.status.resources = Some(v1::ContainerResources { linux: Some(linux), windows: None });
        Ok(())
    }

    async fn reopen_container_log(&self, _id: &str) -> Cri<()> {
        Ok(())
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, _timeout: Option<Duration>) -> Cri<ExecOutput> {
        let state = self.state.lock();
        let c = state.containers.get(id).ok_or_else(|| not_found("container", id))?;
        if c.status.state() != v1::ContainerState::ContainerRunning {
            return Err(RuntimeError::new(tonic::Code::Unknown, "container is in CONTAINER_EXITED state"));
        }
        let line = cmd.join(" ");
        if let Some(answer) = state.exec.answers.get(&line) {
            return Ok(answer.clone());
        }
        let ok = state.exec.succeeds_after.get(&line).is_none_or(|after| self.clock.now().since(c.began) >= *after);
        Ok(ExecOutput { exit_code: i32::from(!ok), ..ExecOutput::default() })
    }

    async fn exec(&self, _request: v1::ExecRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "no streaming in memory"))
    }

    async fn attach(&self, _request: v1::AttachRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "no streaming in memory"))
    }

    async fn port_forward(&self, _request: v1::PortForwardRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "no streaming in memory"))
    }

    async fn list_container_stats(&self, _filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        Ok(Vec::new())
    }

    async fn list_pod_sandbox_stats(&self, _filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        let state = self.state.lock();
        Ok(state.sandboxes.values().map(|s| stats_of(&state, s)).collect())
    }

    async fn events(&self) -> Cri<EventStream> {
        let lagged = |_| RuntimeError::new(tonic::Code::DataLoss, "events were lost");
        Ok(BroadcastStream::new(self.events.subscribe()).map(move |e| e.map_err(lagged)).boxed())
    }
}
