//! The monitor `overcommit`: at no moment do the Pods a node has taken ask for more than it has to give.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use podlab_api::{Object, parse_milli};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::watch::{Seen, Watcher};

/// What is counted, in thousandths.
const RESOURCES: [&str; 3] = ["cpu", "memory", "pods"];

/// What each node has to give.
type Room = BTreeMap<String, [i128; 3]>;

/// The monitor. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Overcommit {
    said: Arc<Mutex<Option<String>>>,
    told: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

impl Overcommit {
    /// Looks at every state from now on.
    pub(crate) fn watch(&self, watcher: &Watcher, nodes: &[Arc<Object>]) {
        let room: Room = nodes.iter().map(|n| (n.name().to_owned(), allocatable(n))).collect();
        let said = self.said.clone();
        let told = watcher.first(move |seen| {
            let found = over(seen, &room);
            let is_over = found.is_some();
            if is_over {
                *said.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            is_over
        });
        // Who lets go of the receiver is no longer told.
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    /// What it saw, if anything.
    pub(crate) fn said(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn amount(value: Option<&Value>) -> i128 {
    value.and_then(Value::as_str).and_then(|s| parse_milli(s).ok()).unwrap_or(0)
}

fn allocatable(node: &Object) -> [i128; 3] {
    RESOURCES.map(|r| match node.at(&["status", "allocatable", r]) {
        // A node that does not say is not overcommitted.
        None => i128::MAX,
        value => amount(value),
    })
}

/// What the containers of a Pod ask for together; what init containers ask for beyond that comes and goes.
fn requests(pod: &Object) -> [i128; 3] {
    let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array);
    let sum = |r: &str| containers.into_iter().flatten().map(|c| amount(c["resources"]["requests"].get(r))).sum();
    [sum("cpu"), sum("memory"), 1000]
}

/// A node that has taken more than it has. A Pod counts from when the node has taken it (it has a start time) until it has
/// ended.
fn over(seen: &Seen, room: &Room) -> Option<String> {
    let mut taken: Room = BTreeMap::new();
    for pod in seen.pods.values() {
        let at = |path: &[&str]| pod.str_at(path);
        let (Some(node), Some(_)) = (at(&["spec", "nodeName"]), at(&["status", "startTime"])) else { continue };
        if matches!(at(&["status", "phase"]), Some("Succeeded" | "Failed")) {
            continue;
        }
        let sum = taken.entry(node.to_owned()).or_default();
        for (all, one) in sum.iter_mut().zip(requests(pod)) {
            *all += one;
        }
    }
    taken.iter().find_map(|(node, sum)| {
        let has = room.get(node)?;
        let i = (0..RESOURCES.len()).find(|i| sum[*i] > has[*i])?;
        Some(format!("{node} has taken {} m of {} and has {} m", sum[i], RESOURCES[i], has[i]))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(pods: &[(&str, &str)]) -> Seen {
        let mut seen = Seen::default();
        for (i, (cpu, phase)) in pods.iter().enumerate() {
            let pod = json!({"metadata": {"name": i.to_string()}, "spec": {"nodeName": "n", "containers": [
                {"resources": {"requests": {"cpu": cpu}}}]}, "status": {"phase": phase, "startTime": "x"}});
            seen.pods.insert(i.to_string(), Arc::new(Object(pod)));
        }
        seen
    }

    #[test]
    fn pods_that_ask_for_more_than_the_node_has_are_found_and_ended_ones_do_not_count() {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "pods": "3"}}});
        let room = BTreeMap::from([("n".to_owned(), allocatable(&Object(node)))]);
        assert_eq!(over(&seen(&[("1500m", "Running"), ("500m", "Pending")]), &room), None);
        assert_eq!(over(&seen(&[("1500m", "Running"), ("1", "Failed")]), &room), None);
        assert!(over(&seen(&[("1500m", "Running"), ("501m", "Pending")]), &room).unwrap().contains("cpu"));
        let four = [("0", "Running"); 4];
        assert!(over(&seen(&four), &room).unwrap().contains("pods"));
    }
}
