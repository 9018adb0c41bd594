//! Preemption: which Pods of lower priority would have to go. Pure. Source: k/k pkg/scheduler/framework/preemption.

use std::sync::Arc;

use podlab_api::{matching::selects, policy::PodDisruptionBudget};
use podlab_mutant::{self as mutant, Mutant};

use crate::{
    cache::{Cache, NodeInfo},
    filter::{Prepared, Rejection, View, filter},
    message,
    pod_info::PodInfo,
};

/// What preemption came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Evict these on this node.
    Evict {
        /// The node.
        node: String,
        /// The victims, most important first.
        victims: Vec<Arc<PodInfo>>,
    },
    /// Nothing; what to say about it.
    Nothing(String),
}

struct Candidate {
    node: String,
    victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

/// Looks for victims. `rejections` says why each node was refused.
pub(crate) fn preempt(
    pod: &PodInfo,
    rejections: &[(&NodeInfo, Rejection)],
    view: &View<'_>,
    budgets: &[Arc<PodDisruptionBudget>],
) -> Outcome {
    let spec = pod.pod.spec.as_ref();
    if spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        return Outcome::Nothing(message::not_eligible("preemptionPolicy=Never"));
    }
    if let Some(nominated) = pod.nominated_node().and_then(|n| view.cache.node(n))
        && nominated.pods.values().any(|p| p.is_deleting() && p.priority < pod.priority)
    {
        return Outcome::Nothing(message::not_eligible("a terminating pod on the nominated node"));
    }
    let total = rejections.len();
    let helpful = rejections.iter().filter(|(_, r)| r.preemptible);
    let (mut candidates, mut no_victims) = (Vec::new(), 0);
    for (node, _) in helpful {
        match victims(pod, node, view, budgets) {
            Some(candidate) => candidates.push(candidate),
            None => no_victims += 1,
        }
    }
    if mutant::is(Mutant::PreemptsNobody) {
        candidates.clear();
    }
    let best = candidates.into_iter().min_by_key(|c| {
        let highest = c.victims.iter().map(|v| v.priority).max().unwrap_or(i32::MIN);
        let sum: i64 = c.victims.iter().map(|v| i64::from(v.priority) + (1 << 31)).sum();
        (c.violations, highest, sum, c.victims.len(), c.node.clone())
    });
    match best {
        Some(c) => Outcome::Evict { node: c.node, victims: c.victims },
        None => Outcome::Nothing(message::no_preemption(total, total - no_victims, no_victims)),
    }
}

/// The smallest set on one node: all of lower priority go, then as many as possible stay, the important ones first.
fn victims(pod: &PodInfo, node: &NodeInfo, view: &View<'_>, budgets: &[Arc<PodDisruptionBudget>]) -> Option<Candidate> {
    let mut lower: Vec<Arc<PodInfo>> = node.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    let mut cache = view.cache.clone();
    for p in &lower {
        cache.remove_pod(&p.key);
    }
    fits(pod, &node.name, &cache, view).then_some(())?;
    let started = |p: &PodInfo| p.pod.status.as_ref().and_then(|s| s.start_time.clone()).map(|t| t.0);
    lower.sort_by_key(|p| (std::cmp::Reverse(p.priority), started(p)));
    let (violating, free): (Vec<_>, Vec<_>) = lower.into_iter().partition(|p| violates(p, budgets));
    let (mut gone, mut violations) = (Vec::new(), 0);
    for (p, counts) in violating.into_iter().map(|p| (p, 1)).chain(free.into_iter().map(|p| (p, 0))) {
        cache.assume(p.clone(), &node.name);
        if !fits(pod, &node.name, &cache, view) {
            cache.remove_pod(&p.key);
            violations += counts;
            gone.push(p);
        }
    }
    gone.sort_by_key(|p| (std::cmp::Reverse(p.priority), started(p)));
    Some(Candidate { node: node.name.clone(), victims: gone, violations })
}

fn fits(pod: &PodInfo, node: &str, cache: &Cache, view: &View<'_>) -> bool {
    let view = View { cache, namespaces: view.namespaces, volumes: view.volumes };
    cache.node(node).is_some_and(|n| filter(&Prepared::new(pod, &view), n, &view).is_ok())
}

/// Whether evicting the Pod would break a budget.
fn violates(pod: &PodInfo, budgets: &[Arc<PodDisruptionBudget>]) -> bool {
    budgets.iter().any(|b| {
        let selector = b.spec.as_ref().and_then(|s| s.selector.as_ref());
        b.metadata.namespace.as_deref() == Some(pod.namespace())
            && selector.is_some_and(|s| selects(s, &pod.labels()))
            && b.status.as_ref().is_none_or(|s| s.disruptions_allowed.unwrap_or(0) <= 0)
    })
}
