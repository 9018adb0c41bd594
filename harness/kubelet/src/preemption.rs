//! Room for a critical Pod that does not fit: others on the node are ended for it, as few and as cheap as possible.
//! Source: k/k pkg/kubelet/preemption/preemption.go.

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::core::Pod;
use podlab_lifecycle::{
    eviction::critical,
    qos::{self, QosClass},
    resources::pod_requests,
    spec,
    status::Verdict,
};

/// Of the victim, in its status and the event.
pub(crate) const REASON: &str = "Preempting";
/// What the victim is told.
pub(crate) const MESSAGE: &str = "Preempted in order to admit critical pod";

/// What its condition says.
const CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// What is missing, by resource; `pods` counts Pods.
type Missing = BTreeMap<String, i64>;

fn uses(pod: &Pod, key: &str) -> i64 {
    if key == "pods" { 1 } else { pod_requests(pod).get(key).copied().unwrap_or(0) }
}

/// What a Pod lacks beside those that are there; empty when it fits.
pub(crate) fn missing(pod: &Pod, active: &[Arc<Pod>], capacity: &BTreeMap<String, i64>) -> Missing {
    let mut wanted = pod_requests(pod);
    wanted.retain(|_, n| *n > 0);
    wanted.insert("pods".to_owned(), 1);
    let short = |(key, n): (String, i64)| {
        let used: i64 = active.iter().map(|p| uses(p, &key)).sum();
        let lack = used + n - capacity.get(&key).copied().unwrap_or(0);
        (lack > 0).then_some((key, lack))
    };
    wanted.into_iter().filter_map(short).collect()
}

fn less(missing: &Missing, pods: &[Arc<Pod>]) -> Missing {
    let rest = |(key, n): (&String, &i64)| {
        let left = n - pods.iter().map(|p| uses(p, key)).sum::<i64>();
        (left > 0).then(|| (key.clone(), left))
    };
    missing.iter().filter_map(rest).collect()
}

/// How far a Pod's end would leave what is missing from being there: 0 when it gives all of it.
fn distance(missing: &Missing, pod: &Pod) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a measure of closeness, as upstream computes it")]
    let one = |(key, n): (&String, &i64)| {
        let left = (n - uses(pod, key)).max(0) as f64 / *n as f64;
        left * left
    };
    missing.iter().map(one).sum()
}

/// Takes Pods until nothing is missing, each time the one that comes closest, the smaller of two alike.
fn nearest(mut pods: Vec<Arc<Pod>>, mut missing: Missing) -> Option<Vec<Arc<Pod>>> {
    let mut out = Vec::new();
    while !missing.is_empty() {
        let size = |p: &Pod| (uses(p, "memory"), uses(p, "cpu"));
        let best = (0..pods.len()).min_by(|a, b| {
            let by_distance = distance(&missing, &pods[*a]).total_cmp(&distance(&missing, &pods[*b]));
            by_distance.then_with(|| size(&pods[*a]).cmp(&size(&pods[*b])))
        })?;
        let pod = pods.remove(best);
        missing = less(&missing, std::slice::from_ref(&pod));
        out.push(pod);
    }
    Some(out)
}

/// Whom to end so that a critical Pod fits; `None` when that cannot be brought about. Those that ask for least go
/// before those that are guaranteed what they have.
pub(crate) fn victims(pod: &Pod, active: &[Arc<Pod>], missing: &Missing) -> Option<Vec<Arc<Pod>>> {
    let priority = |p: &Pod| spec::pod_spec(p).priority.unwrap_or(0);
    let may = |p: &&Arc<Pod>| (critical(pod) && !critical(p)) || priority(p) < priority(pod);
    let of = |class: QosClass| -> Vec<Arc<Pod>> {
        active.iter().filter(may).filter(|p| qos::of(p) == class).cloned().collect()
    };
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let all = [best_effort.clone(), burstable.clone(), guaranteed.clone()].concat();
    if !less(missing, &all).is_empty() {
        return None;
    }
    let cheap = [best_effort.clone(), burstable.clone()].concat();
    let from_guaranteed = nearest(guaranteed, less(missing, &cheap))?;
    let others = [best_effort.clone(), from_guaranteed.clone()].concat();
    let from_burstable = nearest(burstable, less(missing, &others))?;
    let chosen = [from_burstable.clone(), from_guaranteed.clone()].concat();
    let from_best_effort = nearest(best_effort, less(missing, &chosen))?;
    Some([from_best_effort, from_burstable, from_guaranteed].concat())
}

/// What a victim's status says.
pub(crate) fn verdict() -> Verdict {
    Verdict { reason: REASON.to_owned(), message: MESSAGE.to_owned(), disruption: Some(CONDITION.to_owned()) }
}

#[cfg(test)]
mod tests {
    use podlab_api::Object;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, priority: i32, cpu: &str, guaranteed: bool) -> Arc<Pod> {
        let mut resources = json!({"requests": {"cpu": cpu, "memory": "1Mi"}});
        if guaranteed {
            resources["limits"] = resources["requests"].clone();
        }
        if cpu == "0" {
            resources = json!({});
        }
        let tree = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]}});
        Arc::new(Object(tree).to_typed().unwrap())
    }

    fn chosen(pod: &Pod, active: &[Arc<Pod>], cpu: i64, pods: i64) -> Option<Vec<String>> {
        let capacity = [("cpu".to_owned(), cpu), ("memory".to_owned(), 1 << 30), ("pods".to_owned(), pods)].into();
        let lack = missing(pod, active, &capacity);
        let found = victims(pod, active, &lack)?;
        Some(found.iter().map(|p| p.metadata.name.clone().unwrap()).collect())
    }

    #[test]
    fn the_nearest_of_the_cheapest_class_go_and_no_more_than_needed() {
        let system = pod("system", 2_000_000_000, "500m", false);
        let active = [
            pod("best-effort", 0, "0", false),
            pod("small", 0, "300m", false),
            pod("fitting", 0, "600m", false),
            pod("guaranteed", 0, "900m", true),
        ];
        assert_eq!(chosen(&system, &active, 1800, 10).unwrap(), ["fitting"]);
        assert_eq!(
            chosen(&system, &active, 1100, 10).unwrap(),
            ["guaranteed", "small"].map(str::to_owned).into_iter().rev().collect::<Vec<_>>()
        );
        assert_eq!(chosen(&system, &active, 10_000, 4).unwrap(), ["best-effort"], "only a place was missing");
        assert_eq!(chosen(&system, &active, 10_000, 10).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_critical_pod_takes_nothing_from_another_of_its_rank() {
        let system = pod("system", 2_000_000_000, "500m", false);
        let other = pod("other", 2_000_000_000, "900m", false);
        assert_eq!(chosen(&system, &[other], 1000, 10), None);
        let lower = pod("lower", 1_999_999_999, "900m", false);
        assert_eq!(chosen(&system, &[lower], 1000, 10).unwrap(), ["lower"]);
    }
}
