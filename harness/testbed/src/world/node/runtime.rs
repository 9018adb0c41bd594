//! The simulated runtime of a node: sandboxes on the world's network, containers whose processes are the test image's
//! programs.
//!
//! ```text
//! Created ──start──► Running ──program ends, KILL, OOM──► Exited ──remove──► gone
//!    └──program not found──► Exited (128 StartError)
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use podlab_clock::{Clock, Rng};
use podlab_cri::{NetRequest, NetworkPlugin, v1};
use podlab_kubelet::{Cri, EventStream, ExecOutput, Runtime, RuntimeError, fake::MemoryHost};
use podlab_timeline::{Event, PodKey, Recorder};
use serde_json::json;
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    super::{
        network::{Attachment, Network},
        program::{self, Files, Log, Memory, Proc, Signals, Sink, TERM},
    },
    images::ImageStore,
    process,
};
use crate::holdings::{Held, Holding};

/// Events kept for a slow listener; one that falls behind lists again.
const EVENTS: usize = 1024;

#[derive(Clone)]
pub(super) struct Sandbox {
    pub(super) status: v1::PodSandboxStatus,
    pub(super) config: v1::PodSandboxConfig,
    pub(super) network: Option<NetRequest>,
    pub(super) ip: String,
}

pub(super) struct Container {
    pub(super) status: v1::ContainerStatus,
    pub(super) sandbox: String,
    pub(super) config: v1::ContainerConfig,
    pub(super) proc: Option<Proc>,
    pub(super) log: Option<Arc<Log>>,
    pub(super) memory: Memory,
    /// Cancelled: the process is killed.
    pub(super) kill: CancellationToken,
    pub(super) ended: watch::Sender<bool>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    /// How many commands were asked for that do not exist.
    missing: u64,
}

impl State {
    /// A Pod that gets a sandbox while another of it is ready, if this would be one.
    fn second_sandbox(&self, config: &v1::PodSandboxConfig) -> Option<String> {
        let of = |c: &v1::PodSandboxConfig| c.metadata.as_ref().map(|m| m.uid.clone());
        let ready = |s: &&Sandbox| s.status.state() == v1::PodSandboxState::SandboxReady;
        let there = self.sandboxes.values().filter(ready).any(|s| of(&s.config) == of(config));
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        there.then(|| format!("Pod {name} gets a sandbox while another of it is ready"))
    }

    /// Two running containers of one name in one Pod, if this one made them so.
    fn twins(&self, id: &str) -> Option<String> {
        let uid = |c: &Container| {
            self.sandboxes.get(&c.sandbox).and_then(|s| s.config.metadata.as_ref()).map(|m| m.uid.clone())
        };
        let name = |c: &Container| c.config.metadata.as_ref().map(|m| m.name.clone());
        let this = self.containers.get(id)?;
        let twin = self
            .containers
            .iter()
            .any(|(other, c)| other != id && c.proc.is_some() && name(c) == name(this) && uid(c) == uid(this));
        twin.then(|| format!("two containers {} of one Pod run at the same time", name(this).unwrap_or_default()))
    }
}

/// What a runtime is made from.
pub(in crate::world) struct Parts {
    pub(in crate::world) clock: Clock,
    pub(in crate::world) rng: Rng,
    pub(in crate::world) host: Arc<MemoryHost>,
    pub(in crate::world) network: Arc<Network>,
    pub(in crate::world) cni: Arc<dyn NetworkPlugin>,
    pub(in crate::world) images: ImageStore,
    /// Address of the node, for Pods on its network.
    pub(in crate::world) node_ip: String,
    /// Bytes of memory, for containers without a limit.
    pub(in crate::world) memory: u64,
    /// Where what must not happen is written down.
    pub(in crate::world) recorder: Recorder,
}

/// The runtime of one node.
pub(in crate::world) struct SimRuntime {
    pub(super) parts: Parts,
    pub(super) state: Mutex<State>,
    pub(super) events: broadcast::Sender<v1::ContainerEventResponse>,
    pub(super) tasks: TaskTracker,
    /// Cancelled with the node's power.
    pub(super) power: Mutex<CancellationToken>,
    this: Weak<Self>,
}

impl SimRuntime {
    pub(in crate::world) fn new(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            parts,
            state: Mutex::default(),
            events: broadcast::channel(EVENTS).0,
            tasks: TaskTracker::new(),
            power: Mutex::new(CancellationToken::new()),
            this: this.clone(),
        })
    }

    pub(super) fn now_ns(&self) -> i64 {
        i64::try_from(self.parts.clock.wall().as_nanosecond()).unwrap_or(0)
    }

    fn id(&self) -> String {
        (0..4).map(|_| format!("{:016x}", self.parts.rng.next_u64())).collect()
    }

    /// The Pod of a sandbox or container and the container's name, for whoever taps a call.
    pub(super) fn subject(&self, id: &str) -> (Option<PodKey>, String) {
        let state = self.state.lock();
        let (sandbox, name) = match state.containers.get(id) {
            Some(c) => (c.sandbox.as_str(), c.config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default()),
            None => (id, String::new()),
        };
        (state.sandboxes.get(sandbox).and_then(|s| pod_key(s.config.metadata.as_ref())), name)
    }

    pub(super) fn emit(&self, kind: v1::ContainerEventType, id: &str, sandbox: &str) {
        let state = self.state.lock();
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.now_ns(),
            pod_sandbox_status: state.sandboxes.get(sandbox).map(|s| s.status.clone()),
            containers_statuses: state
                .containers
                .values()
                .filter(|c| c.sandbox == sandbox)
                .map(|c| c.status.clone())
                .collect(),
        };
        // Nobody listens while the agent is down.
        let _ = self.events.send(event);
    }

    /// Writes down how a container's process ended.
    pub(super) fn exited(&self, id: &str, code: i32, reason: &str) {
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
            c.status.reason = reason.to_owned();
            c.proc = None;
            if let Some(log) = &c.log {
                log.finish();
            }
            c.ended.send_replace(true);
            c.sandbox.clone()
        };
        self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, &sandbox);
    }

    /// What lasts over a power loss: the records. Processes and networks are gone, exit codes nobody saw with them.
    pub(in crate::world) fn power_off(&self) {
        std::mem::take(&mut *self.power.lock()).cancel();
        let mut state = self.state.lock();
        for s in state.sandboxes.values_mut() {
            s.status.state = v1::PodSandboxState::SandboxNotready.into();
        }
        let now = self.now_ns();
        for c in state.containers.values_mut().filter(|c| c.status.state() == v1::ContainerState::ContainerRunning) {
            c.status.state = v1::ContainerState::ContainerExited.into();
            (c.status.exit_code, c.status.finished_at) = (255, now);
            c.status.reason = "Unknown".into();
            c.proc = None;
            c.ended.send_replace(true);
        }
    }

    /// Ids of sandboxes there are.
    pub(in crate::world) fn sandboxes(&self) -> Vec<String> {
        self.state.lock().sandboxes.keys().cloned().collect()
    }

    /// Sandboxes and containers with the Pods they are for.
    pub(in crate::world) fn holdings(&self) -> Vec<Holding> {
        let state = self.state.lock();
        let meta = |s: &Sandbox| s.config.metadata.clone().unwrap_or_default();
        let mut out = Vec::new();
        for (id, s) in &state.sandboxes {
            out.push(Holding { kind: Held::Sandbox, what: id.clone(), pod: Some(meta(s).uid) });
        }
        for c in state.containers.values() {
            let pod = state.sandboxes.get(&c.sandbox).map(meta).unwrap_or_default();
            let name = c.config.metadata.clone().unwrap_or_default().name;
            let what = format!("{}/{name}", pod.name);
            let pod = Some(pod.uid).filter(|uid| !uid.is_empty());
            let running = c.status.state == i32::from(v1::ContainerState::ContainerRunning);
            out.push(Holding { kind: Held::Container, what: what.clone(), pod: pod.clone() });
            out.extend(running.then_some(Holding { kind: Held::Running, what, pod }));
        }
        out
    }

    /// Runs a command in the running container of a Pod, as an interactive exec does.
    pub(in crate::world) async fn exec_in(&self, id: &str, command: Vec<String>) -> Cri<ExecOutput> {
        self.run_exec(id, command, None).await
    }

    async fn run_exec(&self, id: &str, command: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        let (proc, power) = {
            let state = self.state.lock();
            let c = state.containers.get(id).ok_or_else(|| not_found("container", id))?;
            let proc = c.proc.clone().ok_or_else(|| {
                let name = c.status.state().as_str_name();
                RuntimeError::new(tonic::Code::Unknown, format!("container is in {name} state"))
            })?;
            (proc, c.kill.clone())
        };
        let first = command.first().map(String::as_str).unwrap_or_default();
        if !program::exists(first) {
            let why = format!("exec: {first:?}: executable file not found in $PATH");
            let nth = {
                let mut state = self.state.lock();
                state.missing += 1;
                state.missing
            };
            let message = format!(
                "failed to exec in container: failed to start exec \"{nth:064x}\": OCI runtime exec failed: exec failed: unable to start container process: {why}"
            );
            return Err(RuntimeError::new(tonic::Code::Unknown, message));
        }
        let (out, err) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let child = Proc {
            out: Sink::Buffer(out.clone()),
            err: Sink::Buffer(err.clone()),
            signals: Signals::default(),
            ..proc
        };
        let limit = async {
            match timeout.filter(|t| !t.is_zero()) {
                Some(t) => self.parts.clock.sleep(t).await,
                None => std::future::pending().await,
            }
        };
        let code = tokio::select! {
            biased;
            code = program::run(child, command) => code,
            () = power.cancelled() => 137,
            () = limit => {
                let message = format!("failed to exec in container: timeout {}s exceeded: context deadline exceeded", timeout.unwrap_or_default().as_secs());
                return Err(RuntimeError::new(tonic::Code::DeadlineExceeded, message));
            }
        };
        let (stdout, stderr) = (std::mem::take(&mut *out.lock()), std::mem::take(&mut *err.lock()));
        Ok(ExecOutput { stdout, stderr, exit_code: code })
    }

    /// Undoes a sandbox's network; what was never attached is fine.
    async fn detach(&self, request: Option<NetRequest>) -> Cri<()> {
        match request {
            Some(r) => self.parts.cni.del(&r).await.map_err(|e| RuntimeError::new(tonic::Code::Unknown, e.0)),
            None => Ok(()),
        }
    }

    /// The first process of a container.
    fn process_of(&self, id: &str, c: &Container, sandbox: &Sandbox) -> (Proc, Arc<Log>) {
        let host = self.parts.host.clone();
        let log_dir = PathBuf::from(&sandbox.config.log_directory);
        let path = log_dir.join(&c.config.log_path);
        // The directory is in memory; it cannot be full.
        let _ = podlab_kubelet::Host::create_dir_all(host.as_ref(), path.parent().unwrap_or(Path::new("/")), 0o755);
        host.append(&path, b"");
        let log = Arc::new(Log { host: host.clone(), path, clock: self.parts.clock, rest: Mutex::default() });
        let mounts = process::mounts(&c.config);
        let security = process::security(&c.config);
        let root = PathBuf::from("/run/sim/rootfs").join(id);
        let files = Files::new(host, root, mounts, security.readonly_rootfs);
        let signals = Signals::default();
        let namespace = sandbox.config.metadata.as_ref().map(|m| m.namespace.clone()).unwrap_or_default();
        let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
        let mut env: BTreeMap<String, String> = BTreeMap::from([("PATH".to_owned(), process::PATH.to_owned())]);
        env.extend(c.config.envs.iter().map(|kv| (kv.key.clone(), text(&kv.value))));
        env.insert("HOSTNAME".to_owned(), sandbox.config.hostname.clone());
        let (out, err) = (Sink::Log(log.clone(), "stdout"), Sink::Log(log.clone(), "stderr"));
        let cwd = if c.config.working_dir.is_empty() { "/" } else { c.config.working_dir.as_str() };
        let proc = Proc {
            clock: self.parts.clock,
            files,
            net: Attachment { network: self.parts.network.clone(), ip: sandbox.ip.clone(), namespace },
            out,
            err,
            input: Arc::new(Mutex::new(VecDeque::new())),
            env,
            cwd: PathBuf::from(cwd),
            init_signals: signals.clone(),
            signals,
            user: process::user(&security),
            hostname: sandbox.config.hostname.clone(),
            memory: c.memory.clone(),
        };
        (proc, log)
    }
}

pub(super) fn pod_key(m: Option<&v1::PodSandboxMetadata>) -> Option<PodKey> {
    m.map(|m| PodKey { namespace: m.namespace.clone(), name: m.name.clone(), uid: m.uid.clone() })
}

fn not_found(what: &str, id: &str) -> RuntimeError {
    RuntimeError::new(tonic::Code::NotFound, format!("an error occurred when try to find {what} \"{id}\": not found"))
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[async_trait]
impl Runtime for SimRuntime {
    async fn version(&self) -> Cri<v1::VersionResponse> {
        Ok(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "podlab".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: "v1".into(),
        })
    }

    async fn status(&self) -> Cri<v1::StatusResponse> {
        let condition = |kind: &str| v1::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let mut network = condition("NetworkReady");
        if let Err(e) = self.parts.cni.status().await {
            network.status = false;
            network.reason = "NetworkPluginNotReady".into();
            network.message = format!("Network plugin returns error: {e}");
        }
        let status = v1::RuntimeStatus { conditions: vec![condition("RuntimeReady"), network] };
        let features = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
        Ok(v1::StatusResponse {
            status: Some(status),
            runtime_handlers: vec![v1::RuntimeHandler { name: String::new(), features: Some(features) }],
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: false,
                mount_options: true,
            }),
            ..Default::default()
        })
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Cri<String> {
        let id = self.id();
        let network = process::net_request(&id, &config);
        let status = v1::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: v1::PodSandboxState::SandboxReady.into(),
            created_at: self.now_ns(),
            network: Some(v1::PodSandboxNetworkStatus::default()),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: process::namespace_options(&config) }),
            }),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            runtime_handler: handler.to_owned(),
        };
        let ip = match &network {
            Some(request) => match self.parts.cni.add(request).await {
                Ok(result) => result.ips.first().map(ToString::to_string).unwrap_or_default(),
                Err(e) => {
                    // As the runtime does: what the failed ADD may have left is taken back before the error is told, and
                    // a sandbox that cannot be undone stays as one that is not ready.
                    if self.parts.cni.del(request).await.is_err() {
                        let status =
                            v1::PodSandboxStatus { state: v1::PodSandboxState::SandboxNotready.into(), ..status };
                        self.state
                            .lock()
                            .sandboxes
                            .insert(id.clone(), Sandbox { status, config, network, ip: String::new() });
                    }
                    let message = format!("failed to setup network for sandbox {id:?}: {e}");
                    return Err(RuntimeError::new(tonic::Code::Unknown, message));
                }
            },
            None => self.parts.node_ip.clone(),
        };
        let shown = if network.is_some() { ip.clone() } else { String::new() };
        let network_status = v1::PodSandboxNetworkStatus { ip: shown, additional_ips: Vec::new() };
        let status = v1::PodSandboxStatus { network: Some(network_status), created_at: self.now_ns(), ..status };
        {
            let mut state = self.state.lock();
            if let Some(what) = state.second_sandbox(&config) {
                self.parts.recorder.record(None, Event::Run(json!({"invariant": what})));
            }
            state.sandboxes.insert(id.clone(), Sandbox { status, config, network, ip });
        }
        self.emit(v1::ContainerEventType::ContainerCreatedEvent, &id, &id);
        self.emit(v1::ContainerEventType::ContainerStartedEvent, &id, &id);
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Cri<()> {
        let (running, request, was_ready) = {
            let mut state = self.state.lock();
            let running: Vec<String> =
                state.containers.iter().filter(|(_, c)| c.sandbox == id).map(|(i, _)| i.clone()).collect();
            let Some(s) = state.sandboxes.get_mut(id) else { return Ok(()) };
            let was_ready = s.status.state() == v1::PodSandboxState::SandboxReady;
            (running, s.network.clone(), was_ready)
        };
        for c in running {
            self.stop_container(&c, Duration::ZERO).await?;
        }
        self.detach(request).await?;
        if let Some(s) = self.state.lock().sandboxes.get_mut(id) {
            s.status.state = v1::PodSandboxState::SandboxNotready.into();
            s.network = None;
        }
        if was_ready {
            self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, id);
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Cri<()> {
        self.stop_pod_sandbox(id).await?;
        let mut state = self.state.lock();
        state.containers.retain(|_, c| c.sandbox != id);
        if state.sandboxes.remove(id).is_some() {
            drop(state);
            self.emit(v1::ContainerEventType::ContainerDeletedEvent, id, id);
        }
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Cri<v1::PodSandboxStatusResponse> {
        let state = self.state.lock();
        let status = state.sandboxes.get(id).map(|s| s.status.clone()).ok_or_else(|| not_found("sandbox", id))?;
        Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn list_pod_sandbox(&self, filter: v1::PodSandboxFilter) -> Cri<Vec<v1::PodSandbox>> {
        let state = self.state.lock();
        let all = state.sandboxes.values().map(|s| &s.status);
        let wanted = all.filter(|s| {
            (filter.id.is_empty() || s.id == filter.id)
                && filter.state.as_ref().is_none_or(|f| f.state == s.state)
                && matches(&s.labels, &filter.label_selector)
        });
        Ok(wanted.map(process::listed_sandbox).collect())
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        _sandbox_config: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let id = self.id();
        let mut state = self.state.lock();
        let s = state.sandboxes.get(sandbox).ok_or_else(|| not_found("sandbox", sandbox))?;
        if s.status.state() != v1::PodSandboxState::SandboxReady {
            let message = format!("sandbox container {sandbox:?} is not running");
            return Err(RuntimeError::new(tonic::Code::Unknown, message));
        }
        let limit = process::memory_limit(&config).unwrap_or(self.parts.memory);
        let name = config.image.as_ref().map(|i| i.image.as_str()).unwrap_or_default();
        let image = self.parts.images.known(name).unwrap_or_else(|| (name.to_owned(), name.to_owned()));
        let container = Container {
            status: process::created(&id, &config, image, &s.config.log_directory, self.now_ns()),
            sandbox: sandbox.to_owned(),
            config,
            proc: None,
            log: None,
            memory: Memory::limited(Some(limit)),
            kill: self.power.lock().child_token(),
            ended: watch::Sender::new(false),
        };
        state.containers.insert(id.clone(), container);
        drop(state);
        self.emit(v1::ContainerEventType::ContainerCreatedEvent, &id, sandbox);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Cri<()> {
        let (proc, argv, sandbox, kill, memory) = {
            let mut state = self.state.lock();
            let c = state.containers.get(id).ok_or_else(|| not_found("container", id))?;
            let s = state.sandboxes.get(&c.sandbox).ok_or_else(|| not_found("sandbox", &c.sandbox))?;
            if s.status.state() != v1::PodSandboxState::SandboxReady {
                let message = format!("sandbox container {:?} is not running", c.sandbox);
                return Err(RuntimeError::new(tonic::Code::Unknown, message));
            }
            let argv = process::argv(&c.config);
            let (proc, log) = self.process_of(id, c, s);
            let now = self.now_ns();
            let first = argv.first().cloned().unwrap_or_default();
            let found = program::exists(&first);
            let c = state.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
            c.log = Some(log);
            if !found {
                let why = format!("exec: {first:?}: executable file not found in $PATH");
                let message = format!("failed to create containerd task: unable to start container process: {why}");
                c.status.state = v1::ContainerState::ContainerExited.into();
                (c.status.exit_code, c.status.finished_at) = (128, now);
                c.status.reason = "StartError".into();
                c.status.message.clone_from(&message);
                c.ended.send_replace(true);
                let sandbox = c.sandbox.clone();
                drop(state);
                self.emit(v1::ContainerEventType::ContainerStoppedEvent, id, &sandbox);
                return Err(RuntimeError::new(tonic::Code::Unknown, message));
            }
            c.status.state = v1::ContainerState::ContainerRunning.into();
            c.status.started_at = now;
            c.proc = Some(proc.clone());
            if let Some(what) = state.twins(id) {
                self.parts.recorder.record(None, Event::Run(json!({"invariant": what})));
            }
            let c = state.containers.get(id).ok_or_else(|| not_found("container", id))?;
            (proc, argv, c.sandbox.clone(), c.kill.clone(), c.memory.clone())
        };
        self.emit(v1::ContainerEventType::ContainerStartedEvent, id, &sandbox);
        let (this, id) = (self.this.clone(), id.to_owned());
        self.tasks.spawn(async move {
            let code = tokio::select! {
                biased;
                () = kill.cancelled() => 137,
                code = program::run(proc, argv) => code,
            };
            let Some(this) = this.upgrade() else { return };
            let reason = match code {
                _ if memory.killed() => "OOMKilled",
                0 => "Completed",
                _ => "Error",
            };
            this.exited(&id, if memory.killed() { 137 } else { code }, reason);
        });
        Ok(())
    }

    async fn stop_container(&self, id: &str, timeout: Duration) -> Cri<()> {
        let (signals, kill, mut ended) = {
            let state = self.state.lock();
            let Some(c) = state.containers.get(id) else { return Ok(()) };
            match &c.proc {
                Some(p) => (p.signals.clone(), c.kill.clone(), c.ended.subscribe()),
                None => return Ok(()),
            }
        };
        if !timeout.is_zero() {
            signals.send(TERM);
            let _ = self.parts.clock.timeout(timeout, ended.wait_for(|e| *e)).await;
        }
        kill.cancel();
        // The sender goes with the container, and then it has ended too.
        let _ = ended.wait_for(|e| *e).await;
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Cri<()> {
        self.stop_container(id, Duration::ZERO).await?;
        let gone = self.state.lock().containers.remove(id);
        if let Some(c) = gone {
            self.emit(v1::ContainerEventType::ContainerDeletedEvent, id, &c.sandbox);
        }
        Ok(())
    }

    async fn list_containers(&self, filter: v1::ContainerFilter) -> Cri<Vec<v1::Container>> {
        let state = self.state.lock();
        let wanted = state.containers.values().filter(|c| {
            (filter.id.is_empty() || c.status.id == filter.id)
                && filter.state.as_ref().is_none_or(|f| f.state == c.status.state)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == c.sandbox)
                && matches(&c.status.labels, &filter.label_selector)
        });
        Ok(wanted.map(|c| process::listed_container(&c.status, &c.sandbox)).collect())
    }

    async fn container_status(&self, id: &str) -> Cri<v1::ContainerStatus> {
        self.state.lock().containers.get(id).map(|c| c.status.clone()).ok_or_else(|| not_found("container", id))
    }

    async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Cri<()> {
        let mut state = self.state.lock();
        let c = state.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        if let Ok(limit) = u64::try_from(linux.memory_limit_in_bytes)
            && limit > 0
        {
            c.memory.set_limit(Some(limit));
        }
        c.status.resources = Some(v1::ContainerResources { linux: Some(linux), windows: None });
        Ok(())
    }

    async fn reopen_container_log(&self, _id: &str) -> Cri<()> {
        // Lines are appended by path: a renamed file is let go of by itself.
        Ok(())
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Option<Duration>) -> Cri<ExecOutput> {
        self.run_exec(id, cmd, timeout).await
    }

    async fn exec(&self, _request: v1::ExecRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "there are no streams in the virtual world"))
    }

    async fn attach(&self, _request: v1::AttachRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "there are no streams in the virtual world"))
    }

    async fn port_forward(&self, _request: v1::PortForwardRequest) -> Cri<String> {
        Err(RuntimeError::new(tonic::Code::Unimplemented, "there are no streams in the virtual world"))
    }

    async fn list_container_stats(&self, _filter: v1::ContainerStatsFilter) -> Cri<Vec<v1::ContainerStats>> {
        Ok(Vec::new())
    }

    async fn list_pod_sandbox_stats(&self, _filter: v1::PodSandboxStatsFilter) -> Cri<Vec<v1::PodSandboxStats>> {
        Ok(Vec::new())
    }

    async fn events(&self) -> Cri<EventStream> {
        let lagged = |_| RuntimeError::new(tonic::Code::DataLoss, "events were lost");
        Ok(BroadcastStream::new(self.events.subscribe()).map(move |e| e.map_err(lagged)).boxed())
    }
}
