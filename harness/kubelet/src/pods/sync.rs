//! One sync of a Pod: status, volumes, sandbox, containers. Source: k/k pkg/kubelet/kubelet.go SyncPod,
//! pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podlab_api::{core::Pod, jiff::Timestamp};
use podlab_cri::v1;
use podlab_lifecycle::{
    actions::{self, Actions},
    backoff,
    phase::Liveness,
    resize, restart,
    runtime::{RuntimePod, RuntimeState, SandboxRecord},
    spec::{self, ContainerKind},
    status::MayRun,
    termination,
    words::Phase,
    worker::SyncOutcome,
};
use podlab_timeline::{Outcome, Stage};

use super::{
    kill::{Kill, Target},
    worker::{Synced, Worker},
};
use crate::{
    container::{self, DnsWarning, MountSource, NodeDns, dns_config, sandbox_config, spec_hash},
    garbage,
    images::Keyring,
    runtime::Expected,
    users::enter_sandbox,
};

/// Largest resolv.conf read.
const MAX_RESOLV_CONF: usize = 64 * 1024;

/// What container starts of one sync share.
pub(super) struct Round {
    pub(super) pod: Arc<Pod>,
    pub(super) runtime: RuntimePod,
    pub(super) sandbox_id: String,
    pub(super) sandbox: v1::PodSandboxConfig,
    pub(super) ips: Vec<String>,
    pub(super) volumes: BTreeMap<String, MountSource>,
    pub(super) keyring: Keyring,
    /// Images mounted as volumes, by volume name; those that could not be had are left out.
    pub(super) image_volumes: BTreeMap<String, v1::ImageSpec>,
}

/// The errors of a sync, as far as the requeue is concerned.
#[derive(Default)]
pub(super) struct Errors {
    any: bool,
    other_than_backoff: bool,
    until: Option<Timestamp>,
}

impl Errors {
    pub(super) fn add(&mut self, until: Option<Timestamp>) {
        self.any = true;
        match until {
            Some(t) => self.until = Some(self.until.map_or(t, |u| u.min(t))),
            None => self.other_than_backoff = true,
        }
    }

    fn outcome(&self, now: Timestamp) -> SyncOutcome {
        match self.until {
            _ if !self.any => SyncOutcome::Done,
            // One error that is no back-off asks for the usual retry.
            Some(until) if !self.other_than_backoff => SyncOutcome::BackingOff(backoff::since(until, now)),
            _ => SyncOutcome::Failed,
        }
    }
}

/// How a call ended, for the run log.
fn outcome_of<T, E: std::fmt::Display>(result: &Result<T, E>) -> Outcome {
    result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok)
}

impl Worker {
    pub(super) async fn sync(&mut self, pod: &Arc<Pod>) -> Synced {
        let failed = |changed| Synced::Again { outcome: SyncOutcome::Failed, changed };
        let runtime = match self.read().await {
            Ok(r) => r,
            Err(error) => {
                self.agent.say.warn(pod, "FailedSync", format!("error determining status: {error}"));
                return failed(false);
            }
        };
        self.check_deadline(pod);
        self.restarting_all = restart::wants_restart_all(pod, &runtime);
        let resizes = self.plan_resize(pod, &runtime);
        let status = self.generate(pod, &runtime, Liveness::Active);
        let terminal = Phase::parse(status.phase.as_deref()).is_terminal();
        self.publish(pod, status, MayRun::Yes);
        if terminal {
            return Synced::Terminal;
        }
        if !spec::host_network(pod)
            && let Some(why) = self.agent.network_problem()
        {
            self.agent.say.warn(pod, "NetworkNotReady", format!("network is not ready: {why}"));
            return Synced::Again { outcome: SyncOutcome::NetworkNotReady, changed: false };
        }
        self.agent.objects.retain(pod);
        let (agent, ending) = (self.agent.clone(), self.mailbox.ending.clone());
        // Directories and cgroups are made while the API is being asked for what the volumes hold.
        let prepare = async {
            let (start, new) = (agent.recorder.now(), !self.has_cgroup);
            let result = self.prepare(pod);
            if new {
                agent.recorder.call(Some(&self.key), "PreparePod", "", start, outcome_of(&result));
            }
            result
        };
        let (volumes, prepared) = tokio::join!(biased; agent.volumes.ensure(pod, &ending), prepare);
        if let Err(error) = prepared {
            self.agent.say.warn(pod, "Failed", format!("error making pod data directories: {error}"));
            return failed(false);
        }
        let volumes = match volumes {
            Ok(Some(v)) => v,
            Ok(None) => return failed(true),
            Err(error) => {
                tracing::info!(pod = self.key.name, %error, "volumes are not there yet");
                return failed(false);
            }
        };
        self.stamp(Stage::VolumesReady);
        let keyring = self.pull_secrets(pod).await;
        self.agent.prober.add_pod(pod);
        let mut errors = Errors::default();
        if self.restarting_all {
            self.start_over(pod, &runtime).await;
            (self.started_over, self.expected) = (true, None);
            return Synced::Again { outcome: SyncOutcome::Done, changed: true };
        }
        let mut changed = self.apply_resize(pod, &resizes).await;
        let mut runtime = runtime;
        if resizes.iter().any(|r| r.method == resize::Method::Restart) {
            // What was stopped starts again in the same sync: no status says that it had ended.
            self.expected = None;
            match self.read().await {
                Ok(now) => runtime = now,
                Err(_) => return failed(true),
            }
        }
        changed |= self.act(pod, runtime, volumes, keyring, &mut errors).await;
        let mut outcome = errors.outcome(self.agent.clock.wall());
        if let (SyncOutcome::Done, Some(left)) = (outcome, self.until_deadline(pod)) {
            outcome = SyncOutcome::Due(left);
        }
        Synced::Again { outcome, changed }
    }

    /// Cgroup and directories of the Pod.
    fn prepare(&mut self, pod: &Pod) -> std::io::Result<()> {
        if self.has_cgroup {
            return Ok(());
        }
        let (host, config) = (&self.agent.host, &self.agent.config);
        if config.cgroup_root.is_some() {
            let mut limits = podlab_lifecycle::resources::pod_cgroup(pod);
            limits.pids = Some(config.pod_pids_limit).filter(|n| *n > 0);
            host.cgroup_apply(&container::pod_cgroup_path(pod), &limits)?;
            self.agent.qos_changed();
        }
        let dir = config.pod_dir(&self.uid);
        for sub in ["volumes", "plugins", "containers"] {
            host.create_dir_all(&dir.join(sub), 0o750)?;
        }
        host.create_dir_all(&config.log_dir(&self.key.namespace, &self.key.name, &self.uid), 0o755)?;
        self.has_cgroup = true;
        Ok(())
    }

    async fn pull_secrets(&self, pod: &Pod) -> Keyring {
        let mut keyring = Keyring::default();
        let mut missing = Vec::new();
        for r in spec::pod_spec(pod).image_pull_secrets.iter().flatten().filter(|r| !r.name.is_empty()) {
            match self.agent.objects.secret(&self.key.namespace, &r.name).await {
                Ok(secret) => keyring.add(&secret),
                Err(_) => missing.push(r.name.clone()),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.agent.say.warn(pod, "FailedToRetrieveImagePullSecret", message);
        }
        keyring
    }

    /// Carries the plan out; true when the runtime is not as it was.
    async fn act(
        &mut self,
        pod: &Arc<Pod>,
        runtime: RuntimePod,
        volumes: BTreeMap<String, MountSource>,
        keyring: Keyring,
        errors: &mut Errors,
    ) -> bool {
        let (liveness, startup) = self.agent.prober.results();
        let plan = actions::compute(
            pod,
            &runtime,
            &actions::Inputs { liveness: &liveness, startup: &startup, hash: &spec_hash },
        );
        let mut changed = false;
        if plan.kill_pod {
            if plan.create_sandbox.is_some() && !runtime.sandboxes.is_empty() {
                self.agent.say.normal(pod, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
            }
            let alive = runtime.running().next().is_some() || runtime.sandboxes.iter().any(|s| s.ready);
            if alive {
                changed = true;
                if let Err(error) = self.kill_everything(pod, &runtime, None).await {
                    tracing::warn!(pod = self.key.name, %error, "pod not killed");
                    errors.add(None);
                    return changed;
                }
            }
            if plan.create_sandbox.is_some() {
                self.purge_init(pod, &runtime).await;
            }
        } else {
            changed |= self.kill_some(pod, &runtime, &plan).await;
        }
        self.collect(&runtime).await;
        let Some(round) = self.sandbox(pod, runtime, &plan, volumes, keyring, errors, &mut changed).await else {
            return changed;
        };
        let mut round = round;
        if !(plan.init.is_empty() && plan.start.is_empty() && plan.ephemeral.is_empty()) {
            self.image_volumes(&mut round, errors).await;
        }
        changed | self.start_planned(&round, &plan, errors).await
    }

    /// Makes the sandbox if the plan says so; `None` when there is none to work with.
    #[expect(clippy::too_many_arguments, reason = "the parts of a round before it exists")]
    async fn sandbox(
        &mut self,
        pod: &Arc<Pod>,
        runtime: RuntimePod,
        plan: &Actions,
        volumes: BTreeMap<String, MountSource>,
        keyring: Keyring,
        errors: &mut Errors,
        changed: &mut bool,
    ) -> Option<Round> {
        let attempt = plan.create_sandbox.unwrap_or_else(|| runtime.sandboxes.first().map_or(0, |s| s.attempt));
        let sandbox = self.sandbox_config(pod, attempt, plan.create_sandbox.is_some());
        let mut sandboxes = runtime.sandboxes.clone();
        let (sandbox_id, ips) = if plan.create_sandbox.is_some() {
            if self.mailbox.ending.is_cancelled() {
                return None;
            }
            *changed = true;
            self.may_have_history = true;
            let agent = self.agent.clone();
            let (made, ()) = tokio::join!(biased; self.create_sandbox(pod, &sandbox), agent.images.peek(pod));
            match made {
                Some((id, ips)) => {
                    let record = SandboxRecord {
                        id: id.clone(),
                        attempt,
                        ready: true,
                        created_at: self.agent.clock.wall(),
                        ips: ips.clone(),
                        host_network: spec::host_network(pod),
                    };
                    sandboxes.insert(0, record);
                    (id, ips)
                }
                None => {
                    errors.add(None);
                    *changed = false;
                    return None;
                }
            }
        } else if plan.kill_pod {
            return None;
        } else {
            let ips = runtime.sandboxes.first().map(|s| s.ips.clone()).unwrap_or_default();
            (plan.sandbox_id.clone()?, ips)
        };
        let ips = if spec::host_network(pod) { self.agent.config.node_ips.clone() } else { ips };
        if !plan.kill_pod || sandboxes.len() == 1 {
            let containers = runtime.containers.iter().map(|c| c.id.clone()).collect();
            self.expected = Some(Expected { sandboxes, containers });
        }
        let image_volumes = BTreeMap::new();
        Some(Round { pod: pod.clone(), runtime, sandbox_id, sandbox, ips, volumes, keyring, image_volumes })
    }

    fn sandbox_config(&self, pod: &Pod, attempt: u32, fresh: bool) -> v1::PodSandboxConfig {
        let config = &self.agent.config;
        let resolv = self.agent.host.read_at(&config.resolv_conf, 0, MAX_RESOLV_CONF).unwrap_or_default();
        let node = NodeDns {
            cluster_dns: &config.cluster_dns,
            cluster_domain: &config.cluster_domain,
            resolv_conf: &String::from_utf8_lossy(&resolv),
        };
        let (dns, warnings) = dns_config(pod, &node);
        for w in warnings.into_iter().filter(|_| fresh) {
            match w {
                DnsWarning::Forming(m) => self.agent.say.warn(pod, "DNSConfigForming", m),
                DnsWarning::MissingClusterDns(m) => self.agent.say.warn(pod, "MissingClusterDNS", m),
            }
        }
        sandbox_config(pod, attempt, dns, config, self.agent.machine.memory)
    }

    async fn create_sandbox(&mut self, pod: &Arc<Pod>, config: &v1::PodSandboxConfig) -> Option<(String, Vec<String>)> {
        let agent = self.agent.clone();
        let handler = match agent.runtime_handler(pod).await {
            Ok(h) => h,
            Err(error) => {
                agent.say.warn(pod, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}"));
                return None;
            }
        };
        let mut config = config.clone();
        match agent.users_of(pod, &handler) {
            Ok(None) => {}
            Ok(Some(users)) => enter_sandbox(&mut config, &users),
            Err(error) => {
                agent.say.warn(pod, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}"));
                return None;
            }
        }
        let start = agent.recorder.now();
        let made = agent.runtime.run_pod_sandbox(config.clone(), &handler).await;
        let outcome = made.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        agent.recorder.call(Some(&self.key), "RunPodSandbox", "", start, outcome);
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                if !self.mailbox.ending.is_cancelled() {
                    agent.say.warn(pod, "FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}"));
                }
                return None;
            }
        };
        let status = match agent.runtime.pod_sandbox_status(&id).await {
            Ok(s) => s.status.unwrap_or_default(),
            Err(error) => {
                agent.say.warn(pod, "FailedPodSandBoxStatus", format!("Unable to get pod sandbox status: {error}"));
                return None;
            }
        };
        let network = status.network.unwrap_or_default();
        let ips: Vec<String> = std::iter::once(network.ip)
            .chain(network.additional_ips.into_iter().map(|a| a.ip))
            .filter(|ip| !ip.is_empty())
            .collect();
        agent.status.sandbox_ready(pod);
        self.stamp(Stage::SandboxReady);
        Some((id, ips))
    }

    /// Ephemeral containers, then init containers in order, then regular ones in order.
    async fn start_planned(&mut self, round: &Round, plan: &Actions, errors: &mut Errors) -> bool {
        let mut changed = false;
        for (kind, list) in [(ContainerKind::Ephemeral, &plan.ephemeral), (ContainerKind::Init, &plan.init)] {
            for index in list {
                let Some(c) = actions::declared(&round.pod, kind, *index) else { continue };
                if self.mailbox.ending.is_cancelled() {
                    return true;
                }
                match self.start(round, kind, &c).await {
                    Ok(()) => changed = true,
                    Err(failed) => {
                        changed |= failed.touched;
                        errors.add(failed.until);
                        // A sidecar that does not start does not keep the next one from being tried.
                        if kind == ContainerKind::Init && !spec::is_sidecar(&c) {
                            return changed;
                        }
                    }
                }
            }
        }
        let total = spec::containers(&round.pod).len();
        for index in &plan.start {
            let Some(c) = actions::declared(&round.pod, ContainerKind::Regular, *index) else { continue };
            if self.mailbox.ending.is_cancelled() {
                return true;
            }
            match self.start(round, ContainerKind::Regular, &c).await {
                Ok(()) => {
                    changed = true;
                    if index + 1 == total {
                        self.stamp(Stage::Started);
                    }
                }
                Err(failed) => {
                    changed |= failed.touched;
                    errors.add(failed.until);
                }
            }
        }
        changed
    }

    async fn kill_some(&mut self, pod: &Arc<Pod>, runtime: &RuntimePod, plan: &Actions) -> bool {
        let targets: Vec<Target> = plan
            .kill
            .iter()
            .filter_map(|(id, order)| {
                let record = runtime.containers.iter().find(|c| c.id == *id)?;
                Some(Target {
                    id: id.clone(),
                    name: record.name.clone(),
                    message: Some(order.message.clone()),
                    reason: Some(order.reason),
                })
            })
            .collect();
        if targets.is_empty() {
            return false;
        }
        let kill = Kill { agent: &self.agent, pod: Some(pod), key: &self.key };
        kill.containers(&targets, None).await;
        true
    }

    /// Stops every container and every sandbox.
    pub(super) async fn kill_everything(
        &self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        grace: Option<Duration>,
    ) -> crate::runtime::Cri<()> {
        let targets: Vec<Target> = runtime
            .running()
            .map(|c| Target { id: c.id.clone(), name: c.name.clone(), message: None, reason: None })
            .collect();
        let kill = Kill { agent: &self.agent, pod: Some(pod), key: &self.key };
        kill.containers(&targets, grace).await;
        for s in &runtime.sandboxes {
            if s.ready {
                self.agent.runtime.stop_pod_sandbox(&s.id).await?;
            }
        }
        Ok(())
    }

    /// Stops and removes every container, so that the next sync begins with the init phase in the same sandbox.
    async fn start_over(&self, pod: &Arc<Pod>, runtime: &RuntimePod) {
        let targets: Vec<Target> = runtime
            .running()
            .map(|c| Target {
                id: c.id.clone(),
                name: c.name.clone(),
                message: Some("killing".to_owned()),
                reason: None,
            })
            .collect();
        let kill = Kill { agent: &self.agent, pod: Some(pod), key: &self.key };
        kill.containers(&targets, Some(Duration::ZERO)).await;
        for c in &runtime.containers {
            if let Err(error) = self.agent.runtime.remove_container(&c.id).await {
                tracing::warn!(pod = self.key.name, %error, "container not removed");
            }
        }
    }

    /// A new sandbox starts the init phase over: what is left of it goes.
    async fn purge_init(&self, pod: &Pod, runtime: &RuntimePod) {
        for c in spec::init_containers(pod) {
            for r in runtime.containers.iter().filter(|r| r.name == c.name) {
                if let Err(error) = self.agent.runtime.remove_container(&r.id).await {
                    tracing::warn!(pod = self.key.name, %error, "init container not removed");
                }
            }
        }
    }

    /// Keeps one dead container per name. Source: k/k pkg/kubelet/pod_container_deletor.go.
    async fn collect(&self, runtime: &RuntimePod) {
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        for c in runtime.containers.iter().filter(|c| c.state == RuntimeState::Exited) {
            let n = kept.entry(c.name.as_str()).or_default();
            *n += 1;
            if *n > 1 {
                let logs = self.agent.config.log_dir(&self.key.namespace, &self.key.name, &self.uid).join(&c.name);
                if self.agent.runtime.remove_container(&c.id).await.is_ok() {
                    garbage::remove_logs(&self.agent, &logs, &c.restart_count.to_string());
                }
            }
        }
    }

    /// Grace for killing the whole Pod.
    pub(super) fn pod_grace(&mut self, pod: &Pod) -> Duration {
        let asked = self.mailbox.end_request().grace;
        let grace = termination::pod_grace(pod, asked, self.grace);
        self.grace = Some(grace);
        Duration::from_secs(u64::try_from(grace).unwrap_or(1))
    }
}
