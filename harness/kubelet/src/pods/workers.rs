//! The workers by UID: who exists, who is told what, and what to do about things the API knows nothing of.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use podlab_api::core::{Node, Pod};
use podlab_lifecycle::{runtime::RuntimeState, spec, words::Phase};
use podlab_timeline::Stage;

use super::{
    mailbox::{EndRequest, Mailbox},
    worker::Worker,
};
use crate::{admission, agent::Agent, status::key_of};

/// All workers of the node.
#[derive(Default)]
pub(crate) struct Workers(Mutex<BTreeMap<String, Arc<Mailbox>>>);

/// Labels of the node that the scheduler has seen may not have come here yet: the API is asked before a Pod is refused.
/// Source: k/k pkg/kubelet/lifecycle/predicate.go, which fetches the node anew.
async fn again(agent: Arc<Agent>, pod: Arc<Pod>) {
    let node = agent.client.all::<Node>().get_opt(&agent.config.node_name).await.ok().flatten();
    let node = node.unwrap_or_else(|| agent.node_view());
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    if agent.workers.get(&uid).is_some() {
        return;
    }
    match admission::admit(&agent, &pod, &agent.workers.active(), &node) {
        Ok(()) => agent.workers.start(&agent, pod, uid, Phase::Pending),
        Err(verdict) => agent.reject(&pod, &verdict),
    }
}

impl Workers {
    /// The Pods that take room on the node: those whose worker is not done, that the API still has (a forced deletion does
    /// not wait for the containers' end), and that it does not show as ended. The scheduler gives the room of the others
    /// away as soon as it sees that, and the API's order brings both here in turn.
    /// Source: k/k pkg/kubelet/kubelet_pods.go GetActivePods, filterOutInactivePods; kubelet.go HandlePodRemoves.
    pub(crate) fn active(&self) -> Vec<Arc<Pod>> {
        let ended = |p: &Arc<Pod>| Phase::parse(p.status.as_ref().and_then(|s| s.phase.as_deref())).is_terminal();
        let workers = self.0.lock();
        let there = workers.values().filter(|m| !m.is_finished() && !m.is_removed());
        there.map(|m| m.pod()).filter(|p| !ended(p)).collect()
    }

    /// All Pods with a worker, done or not.
    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().values().map(|m| m.pod()).collect()
    }

    /// The Pod of a namespace and name.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let named = |p: &Arc<Pod>| {
            p.metadata.namespace.as_deref() == Some(namespace) && p.metadata.name.as_deref() == Some(name)
        };
        // A Pod that replaced another of the same name is the one meant.
        self.pods().into_iter().filter(named).max_by_key(|p| p.metadata.creation_timestamp.clone().map(|t| t.0))
    }

    fn get(&self, uid: &str) -> Option<Arc<Mailbox>> {
        self.0.lock().get(uid).cloned()
    }

    /// A Pod appeared in the API or changed there.
    pub(crate) fn apply(&self, agent: &Arc<Agent>, old: Option<&Pod>, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        agent.status.observe(&pod);
        if let Some(mailbox) = self.get(&uid) {
            agent.prober.update_pod(&pod);
            // A change of the status alone is our own, or a readiness gate's.
            let spec_changed = old.is_none_or(|o| differs(o, &pod));
            let gates = spec::pod_spec(&pod).readiness_gates.as_ref().is_some_and(|g| !g.is_empty())
                && gate_states(old) != gate_states(Some(&pod));
            mailbox.update(pod, spec_changed || gates);
            return;
        }
        let key = key_of(&pod);
        agent.recorder.stage(&key, Stage::Observed);
        let shown = Phase::parse(pod.status.as_ref().and_then(|s| s.phase.as_deref()));
        let known = pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
        let fresh = !known && !shown.is_terminal() && !spec::is_deleting(&pod);
        if fresh && let Err(verdict) = admission::admit(agent, &pod, &self.active(), &agent.node_view()) {
            if verdict.reason == "NodeAffinity" {
                agent.tasks.spawn(again(agent.clone(), pod));
            } else {
                agent.reject(&pod, &verdict);
            }
            return;
        }
        self.start(agent, pod, uid, shown);
    }

    fn start(&self, agent: &Arc<Agent>, pod: Arc<Pod>, uid: String, shown: Phase) {
        let key = key_of(&pod);
        agent.recorder.stage(&key, Stage::Admitted);
        let mailbox = Arc::new(Mailbox::new(pod.clone()));
        self.0.lock().insert(uid.clone(), mailbox.clone());
        if spec::is_deleting(&pod) || shown.is_terminal() {
            mailbox.ending.cancel();
        }
        agent.tasks.spawn(Worker::new(agent.clone(), mailbox, uid).run());
    }

    /// A Pod's object is gone from the API.
    pub(crate) fn remove(&self, agent: &Arc<Agent>, pod: &Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        agent.status.forget(&uid);
        let Some(mailbox) = self.get(&uid) else { return };
        mailbox.mark_removed();
        if mailbox.is_finished() {
            self.forget(&uid);
            let agent = agent.clone();
            agent.tasks.clone().spawn(async move { agent.remove_leftovers(&uid).await });
            return;
        }
        if spec::is_deleting(pod) {
            mailbox.update(pod.clone(), true);
        }
        mailbox.end(EndRequest::default());
    }

    /// Drops a worker that is done and whose object is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// A Pod has left or shrunk: resizes that had to wait are looked at again.
    /// Source: k/k pkg/kubelet/allocation/allocation_manager.go RetryPendingResizes.
    pub(crate) fn room_made(&self) {
        self.0.lock().values().filter(|m| m.wants_room.load(Ordering::Relaxed)).for_each(|m| m.kick());
    }

    /// Ends a Pod for a reason of the node's.
    pub(crate) fn end(&self, uid: &str, request: EndRequest) {
        if let Some(m) = self.get(uid) {
            m.end(request);
        }
    }

    /// Whether a reason of the node's ends the Pod already.
    pub(crate) fn is_condemned(&self, uid: &str) -> bool {
        self.get(uid).is_some_and(|m| m.end_request().verdict.is_some())
    }

    /// Whether the Pod is on its way out.
    pub(crate) fn is_ending(&self, uid: &str) -> bool {
        self.get(uid).is_some_and(|m| m.ending.is_cancelled())
    }

    /// Whether no worker knows the Pod any more.
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        self.get(uid).is_none()
    }

    /// Whether nothing of the Pod is left to do here.
    pub(crate) fn is_cleaned(&self, uid: &str) -> bool {
        self.get(uid).is_none_or(|m| m.is_finished())
    }

    /// Something happened to a Pod.
    pub(crate) fn kick(&self, uid: &str) {
        if let Some(m) = self.get(uid) {
            m.kick();
        }
    }

    /// An event came with the status of a container that has just started.
    pub(crate) fn started(&self, uid: &str, status: &podlab_cri::v1::ContainerStatus) {
        if let Some(m) = self.get(uid) {
            m.started(status.clone());
        }
    }

    /// The runtime reports a state; false when no worker has this UID.
    pub(crate) fn runtime_event(&self, uid: &str, id: &str, state: RuntimeState) -> bool {
        match self.get(uid) {
            Some(m) => {
                m.runtime_event(id, state);
                true
            }
            None => false,
        }
    }
}

/// Whether more than the status changed.
fn differs(a: &Pod, b: &Pod) -> bool {
    let (m, n) = (&a.metadata, &b.metadata);
    a.spec != b.spec
        || m.labels != n.labels
        || m.annotations != n.annotations
        || m.deletion_timestamp != n.deletion_timestamp
        || m.deletion_grace_period_seconds != n.deletion_grace_period_seconds
}

fn gate_states(pod: Option<&Pod>) -> Vec<(String, String)> {
    let Some(pod) = pod else { return Vec::new() };
    let gates = spec::pod_spec(pod).readiness_gates.iter().flatten();
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    gates
        .map(|g| {
            let state = conditions.iter().find(|c| c.type_ == g.condition_type).map(|c| c.status.clone());
            (g.condition_type.clone(), state.unwrap_or_default())
        })
        .collect()
}
