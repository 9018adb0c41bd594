//! The worker of one Pod: the loop around [`podlab_lifecycle::worker`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podlab_api::core::{Pod, PodStatus};
use podlab_clock::Mono;
use podlab_lifecycle::{
    backoff,
    conditions::condition_of,
    container::{StartFailures, View},
    phase::Liveness,
    resize::ResizeState,
    restart,
    runtime::{RuntimePod, RuntimeState},
    spec,
    status::{self, MayRun, Verdict},
    words::{Phase, condition},
    worker::{SyncOutcome, WorkerEvent, WorkerState, requeue, step},
};
use podlab_timeline::{PodKey, Stage};

use super::mailbox::Mailbox;
use crate::{
    agent::Agent,
    runtime::{Cri, Expected, Reader},
    status::key_of,
};

/// How one sync ended.
pub(super) enum Synced {
    /// Again when due, or at once when the sync itself changed the runtime.
    Again { outcome: SyncOutcome, changed: bool },
    /// The Pod's status is terminal.
    Terminal,
}

/// The worker of one Pod.
pub(super) struct Worker {
    pub(super) agent: Arc<Agent>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) uid: String,
    pub(super) key: PodKey,
    pub(super) reader: Reader,
    pub(super) failures: StartFailures,
    pub(super) verdict: Option<Verdict>,
    /// The container started last; it is shown running once even if it has ended by now.
    pub(super) just_started: Option<String>,
    /// What the runtime must hold after a sync that only added to it, so that one look at each container is enough.
    pub(super) expected: Option<Expected>,
    /// Whether the runtime may hold something of this Pod that the worker has not made itself.
    pub(super) may_have_history: bool,
    pub(super) has_cgroup: bool,
    pub(super) grace: Option<i64>,
    /// A restart rule asked for every container to start over.
    pub(super) restarting_all: bool,
    /// It has just removed them; the next status says so, once.
    pub(super) started_over: bool,
    /// Where an in-place resize stands.
    pub(super) resize: Option<ResizeState>,
    /// Generation of the spec whose limits are in force, as far as this worker brought them about.
    pub(super) sized: Option<i64>,
    /// Memory requests, bytes, by container id, as they were when it was started or resized. The kernel does not know them.
    pub(super) requested: BTreeMap<String, i64>,
    stamped: BTreeSet<Stage>,
    /// When the agent saw the Pod first.
    seen: Mono,
    /// The API showed a terminal phase at first sight: nothing of it is generated again.
    ended_before: bool,
}

impl Worker {
    pub(super) fn new(agent: Arc<Agent>, mailbox: Arc<Mailbox>, uid: String) -> Self {
        let (pod, seen) = (mailbox.pod(), agent.clock.now());
        let reader = Reader::new(agent.runtime.clone(), agent.host.clone(), agent.config.pod_logs_dir.clone());
        let shown = Phase::parse(pod.status.as_ref().and_then(|s| s.phase.as_deref()));
        Self {
            key: key_of(&pod),
            may_have_history: agent.had_at_start(&uid),
            reader,
            agent,
            mailbox,
            uid,
            failures: StartFailures::new(),
            verdict: None,
            just_started: None,
            expected: None,
            has_cgroup: false,
            grace: None,
            restarting_all: false,
            started_over: false,
            resize: None,
            sized: None,
            requested: BTreeMap::new(),
            stamped: BTreeSet::new(),
            seen,
            ended_before: shown.is_terminal(),
        }
    }

    pub(super) async fn run(mut self) {
        let shutdown = self.agent.shutdown.clone();
        // Dropping a worker midway is what a crash of the agent does; the next one takes over from the runtime's state.
        let _ = shutdown.run_until_cancelled(self.live()).await;
    }

    async fn live(&mut self) {
        let mut state = WorkerState::Syncing;
        if !self.mailbox.ending.is_cancelled() {
            let pod = self.mailbox.pod();
            self.agent.objects.retain(&pod);
            self.agent.volumes.prefetch(&pod, &self.agent.tasks);
        }
        loop {
            let pod = self.mailbox.take();
            let next = match state {
                WorkerState::Syncing if self.mailbox.ending.is_cancelled() => {
                    state = step(state, WorkerEvent::AskedToEnd);
                    continue;
                }
                WorkerState::Syncing => match self.timed_sync(&pod).await {
                    Synced::Terminal => {
                        state = step(state, WorkerEvent::BecameTerminal);
                        continue;
                    }
                    Synced::Again { changed: true, .. } => continue,
                    Synced::Again { outcome, changed: false } => {
                        self.expected = None;
                        outcome
                    }
                },
                WorkerState::Terminating => match self.terminate(&pod).await {
                    Ok(()) => {
                        state = step(state, WorkerEvent::Stopped);
                        continue;
                    }
                    Err(error) => {
                        self.agent.say.warn(&pod, "FailedKillPod", format!("error killing pod: {error}"));
                        SyncOutcome::Failed
                    }
                },
                WorkerState::Terminated => match self.clean_up(&pod).await {
                    Ok(()) => {
                        state = step(state, WorkerEvent::Cleaned);
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(pod = self.key.name, %error, "clean-up failed");
                        SyncOutcome::BackingOff(Duration::from_secs(1))
                    }
                },
                WorkerState::Finished => return,
            };
            let due = requeue(next, self.agent.config.sync_period, self.agent.rng.unit());
            match state {
                WorkerState::Syncing => self.rest(&pod, due).await,
                _ => self.mailbox.wait(&self.agent.clock, due).await,
            }
        }
    }

    /// Waits for news or for `due`. Volumes that failed are tried again meanwhile, each after its own back-off: upstream's
    /// reconciler knows nothing of the workers' turns. Source: k/k pkg/kubelet/volumemanager/reconciler.
    async fn rest(&self, pod: &Pod, due: Duration) {
        let clock = self.agent.clock;
        let end = clock.now().after(due);
        loop {
            let next = self.agent.volumes.next_try(pod).filter(|at| *at < end);
            self.mailbox.wait(&clock, next.unwrap_or(end).since(clock.now())).await;
            if next.is_none() || self.mailbox.has_news() {
                return;
            }
            if self.agent.volumes.try_due(pod, &self.mailbox.ending).await.is_none() {
                return;
            }
        }
    }

    async fn timed_sync(&mut self, pod: &Arc<Pod>) -> Synced {
        let operation = if self.may_have_history { "sync" } else { "create" };
        let began = self.agent.clock.now();
        let synced = self.sync(pod).await;
        let took = self.agent.clock.now().since(began);
        self.agent.metrics.observe("kubelet_pod_worker_duration_seconds", &[("operation_type", operation)], took);
        synced
    }

    /// Reads the Pod from the runtime; what it saw counts as known.
    pub(super) async fn read(&mut self) -> Cri<RuntimePod> {
        let told = self.mailbox.take_started();
        if self.mailbox.take_ended() {
            self.expected = None;
        }
        let mut runtime = match self.expected.take() {
            _ if !self.may_have_history => RuntimePod::default(),
            Some(known) => self.reader.read_known(&self.uid, known, &told).await?,
            None => self.reader.read(&self.uid).await?,
        };
        // A container that ended before anybody could look is shown running once, as a watcher upstream would see it.
        if let Some(id) = self.just_started.take()
            && let Some(c) = runtime
                .containers
                .iter_mut()
                .find(|c| c.id == id && c.state == RuntimeState::Exited && c.started_at.is_some())
        {
            c.state = RuntimeState::Running;
            c.exit_code = 0;
            self.mailbox.kick();
        }
        let containers = runtime.containers.iter().map(|c| (c.id.clone(), c.state));
        let sandboxes = runtime
            .sandboxes
            .iter()
            .map(|s| (s.id.clone(), if s.ready { RuntimeState::Running } else { RuntimeState::Exited }));
        self.mailbox.seen(containers.chain(sandboxes).collect::<BTreeMap<_, _>>());
        Ok(runtime)
    }

    /// Generates the status from what the runtime has.
    pub(super) fn generate(&mut self, pod: &Pod, runtime: &RuntimePod, liveness: Liveness) -> PodStatus {
        let agent = &self.agent;
        let previous = agent.status.get(&self.uid).or_else(|| pod.status.clone()).unwrap_or_default();
        let scheme = agent.scheme();
        let probes = agent.prober.view(pod, &previous);
        let mut status = status::generate(&status::Inputs {
            view: View {
                pod,
                runtime,
                failures: &self.failures,
                scheme: &scheme,
                starting_over: std::mem::take(&mut self.started_over),
            },
            previous: &previous,
            readiness: &probes,
            liveness,
            verdict: self.verdict.as_ref(),
            host_ips: &agent.config.node_ips,
            resize: self.resize.as_ref(),
        });
        if restart::may_restart_all(pod) {
            let message = "container exited with restart policy rule".to_owned();
            let why = self.restarting_all.then_some(("RestartAllContainersStarted", message));
            let (reason, message) = why.unzip();
            let mut mark = condition_of(condition::ALL_RESTARTING, self.restarting_all, reason, message);
            mark.observed_generation = pod.metadata.generation;
            status.conditions.get_or_insert_default().push(mark);
        }
        status
    }

    /// Sets the status, unless the Pod had ended before this agent saw it.
    pub(super) fn publish(&self, pod: &Pod, status: PodStatus, may_run: MayRun) {
        if !self.ended_before {
            self.agent.status.set(pod, status, may_run);
        }
    }

    /// Checks the active deadline; says so every time, as upstream does.
    pub(super) fn check_deadline(&mut self, pod: &Pod) {
        const MESSAGE: &str = "Pod was active on the node longer than the specified deadline";
        let Some(seconds) = spec::pod_spec(pod).active_deadline_seconds.and_then(|s| u64::try_from(s).ok()) else {
            return;
        };
        let start = self.agent.status.get(&self.uid).and_then(|s| s.start_time).map(|t| t.0);
        let passed = start.is_some_and(|t| backoff::since(self.agent.clock.wall(), t) >= Duration::from_secs(seconds));
        if passed {
            self.agent.say.normal(pod, "DeadlineExceeded", MESSAGE);
            self.verdict =
                Some(Verdict { reason: "DeadlineExceeded".to_owned(), message: MESSAGE.to_owned(), disruption: None });
        }
    }

    /// Time until the active deadline, if there is one ahead.
    pub(super) fn until_deadline(&self, pod: &Pod) -> Option<Duration> {
        let seconds = spec::pod_spec(pod).active_deadline_seconds.and_then(|s| u64::try_from(s).ok())?;
        let start = self.agent.status.get(&self.uid)?.start_time?.0;
        let end = backoff::plus(start, Duration::from_secs(seconds));
        Some(backoff::since(end, self.agent.clock.wall()))
    }

    /// Records a milestone of the start, once.
    pub(super) fn stamp(&mut self, stage: Stage) {
        if self.stamped.insert(stage) {
            self.agent.recorder.stage(&self.key, stage);
            if stage == Stage::Started {
                let took = self.agent.clock.now().since(self.seen);
                self.agent.metrics.observe("kubelet_pod_start_duration_seconds", &[], took);
            }
        }
    }
}
