//! Looks at every state of every Pod: what must never be seen, however often who reports it is killed.

use std::collections::BTreeMap;

use podlab_api::core::{ContainerStatus, Pod};
use podlab_client::{Client, ListOptions, reflector::reflector};
use podlab_clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::pods;

/// What was seen last of a Pod.
#[derive(Debug, Default)]
struct Seen {
    phase: String,
    /// By container: restarts and id.
    containers: BTreeMap<String, (i32, Option<String>)>,
}

/// Follows all Pods until `shutdown`; what was wrong.
pub(super) async fn run(client: Client, clock: Clock, shutdown: CancellationToken) -> Vec<String> {
    let (reflector, _cache, mut deltas) =
        reflector::<Pod>(&client, Some("default"), ListOptions::default(), clock, 1024);
    let follow = reflector.run(shutdown.clone());
    let look = async {
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        let mut wrong = Vec::new();
        while let Some(delta) = deltas.recv().await {
            let pod = delta.object();
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            check(pod, seen.entry(uid).or_default(), &mut wrong);
        }
        wrong
    };
    tokio::join!(follow, look).1
}

fn check(pod: &Pod, seen: &mut Seen, wrong: &mut Vec<String>) {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let phase = pods::phase(pod);
    if matches!(seen.phase.as_str(), "Succeeded" | "Failed") && seen.phase != phase {
        wrong.push(format!("{name}: was {} and is {phase}", seen.phase));
    }
    phase.clone_into(&mut seen.phase);
    let status = pod.status.as_ref();
    let statuses = |of: fn(&podlab_api::core::PodStatus) -> &Option<Vec<ContainerStatus>>| {
        status.and_then(|s| of(s).as_deref()).unwrap_or(&[])
    };
    for c in statuses(|s| &s.container_statuses).iter().chain(statuses(|s| &s.init_container_statuses)) {
        let id = c.container_id.clone().filter(|id| !id.is_empty());
        let (restarts, before) = seen.containers.entry(c.name.clone()).or_insert((c.restart_count, None));
        if c.restart_count < *restarts {
            wrong.push(format!("{name}/{}: had {restarts} restarts and has {}", c.name, c.restart_count));
        }
        if let (Some(before), Some(id)) = (&before, &id)
            && before != id
            && c.restart_count == *restarts
        {
            wrong.push(format!("{name}/{}: another container, {before} then {id}, and no restart more", c.name));
        }
        *restarts = c.restart_count;
        if id.is_some() {
            *before = id;
        }
    }
}
