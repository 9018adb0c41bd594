//! Probes: one worker per container and kind, results by container, and what they mean for started and ready.
//!
//! Source: k/k pkg/kubelet/prober.

pub(crate) mod dial;
mod worker;

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use podlab_api::core::{Container, ContainerStatus, Pod, PodStatus, Probe};
use podlab_clock::{Clock, Mono, Rng};
use podlab_lifecycle::{
    probe::{ProbeKind, ProbeResult, Results},
    spec,
    status::Readiness,
};
use podlab_timeline::{Lane, Recorder};
use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{config::KubeletConfig, host::Host, metrics::Metrics, runtime::Runtime, say::Say, status::StatusManager};

/// A result that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeUpdate {
    pub(crate) uid: String,
    pub(crate) kind: ProbeKind,
    pub(crate) result: ProbeResult,
}

/// Which worker.
type Key = (String, String, ProbeKind);

struct Handle {
    trigger: Arc<Notify>,
    stop: CancellationToken,
}

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Arc<Pod>>,
    workers: BTreeMap<Key, Handle>,
    liveness: Results,
    readiness: Results,
    startup: Results,
}

impl State {
    fn results(&mut self, kind: ProbeKind) -> &mut Results {
        match kind {
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Startup => &mut self.startup,
        }
    }
}

/// All probes of the node.
pub(crate) struct Prober {
    config: Arc<KubeletConfig>,
    runtime: Arc<dyn Runtime>,
    host: Arc<dyn Host>,
    clock: Clock,
    rng: Rng,
    say: Say,
    status: Arc<StatusManager>,
    recorder: Recorder,
    state: Mutex<State>,
    updates: mpsc::UnboundedSender<ProbeUpdate>,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    began: Mono,
}

/// Parts the prober is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<KubeletConfig>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) say: Say,
    pub(crate) status: Arc<StatusManager>,
    pub(crate) recorder: Recorder,
    pub(crate) tasks: TaskTracker,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: CancellationToken,
}

/// The runtime's id of a container without its scheme.
pub(crate) fn raw_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, raw)| raw)
}

impl Prober {
    /// Makes the prober and the stream of results that changed; its length is bounded by the number of probes, each of
    /// which waits a period between two results.
    pub(crate) fn new(p: Parts) -> (Arc<Self>, mpsc::UnboundedReceiver<ProbeUpdate>) {
        let (updates, rx) = mpsc::unbounded_channel();
        let began = p.clock.now();
        let prober = Self {
            config: p.config,
            runtime: p.runtime,
            host: p.host,
            clock: p.clock,
            rng: p.rng,
            say: p.say,
            status: p.status,
            recorder: p.recorder.lane(Lane::Probe),
            state: Mutex::default(),
            updates,
            tasks: p.tasks,
            metrics: p.metrics,
            shutdown: p.shutdown,
            began,
        };
        (Arc::new(prober), rx)
    }

    /// Begins the probes of a Pod that have not begun, and takes notice of its newest form.
    pub(crate) fn add_pod(self: &Arc<Self>, pod: &Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut state = self.state.lock();
        state.pods.insert(uid.clone(), pod.clone());
        let sidecars = spec::init_containers(pod).iter().filter(|c| spec::is_sidecar(c));
        for c in spec::containers(pod).iter().chain(sidecars) {
            for (kind, probe) in probes_of(c) {
                let key = (uid.clone(), c.name.clone(), kind);
                if state.workers.contains_key(&key) {
                    continue;
                }
                let handle = Handle { trigger: Arc::default(), stop: self.shutdown.child_token() };
                let worker = worker::Worker {
                    prober: self.clone(),
                    uid: uid.clone(),
                    container: c.clone(),
                    kind,
                    probe: probe.clone(),
                    trigger: handle.trigger.clone(),
                    stop: handle.stop.clone(),
                };
                self.tasks.spawn(worker.run());
                state.workers.insert(key, handle);
            }
        }
    }

    /// Takes notice of a Pod's newest form without beginning anything.
    pub(crate) fn update_pod(&self, pod: &Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(known) = self.state.lock().pods.get_mut(&uid) {
            *known = pod.clone();
        }
    }

    /// Ends liveness and startup probes of a Pod that is being stopped.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &str) {
        self.stop(uid, |kind| kind != ProbeKind::Readiness);
    }

    /// Ends all probes of a Pod.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.stop(uid, |_| true);
        self.state.lock().pods.remove(uid);
    }

    fn stop(&self, uid: &str, which: impl Fn(ProbeKind) -> bool) {
        self.state.lock().workers.retain(|(u, _, kind), h| {
            let hit = u == uid && which(*kind);
            if hit {
                h.stop.cancel();
            }
            !hit
        });
    }

    fn ended(&self, key: &Key) {
        self.state.lock().workers.remove(key);
    }

    /// Liveness and startup results, for deciding whom to restart.
    pub(crate) fn results(&self) -> (Results, Results) {
        let state = self.state.lock();
        (state.liveness.clone(), state.startup.clone())
    }

    fn set(&self, pod: &Pod, uid: &str, kind: ProbeKind, id: &str, result: ProbeResult) {
        if !self.state.lock().results(kind).set(raw_id(id), result) {
            return;
        }
        match kind {
            ProbeKind::Readiness => self.status.set_readiness(pod, id, result == ProbeResult::Success),
            ProbeKind::Startup => self.status.set_started(pod, id, result == ProbeResult::Success),
            ProbeKind::Liveness => {}
        }
        // Nobody listens any more only when the agent stops.
        let _ = self.updates.send(ProbeUpdate { uid: uid.to_owned(), kind, result });
    }

    /// What the prober knows of a Pod's containers. `previous` is the last status, which decides for containers whose
    /// probes have not begun: an agent that was restarted must not make them unready.
    pub(crate) fn view<'a>(&'a self, pod: &'a Pod, previous: &'a PodStatus) -> PodProbes<'a> {
        PodProbes { prober: self, pod, previous }
    }
}

fn probes_of(c: &Container) -> Vec<(ProbeKind, &Probe)> {
    let all = [
        (ProbeKind::Startup, c.startup_probe.as_ref()),
        (ProbeKind::Readiness, c.readiness_probe.as_ref()),
        (ProbeKind::Liveness, c.liveness_probe.as_ref()),
    ];
    all.into_iter().filter_map(|(k, p)| Some((k, p?))).collect()
}

/// Readiness of one Pod's containers.
pub(crate) struct PodProbes<'a> {
    prober: &'a Prober,
    pod: &'a Pod,
    previous: &'a PodStatus,
}

impl Readiness for PodProbes<'_> {
    fn started(&self, c: &ContainerStatus) -> bool {
        let id = raw_id(c.container_id.as_deref().unwrap_or_default());
        match self.prober.state.lock().startup.get(id) {
            Some(result) => result == ProbeResult::Success,
            None => {
                !self.declares(&c.name, ProbeKind::Startup) || self.before(c).is_some_and(|p| p.started == Some(true))
            }
        }
    }

    fn ready(&self, c: &ContainerStatus) -> bool {
        if !self.declares(&c.name, ProbeKind::Readiness) {
            return true;
        }
        let state = self.prober.state.lock();
        let result = state.readiness.get(raw_id(c.container_id.as_deref().unwrap_or_default()));
        if result == Some(ProbeResult::Success) || (result.is_none() && self.before(c).is_some_and(|p| p.ready)) {
            return true;
        }
        let uid = self.pod.metadata.uid.clone().unwrap_or_default();
        if let Some(worker) = state.workers.get(&(uid, c.name.clone(), ProbeKind::Readiness)) {
            // It is up but not ready: look again now instead of at the next turn.
            worker.trigger.notify_one();
        }
        false
    }
}

impl PodProbes<'_> {
    fn declares(&self, container: &str, kind: ProbeKind) -> bool {
        let all = spec::containers(self.pod).iter().chain(spec::init_containers(self.pod));
        all.filter(|c| c.name == container).any(|c| probes_of(c).iter().any(|(k, _)| *k == kind))
    }

    /// The last status of the same container, if it is about the same one.
    fn before(&self, c: &ContainerStatus) -> Option<&ContainerStatus> {
        let lists = [&self.previous.init_container_statuses, &self.previous.container_statuses];
        lists.into_iter().flatten().flatten().find(|p| p.name == c.name && p.container_id == c.container_id)
    }
}
