//! Scores: how good is a feasible node, 0 to 100 per plugin, weighted and summed. Integer arithmetic as upstream's.
//! Source: k/k pkg/scheduler/framework/plugins/{noderesources,tainttoleration,nodeaffinity,imagelocality}.

mod affinity;

use std::collections::BTreeMap;

use podlab_api::matching::{term_matches, tolerates};

use crate::{
    cache::NodeInfo,
    filter::{View, spread::matching_pods},
    pod_info::PodInfo,
};

const MAX: i64 = 100;

/// Total score per node.
pub(crate) fn total(pod: &PodInfo, nodes: &[&NodeInfo], view: &View<'_>) -> BTreeMap<String, i64> {
    let raw = |f: &dyn Fn(&NodeInfo) -> i64| nodes.iter().map(|n| f(n)).collect::<Vec<i64>>();
    let parts: [(i64, Vec<i64>); 7] = [
        (3, reverse(raw(&|n| untolerated_preferences(pod, n)))),
        (2, to_max(raw(&|n| preferred_affinity(pod, n)))),
        (1, raw(&|n| least_allocated(pod, n))),
        (2, spread(pod, nodes, view)),
        (2, to_range(affinity::raw(pod, nodes, view))),
        (1, raw(&|n| balanced(pod, n))),
        (1, raw(&|n| images(pod, n, nodes))),
    ];
    let sum = |i: usize| parts.iter().map(|(weight, scores)| weight * scores[i]).sum();
    nodes.iter().enumerate().map(|(i, n)| (n.name.clone(), sum(i))).collect()
}

/// 100 for the largest, in proportion for the rest.
fn to_max(raw: Vec<i64>) -> Vec<i64> {
    let max = raw.iter().copied().max().unwrap_or(0);
    if max == 0 { raw } else { raw.into_iter().map(|s| MAX * s / max).collect() }
}

/// 100 for none, in proportion downwards.
fn reverse(raw: Vec<i64>) -> Vec<i64> {
    let max = raw.iter().copied().max().unwrap_or(0);
    raw.into_iter().map(|s| if max == 0 { MAX } else { MAX - MAX * s / max }).collect()
}

/// 0 for the smallest, 100 for the largest; 0 for all when they are equal.
fn to_range(raw: Vec<i64>) -> Vec<i64> {
    let (min, max) = (raw.iter().copied().min().unwrap_or(0), raw.iter().copied().max().unwrap_or(0));
    raw.into_iter().map(|s| if max == min { 0 } else { MAX * (s - min) / (max - min) }).collect()
}

fn untolerated_preferences(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let tolerations = pod.pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or(&[]);
    let taints = node.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or(&[]);
    let bad = taints.iter().filter(|t| t.effect == "PreferNoSchedule" && !tolerations.iter().any(|x| tolerates(x, t)));
    i64::try_from(bad.count()).unwrap_or(0)
}

fn preferred_affinity(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let affinity = pod.pod.spec.as_ref().and_then(|s| s.affinity.as_ref()?.node_affinity.as_ref());
    let preferred =
        affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref()).unwrap_or(&[]);
    let Some(object) = &node.node else { return 0 };
    preferred.iter().filter(|p| term_matches(&p.preference, object)).map(|p| i64::from(p.weight)).sum()
}

fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free = |key: &str, used: i64| {
        let allocatable = node.allocatable.get(key).copied().unwrap_or(0);
        (allocatable > 0).then(|| {
            if used > allocatable { 0 } else { (i128::from(allocatable - used) * 100 / i128::from(allocatable)) as i64 }
        })
    };
    let parts: Vec<i64> = [free("cpu", node.nonzero.0 + pod.nonzero.0), free("memory", node.nonzero.1 + pod.nonzero.1)]
        .into_iter()
        .flatten()
        .collect();
    if parts.is_empty() { 0 } else { parts.iter().sum::<i64>() / i64::try_from(parts.len()).unwrap_or(1) }
}

/// How much more even CPU and memory use becomes with the Pod; nothing for a Pod without requests.
fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let asks = |key: &str| pod.requests.get(key).copied().unwrap_or(0);
    if asks("cpu") == 0 && asks("memory") == 0 {
        return 0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a score of 0 to 100 needs no more than a double's precision")]
    let even = |with: i64| {
        let fractions: Vec<f64> = ["cpu", "memory"]
            .iter()
            .filter_map(|key| {
                let allocatable = node.allocatable.get(*key).copied().filter(|a| *a > 0)?;
                let used = node.requested.get(*key).copied().unwrap_or(0) + with * asks(key);
                Some((used as f64 / allocatable as f64).min(1.0))
            })
            .collect();
        let std = if let [a, b] = fractions[..] { (a - b).abs() / 2.0 } else { 0.0 };
        ((1.0 - std) * 100.0) as i64
    };
    50 + (50 + even(1) - even(0)) / 2
}

/// Images present already, weighed by how many nodes have them.
fn images(pod: &PodInfo, node: &NodeInfo, nodes: &[&NodeInfo]) -> i64 {
    const MIN: i64 = 23 << 20;
    const PER_CONTAINER: i64 = 1000 << 20;
    let normal = |name: &str| {
        let last = name.rsplit('/').next().unwrap_or(name);
        if last.contains(':') || last.contains('@') { name.to_owned() } else { format!("{name}:latest") }
    };
    let size = |n: &NodeInfo, image: &str| {
        let list = n.node.as_ref().and_then(|o| o.status.as_ref()?.images.as_deref()).unwrap_or(&[]);
        list.iter().find(|i| i.names.iter().flatten().any(|name| name == image)).map(|i| i.size_bytes.unwrap_or(0))
    };
    let spec = pod.pod.spec.as_ref();
    let containers: Vec<_> =
        spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers)).collect();
    let all = i64::try_from(nodes.len()).unwrap_or(1).max(1);
    let sum: i64 = containers
        .iter()
        .filter_map(|c| {
            let image = normal(c.image.as_deref().unwrap_or_default());
            let bytes = size(node, &image)?;
            let having = i64::try_from(nodes.iter().filter(|n| size(n, &image).is_some()).count()).unwrap_or(0);
            Some(bytes * having / all)
        })
        .sum();
    let max = PER_CONTAINER * i64::try_from(containers.len()).unwrap_or(1);
    if max <= MIN { 0 } else { MAX * (sum.clamp(MIN, max) - MIN) / (max - MIN) }
}

/// Preferred topology spread (`ScheduleAnyway`); 100 for all when the Pod has none.
fn spread(pod: &PodInfo, nodes: &[&NodeInfo], view: &View<'_>) -> Vec<i64> {
    let all = pod.pod.spec.as_ref().and_then(|s| s.topology_spread_constraints.as_deref()).unwrap_or(&[]);
    let preferred: Vec<_> = all.iter().filter(|c| c.when_unsatisfiable == "ScheduleAnyway").collect();
    if preferred.is_empty() {
        return vec![MAX; nodes.len()];
    }
    let mut raw = vec![0.0; nodes.len()];
    for c in preferred {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in view.cache.nodes() {
            if let Some(domain) = node.labels().get(&c.topology_key) {
                *counts.entry(domain.clone()).or_default() += matching_pods(c, pod, node);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of Pods and domains are small")]
        for (score, node) in raw.iter_mut().zip(nodes) {
            let here = node.labels().get(&c.topology_key).and_then(|d| counts.get(d)).copied().unwrap_or(0);
            *score += here as f64 * (counts.len() as f64 + 2.0).ln() + f64::from(c.max_skew - 1);
        }
    }
    let rounded: Vec<i64> = raw.into_iter().map(|s| s.round() as i64).collect();
    let (min, max) = (rounded.iter().copied().min().unwrap_or(0), rounded.iter().copied().max().unwrap_or(0));
    rounded.into_iter().map(|s| if max == 0 { MAX } else { MAX * (max + min - s) / max }).collect()
}
