//! The scheduler as a component: watches, the loop, and what is written to the API.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podlab_api::{
    ApiError,
    core::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition},
    matching::Labels,
    policy::PodDisruptionBudget,
    storage::StorageClass,
};
use podlab_client::{
    Client, DeleteOptions, ListOptions, PatchKind,
    events::{self, EventRecorder, EventType, Family},
    reflector::{Cache as Reflected, Delta, reflector},
};
use podlab_clock::{Clock, Rng};
use podlab_timeline::{Lane, PodKey, Recorder, Stage};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    bind::{BindError, bind},
    cache::Cache,
    cycle::{Decision, schedule_one},
    filter::View,
    pod_info::{Key, PodInfo, key_of},
    queue::{ClusterEvent, Queue},
    volumes::{ClaimPlan, VolumeState, claim_names},
};

/// Deltas on their way to the loop; beyond this the watch waits.
const BUFFER: usize = 1024;
/// How long to sleep when nothing is due; any event wakes the loop earlier.
const IDLE: Duration = Duration::from_secs(30);

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Pods that name this scheduler are its own.
    pub name: String,
    /// Host name for the reporting instance of its events.
    pub host: String,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { name: "default-scheduler".into(), host: "plane".into() }
    }
}

/// The scheduler.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    client: Client,
    clock: Clock,
    rng: Rng,
    recorder: Recorder,
}

/// Everything the loop owns.
struct State {
    cache: Cache,
    queue: Queue,
    waiting: BTreeMap<Key, Arc<PodInfo>>,
    claims: Reflected<PersistentVolumeClaim>,
    volumes: Reflected<PersistentVolume>,
    classes: Reflected<StorageClass>,
    namespaces: Reflected<Namespace>,
    budgets: Reflected<PodDisruptionBudget>,
    bindings: JoinSet<Bound>,
}

/// How a binding ended.
struct Bound {
    pod: Arc<PodInfo>,
    node: String,
    result: Result<(), BindError>,
}

impl Scheduler {
    /// A scheduler on an API.
    pub fn new(config: SchedulerConfig, client: Client, clock: Clock, rng: Rng, recorder: &Recorder) -> Self {
        Self { config, client, clock, rng, recorder: recorder.lane(Lane::Sched) }
    }

    /// Schedules until `shutdown`; bindings under way are dropped then.
    pub async fn run(self, shutdown: CancellationToken) {
        let (events, writer) = events::recorder(
            &self.client,
            Family::Series,
            &self.config.name,
            &self.config.host,
            self.clock,
            self.rng.fork("events"),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run(shutdown.clone()));
        let all = ListOptions::default;
        let (r, _pods, mut pods) = reflector::<Pod>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        let (r, known_nodes, mut nodes) = reflector::<Node>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        // Whatever happens to storage has one effect on the queue, so one channel carries it all.
        let (storage_tx, mut storage) = mpsc::channel::<()>(1);
        let (r, claims, rx) = reflector::<PersistentVolumeClaim>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, storage_tx.clone()));
        let (r, volumes, rx) = reflector::<PersistentVolume>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, storage_tx.clone()));
        let (r, classes, rx) = reflector::<StorageClass>(&self.client, None, all(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        tasks.spawn(relay(rx, storage_tx));
        let (r, namespaces, rx) = reflector::<Namespace>(&self.client, None, all(), self.clock, 1);
        drop(rx);
        tasks.spawn(r.run(shutdown.clone()));
        let (r, budgets, rx) = reflector::<PodDisruptionBudget>(&self.client, None, all(), self.clock, 1);
        drop(rx);
        tasks.spawn(r.run(shutdown.clone()));
        let mut state = State {
            cache: Cache::default(),
            queue: Queue::default(),
            waiting: BTreeMap::new(),
            claims,
            volumes,
            classes,
            namespaces,
            budgets,
            bindings: JoinSet::new(),
        };
        let synced = async {
            state.claims.wait_synced().await;
            state.volumes.wait_synced().await;
            state.classes.wait_synced().await;
            state.namespaces.wait_synced().await;
            known_nodes.wait_synced().await;
        };
        if shutdown.run_until_cancelled(synced).await.is_none() {
            return;
        }
        while let Ok(delta) = nodes.try_recv() {
            self.on_node(&mut state, &delta);
        }
        loop {
            self.schedule_due(&mut state, &events, &mut pods, &mut nodes).await;
            let now = self.clock.now();
            let until = state.queue.next_deadline().unwrap_or_else(|| now.after(IDLE)).min(now.after(IDLE));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(delta) = nodes.recv() => self.on_node(&mut state, &delta),
                Some(delta) = pods.recv() => self.on_pod(&mut state, &delta),
                Some(()) = storage.recv() => state.queue.event(ClusterEvent::Storage, self.clock.now()),
                Some(Ok(bound)) = state.bindings.join_next(), if !state.bindings.is_empty() => self.on_bound(&mut state, &events, bound).await,
                () = self.clock.sleep_until(until) => {}
            }
        }
        tasks.join_all().await;
    }

    /// Runs cycles until nothing is due, taking in what arrives between them.
    async fn schedule_due(
        &self,
        state: &mut State,
        events: &EventRecorder,
        pods: &mut mpsc::Receiver<Delta<Pod>>,
        nodes: &mut mpsc::Receiver<Delta<Node>>,
    ) {
        loop {
            while let Ok(delta) = nodes.try_recv() {
                self.on_node(state, &delta);
            }
            while let Ok(delta) = pods.try_recv() {
                self.on_pod(state, &delta);
            }
            let Some(key) = state.queue.pop(self.clock.now()) else { return };
            let Some(pod) = state.waiting.get(&key).cloned() else {
                state.queue.remove(&key);
                continue;
            };
            self.cycle(state, events, &pod).await;
        }
    }

    fn on_node(&self, state: &mut State, delta: &Delta<Node>) {
        let now = self.clock.now();
        match delta {
            Delta::Deleted(node) => state.cache.remove_node(node.metadata.name.as_deref().unwrap_or_default()),
            Delta::Applied { new, .. } => {
                // Against what this loop has seen, not what the reflector held: deltas may have been joined.
                let name = new.metadata.name.clone().unwrap_or_default();
                let old = state.cache.node(&name).and_then(|n| n.node.clone());
                state.cache.set_node(new.clone());
                for event in node_events(old.as_deref(), new) {
                    state.queue.event(event, now);
                }
            }
        }
    }

    fn on_pod(&self, state: &mut State, delta: &Delta<Pod>) {
        let now = self.clock.now();
        let info = Arc::new(PodInfo::new(delta.object().clone()));
        let key = info.key.clone();
        let gone = matches!(delta, Delta::Deleted(_));
        if gone || info.is_terminal() {
            state.waiting.remove(&key);
            state.queue.remove(&key);
            state.cache.remove_pod(&key);
            state.queue.event(ClusterEvent::PodDelete, now);
            return;
        }
        if info.node_name().is_some() {
            state.waiting.remove(&key);
            state.queue.remove(&key);
            let before = match delta {
                Delta::Applied { old, .. } => {
                    old.as_ref().map(|o| (o.metadata.labels.clone(), o.spec.as_ref().and_then(|s| s.node_name.clone())))
                }
                Delta::Deleted(_) => None,
            };
            let news =
                before.as_ref().is_none_or(|(labels, node)| *labels != info.pod.metadata.labels || node.is_none());
            state.cache.set_pod(&info);
            if news {
                state.queue.event(ClusterEvent::PodAdd, now);
            }
            return;
        }
        let scheduler = info.pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler");
        // One that is assumed waits for its binding; one that is being deleted is not placed any more.
        if scheduler != self.config.name || info.is_deleting() || state.cache.is_assumed(&key) {
            return;
        }
        let spec_changed = match delta {
            Delta::Applied { old: Some(old), new } => {
                old.spec != new.spec || old.metadata.labels != new.metadata.labels
            }
            _ => true,
        };
        state.queue.add(&key, info.priority, info.is_gated(), spec_changed, now);
        state.waiting.insert(key, info);
    }

    async fn cycle(&self, state: &mut State, events: &EventRecorder, pod: &Arc<PodInfo>) {
        self.recorder.stage(&pod_key(&pod.pod), Stage::Popped);
        let volumes = storage(state, pod);
        let namespaces =
            if uses_namespace_selectors(state, pod) { namespace_labels(&state.namespaces) } else { BTreeMap::new() };
        let budgets = state.budgets.list();
        let view = View { cache: &state.cache, namespaces: &namespaces, volumes: &volumes };
        match schedule_one(pod, &view, &budgets, &self.rng) {
            Decision::Bind { node, claims } => self.start_binding(state, pod, node, claims),
            Decision::Unschedulable { message, wants, preempt } => {
                let preempts = preempt.is_some();
                if let Some((node, victims)) = preempt {
                    self.evict(events, pod, &node, &victims).await;
                }
                self.refuse(state, events, pod, "Unschedulable", &message).await;
                let now = self.clock.now();
                // One that has made room looks again when its back-off is over, whether or not anything was heard of the room.
                if preempts { state.queue.retry(&pod.key, now) } else { state.queue.park(&pod.key, wants, now) }
            }
        }
    }

    fn start_binding(&self, state: &mut State, pod: &Arc<PodInfo>, node: String, claims: Vec<ClaimPlan>) {
        state.cache.assume(pod.clone(), &node);
        let (client, clock, pod) = (self.client.clone(), self.clock, pod.clone());
        state.bindings.spawn(async move {
            let result = bind(&client, clock, &pod, &node, &claims).await;
            Bound { pod, node, result }
        });
    }

    async fn on_bound(&self, state: &mut State, events: &EventRecorder, bound: Bound) {
        let Bound { pod, node, result } = bound;
        match result {
            Ok(()) => {
                let text = format!("Successfully assigned {}/{} to {node}", pod.key.0, pod.key.1);
                events.event_with_action(events::reference(&*pod.pod), EventType::Normal, "Scheduled", "Binding", text);
            }
            Err(BindError::Api(e)) if e.is_not_found() || e.is_conflict() => {
                state.cache.forget(&pod.key);
                state.queue.retry(&pod.key, self.clock.now());
            }
            Err(error) => {
                state.cache.forget(&pod.key);
                self.refuse(state, events, &pod, "SchedulerError", &error.to_string()).await;
                state.queue.retry(&pod.key, self.clock.now());
                state.queue.event(ClusterEvent::PodDelete, self.clock.now());
            }
        }
    }

    /// Writes the condition (when it changes) and the event of a failed attempt.
    async fn refuse(&self, state: &mut State, events: &EventRecorder, pod: &Arc<PodInfo>, reason: &str, message: &str) {
        let object = &pod.pod;
        events.event_with_action(
            events::reference(&**object),
            EventType::Warning,
            "FailedScheduling",
            "Scheduling",
            message,
        );
        let conditions = object.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
        let same = |c: &PodCondition| {
            c.type_ == "PodScheduled"
                && c.status == "False"
                && c.reason.as_deref() == Some(reason)
                && c.message.as_deref() == Some(message)
        };
        if conditions.iter().any(same) {
            return;
        }
        let now = self.clock.wall_secs().to_string();
        let body = json!({"metadata": {"uid": object.metadata.uid}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastProbeTime": null, "lastTransitionTime": now, "observedGeneration": object.metadata.generation,
        }]}});
        self.patch_status(state, pod, &body).await;
    }

    /// Patches the Pod's status and keeps what comes back, so that the next attempt sees it.
    async fn patch_status(&self, state: &mut State, pod: &Arc<PodInfo>, body: &serde_json::Value) {
        match self.client.namespaced::<Pod>(pod.namespace()).patch_status(&pod.key.1, &PatchKind::Strategic, body).await
        {
            Ok(new) => {
                if let Some(entry) = state.waiting.get_mut(&pod.key) {
                    *entry = Arc::new(PodInfo::new(Arc::new(new)));
                }
            }
            Err(e) if e.is_not_found() || e.is_conflict() => {}
            Err(error) => tracing::warn!(%error, pod = %pod.key.1, "status not written"),
        }
    }

    /// Makes room: nominates the node, marks and deletes the victims.
    async fn evict(&self, events: &EventRecorder, pod: &Arc<PodInfo>, node: &str, victims: &[Arc<PodInfo>]) {
        let api = |ns: &str| self.client.namespaced::<Pod>(ns);
        let nominate = json!({"status": {"nominatedNodeName": node}});
        if let Err(error) = api(pod.namespace()).patch_status(&pod.key.1, &PatchKind::Strategic, &nominate).await {
            tracing::warn!(%error, "nominated node not written");
        }
        for victim in victims.iter().filter(|v| !v.is_deleting()) {
            if let Err(error) = self.evict_one(&api(victim.namespace()), victim).await {
                tracing::warn!(%error, victim = %victim.key.1, "victim not evicted");
                continue;
            }
            let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
            let note = format!("Preempted by pod {uid} on node {node}");
            events.event_with_action(
                events::reference(&*victim.pod),
                EventType::Normal,
                "Preempted",
                "Preempting",
                note,
            );
        }
    }

    async fn evict_one(&self, api: &podlab_client::Resource<Pod>, victim: &PodInfo) -> Result<(), ApiError> {
        let now = self.clock.wall_secs().to_string();
        let body = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", self.config.name),
            "lastProbeTime": null, "lastTransitionTime": now, "observedGeneration": victim.pod.metadata.generation,
        }]}});
        api.patch_status(&victim.key.1, &PatchKind::Strategic, &body).await?;
        api.delete(&victim.key.1, &DeleteOptions::default()).await
    }
}

/// Passes on that something came, not what.
async fn relay<K>(mut from: mpsc::Receiver<Delta<K>>, to: mpsc::Sender<()>) {
    while from.recv().await.is_some() {
        // One pending note is as good as many.
        let _ = to.try_send(());
    }
}

/// What changed about a node that may help a waiting Pod.
fn node_events(old: Option<&Node>, new: &Node) -> Vec<ClusterEvent> {
    let Some(old) = old else { return vec![ClusterEvent::NodeAdd] };
    let mut out = Vec::new();
    if old.metadata.labels != new.metadata.labels {
        out.push(ClusterEvent::NodeLabel);
    }
    let allocatable = |n: &Node| n.status.as_ref().and_then(|s| s.allocatable.clone());
    if allocatable(old) != allocatable(new) {
        out.push(ClusterEvent::NodeAllocatable);
    }
    let taints = |n: &Node| n.spec.as_ref().map(|s| (s.taints.clone(), s.unschedulable));
    if taints(old) != taints(new) {
        out.push(ClusterEvent::NodeTaint);
    }
    out
}

fn pod_key(pod: &Pod) -> PodKey {
    let (namespace, name) = key_of(pod);
    PodKey { namespace, name, uid: pod.metadata.uid.clone().unwrap_or_default() }
}

/// The storage objects, only when the Pod uses any.
fn storage(state: &State, pod: &PodInfo) -> VolumeState {
    if claim_names(pod).is_empty() {
        return VolumeState::default();
    }
    let name = |m: &podlab_api::meta::ObjectMeta| m.name.clone().unwrap_or_default();
    VolumeState {
        claims: state
            .claims
            .list()
            .into_iter()
            .map(|c| ((c.metadata.namespace.clone().unwrap_or_default(), name(&c.metadata)), c))
            .collect(),
        volumes: state.volumes.list().into_iter().map(|v| (name(&v.metadata), v)).collect(),
        classes: state.classes.list().into_iter().map(|c| (name(&c.metadata), c)).collect(),
    }
}

fn uses_namespace_selectors(state: &State, pod: &PodInfo) -> bool {
    let any = |p: &PodInfo| {
        let weighted = p.preferred_affinity.iter().chain(&p.preferred_anti_affinity).map(|w| &w.pod_affinity_term);
        p.affinity.iter().chain(&p.anti_affinity).chain(weighted).any(|t| t.namespace_selector.is_some())
    };
    any(pod) || state.cache.nodes().flat_map(|n| n.pods.values()).any(|p| any(p))
}

fn namespace_labels(namespaces: &Reflected<Namespace>) -> BTreeMap<String, Labels> {
    let pair = |n: Arc<Namespace>| {
        (n.metadata.name.clone().unwrap_or_default(), n.metadata.labels.clone().unwrap_or_default())
    };
    namespaces.list().into_iter().map(pair).collect()
}
