//! The eviction manager: looks at the node every ten seconds, reclaims what it can, and ends one Pod when that is not
//! enough. Decisions are [`podlab_lifecycle::eviction`]'s.
//! Source: k/k pkg/kubelet/eviction/eviction_manager.go synchronize.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podlab_api::core::Pod;
use podlab_lifecycle::{
    eviction::{self, CLEANUP_TIMEOUT, PodUsage, Pressure, Signal, State, Threshold},
    qos::{self, QosClass},
    resources::pod_limits,
    spec,
    status::Verdict,
};

use crate::{admission, agent::Agent, garbage, images, pods::EndRequest, usage};

/// How often it is looked whether an evicted Pod is gone.
const CLEANUP_POLL: Duration = Duration::from_secs(1);

/// Keeps looking until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    let e = &agent.config.eviction;
    if e.thresholds.is_empty() && !e.local_storage {
        return;
    }
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            let mut state = State::default();
            loop {
                let evicted = look(&agent, &mut state).await;
                if evicted.is_empty() {
                    agent.clock.sleep(eviction::PERIOD).await;
                } else {
                    cleaned(&agent, &evicted).await;
                }
            }
        })
        .await;
}

/// Waits until evicted Pods have left the node, for a while.
async fn cleaned(agent: &Agent, evicted: &[Arc<Pod>]) {
    let end = agent.clock.now().after(CLEANUP_TIMEOUT);
    let gone = |p: &Arc<Pod>| agent.workers.is_cleaned(p.metadata.uid.as_deref().unwrap_or_default());
    while agent.clock.now() < end {
        agent.clock.sleep(CLEANUP_POLL).await;
        if evicted.iter().all(gone) {
            return;
        }
    }
}

/// One look; returns whom it evicted.
async fn look(agent: &Arc<Agent>, state: &mut State) -> Vec<Arc<Pod>> {
    let config = &agent.config.eviction;
    let node = usage::of_node(agent).await;
    let seen = usage::observations(agent, &node);
    let (next, act) = eviction::step(state, &config.thresholds, config.transition, &seen, agent.clock.wall());
    *state = next;
    agent.pressure.send_if_modified(|old| {
        let changed = *old != *state.conditions();
        old.clone_from(state.conditions());
        changed
    });
    let pods: Vec<Arc<Pod>> = agent.workers.active().into_iter().filter(|p| !condemned(agent, p)).collect();
    let limited = config.local_storage && pods.iter().any(|p| has_local_limits(p));
    if act.is_empty() && !limited {
        return Vec::new();
    }
    let all = measure(agent, &pods).await;
    if config.local_storage {
        let evicted = local_storage(agent, &pods, &all, node.dedicated_imagefs());
        if !evicted.is_empty() {
            return evicted;
        }
    }
    let Some(first) = act.first() else { return Vec::new() };
    let resource = first.signal.resource();
    agent.say.node_warn("EvictionThresholdMet", format!("Attempting to reclaim {resource}"));
    if reclaim(agent, first.signal, node.dedicated_imagefs()).await {
        return Vec::new();
    }
    evict_one(agent, first, &act, pods, &all, node.dedicated_imagefs(), &seen)
}

/// Whether a Pod is on its way out for a reason of the node's already.
fn condemned(agent: &Agent, pod: &Pod) -> bool {
    agent.workers.is_condemned(pod.metadata.uid.as_deref().unwrap_or_default())
}

async fn measure(agent: &Agent, pods: &[Arc<Pod>]) -> BTreeMap<String, PodUsage> {
    let stats = usage::sandboxes(agent).await;
    let one = |p: &Arc<Pod>| {
        let uid = p.metadata.uid.clone()?;
        let used = usage::of_pod(agent, p, stats.get(&uid))?;
        Some((uid, used))
    };
    pods.iter().filter_map(one).collect()
}

fn has_local_limits(pod: &Pod) -> bool {
    let sized = spec::pod_spec(pod).volumes.iter().flatten().any(|v| {
        v.empty_dir
            .as_ref()
            .is_some_and(|e| e.size_limit.is_some() && e.medium.as_deref().unwrap_or_default().is_empty())
    });
    sized || pod_limits(pod).contains_key("ephemeral-storage")
}

/// Evicts whoever uses more of the node's disk than its own limits allow.
fn local_storage(
    agent: &Agent,
    pods: &[Arc<Pod>],
    all: &BTreeMap<String, PodUsage>,
    dedicated_imagefs: bool,
) -> Vec<Arc<Pod>> {
    let mut evicted = Vec::new();
    for pod in pods {
        let Some(used) = pod.metadata.uid.as_ref().and_then(|u| all.get(u)) else { continue };
        if let Some(message) = eviction::local_storage(pod, used, dedicated_imagefs) {
            let verdict = Verdict { reason: "Evicted".to_owned(), message, disruption: None };
            if evict(agent, pod, eviction::IMMEDIATE_GRACE, verdict, BTreeMap::new()) {
                agent.metrics.evicted("local-storage");
                evicted.push(pod.clone());
            }
        }
    }
    evicted
}

/// Frees what belongs to no Pod; true when that was enough.
async fn reclaim(agent: &Arc<Agent>, signal: Signal, dedicated_imagefs: bool) -> bool {
    let image_side = matches!(
        signal,
        Signal::ImagefsAvailable
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsAvailable
            | Signal::ContainerfsInodesFree
    );
    if signal.pressure() != Pressure::Disk || (dedicated_imagefs && !image_side) {
        return false;
    }
    garbage::remove_dead_containers(agent, garbage::Keep::Nothing).await;
    images::remove_unused(agent).await;
    let node = usage::of_node(agent).await;
    eviction::met(&agent.config.eviction.thresholds, &usage::observations(agent, &node), true).is_empty()
}

fn evict_one(
    agent: &Agent,
    threshold: &Threshold,
    act: &[Threshold],
    mut pods: Vec<Arc<Pod>>,
    all: &BTreeMap<String, PodUsage>,
    dedicated_imagefs: bool,
    seen: &eviction::Observations,
) -> Vec<Arc<Pod>> {
    let used = |p: &Pod| p.metadata.uid.as_ref().and_then(|u| all.get(u));
    eviction::rank(&mut pods, threshold.signal, dedicated_imagefs, &used);
    for pod in pods {
        let (message, notes) = eviction::message(threshold.signal.resource(), &pod, used(&pod), act, seen);
        let grace = eviction::grace(threshold, agent.config.eviction.max_pod_grace);
        let disruption = Some(message.clone());
        let verdict = Verdict { reason: "Evicted".to_owned(), message, disruption };
        if evict(agent, &pod, grace, verdict, notes) {
            agent.metrics.evicted(threshold.signal.as_str());
            return vec![pod];
        }
    }
    tracing::warn!("nobody could be evicted");
    Vec::new()
}

/// Ends a Pod; false for one that must stay.
fn evict(agent: &Agent, pod: &Arc<Pod>, grace: i64, verdict: Verdict, notes: BTreeMap<String, String>) -> bool {
    if eviction::critical(pod) {
        return false;
    }
    agent.say.annotated_warn(pod, notes, "Evicted", verdict.message.clone());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    agent.workers.end(uid, EndRequest { grace: Some(grace), verdict: Some(verdict) });
    true
}

/// Whether a Pod may come to a node under pressure. Source: eviction_manager.go Admit.
pub(crate) fn admit(pod: &Pod, conditions: &BTreeSet<Pressure>) -> Result<(), Verdict> {
    if conditions.is_empty() || eviction::critical(pod) {
        return Ok(());
    }
    let memory_only = conditions.len() == 1 && conditions.contains(&Pressure::Memory);
    if memory_only
        && (qos::of(pod) != QosClass::BestEffort
            || admission::tolerates_no_schedule(pod, "node.kubernetes.io/memory-pressure"))
    {
        return Ok(());
    }
    let names: Vec<&str> = conditions.iter().map(|p| p.as_str()).collect();
    let message = format!("The node had condition: [{}]. ", names.join(" "));
    Err(Verdict { reason: "Evicted".to_owned(), message, disruption: None })
}
