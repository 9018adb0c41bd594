//! One scheduling cycle: a Pod and a snapshot in, a decision out. Pure. Source: k/k pkg/scheduler/schedule_one.go.

use std::{collections::BTreeSet, sync::Arc};

use podlab_api::policy::PodDisruptionBudget;
use podlab_clock::Rng;

use crate::{
    cache::NodeInfo,
    filter::{Prepared, Rejection, View, filter},
    message,
    pod_info::PodInfo,
    preemption::{self, Outcome},
    queue::ClusterEvent,
    score,
    volumes::ClaimPlan,
};

/// What a cycle came to.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Bind to this node, after doing this for its claims.
    Bind {
        /// The node.
        node: String,
        /// Claims to settle first.
        claims: Vec<ClaimPlan>,
    },
    /// No node. Wait for one of `wants`.
    Unschedulable {
        /// Message of event and condition.
        message: String,
        /// What may change it.
        wants: BTreeSet<ClusterEvent>,
        /// Evict these first, on this node.
        preempt: Option<(String, Vec<Arc<PodInfo>>)>,
    },
}

/// Decides where a Pod goes. Ties are broken by `rng`.
pub(crate) fn schedule_one(
    pod: &PodInfo,
    view: &View<'_>,
    budgets: &[Arc<PodDisruptionBudget>],
    rng: &Rng,
) -> Decision {
    let nodes: Vec<&NodeInfo> = view.cache.nodes().collect();
    if nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return Decision::Unschedulable { message, wants: BTreeSet::from([ClusterEvent::NodeAdd]), preempt: None };
    }
    if let Err(why) = view.volumes.prefilter(pod) {
        // Rejected before any node was looked at, preemption finds no node statuses and says just this.
        let message = message::failed(nodes.len(), &why, "not found");
        return Decision::Unschedulable { message, wants: BTreeSet::from([ClusterEvent::Storage]), preempt: None };
    }
    let prepared = Prepared::new(pod, view);
    // A node nominated by an earlier preemption is taken if it fits now.
    if let Some(node) = pod.nominated_node().and_then(|n| view.cache.node(n))
        && filter(&prepared, node, view).is_ok()
    {
        return bind(pod, node, view);
    }
    let (mut feasible, mut rejections): (Vec<&NodeInfo>, Vec<(&NodeInfo, Rejection)>) = (Vec::new(), Vec::new());
    for node in nodes {
        match filter(&prepared, node, view) {
            Ok(()) => feasible.push(node),
            Err(rejection) => rejections.push((node, rejection)),
        }
    }
    match feasible[..] {
        [] => unschedulable(pod, &rejections, view, budgets),
        [only] => bind(pod, only, view),
        _ => bind(pod, best(pod, &feasible, view, rng), view),
    }
}

fn best<'a>(pod: &PodInfo, feasible: &[&'a NodeInfo], view: &View<'_>, rng: &Rng) -> &'a NodeInfo {
    let scores = score::total(pod, feasible, view);
    let top = scores.values().copied().max().unwrap_or(0);
    let ties: Vec<&&NodeInfo> = feasible.iter().filter(|n| scores.get(&n.name) == Some(&top)).collect();
    let pick = usize::try_from(rng.below(u64::try_from(ties.len()).unwrap_or(1))).unwrap_or(0);
    ties.get(pick).copied().copied().unwrap_or(feasible[0])
}

fn bind(pod: &PodInfo, node: &NodeInfo, view: &View<'_>) -> Decision {
    Decision::Bind { node: node.name.clone(), claims: view.volumes.plan(pod, node).unwrap_or_default() }
}

fn unschedulable(
    pod: &PodInfo,
    rejections: &[(&NodeInfo, Rejection)],
    view: &View<'_>,
    budgets: &[Arc<PodDisruptionBudget>],
) -> Decision {
    let why = message::histogram(rejections.iter().flat_map(|(_, r)| r.reasons.iter().map(String::as_str)));
    let mut wants: BTreeSet<ClusterEvent> = rejections.iter().flat_map(|(_, r)| r.wants.iter().copied()).collect();
    let (post, preempt) = match preemption::preempt(pod, rejections, view, budgets) {
        Outcome::Nothing(post) => (post, None),
        Outcome::Evict { node, victims } => {
            wants.insert(ClusterEvent::PodDelete);
            (String::new(), Some((node, victims)))
        }
    };
    Decision::Unschedulable { message: message::failed(rejections.len(), &why, &post), wants, preempt }
}
