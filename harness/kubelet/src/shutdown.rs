//! Graceful shutdown of the node: when the machine says it will go down, Pods end in the order of their priority, each
//! group with its own grace, and no new one is let in.
//!
//! ```text
//! announced ─► node not ready, new Pods rejected ─► lowest group ends ─► … ─► highest group ends
//!     └─ taken back ─► everything as before; what has ended stays ended
//! ```
//! Source: k/k pkg/kubelet/nodeshutdown/nodeshutdown_manager{,_linux}.go. Where upstream asks logind over D-Bus, this reads
//! the file in which systemd-logind keeps a scheduled shutdown.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use podlab_api::core::Pod;
use podlab_lifecycle::{spec, status::Verdict};

use crate::{agent::Agent, config::ShutdownGroup, pods::EndRequest};

/// There while a shutdown is scheduled.
pub(crate) const SCHEDULED: &str = "/run/systemd/shutdown/scheduled";
/// How often the file is looked for.
const PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked whether a group has ended.
const POLL: Duration = Duration::from_millis(100);
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Waits for a shutdown until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    if agent.config.shutdown.is_empty() {
        return;
    }
    let token = agent.shutdown.clone();
    let _ = token
        .run_until_cancelled(async {
            let mut leaving = false;
            loop {
                let announced = agent.host.stat(Path::new(SCHEDULED)).is_ok();
                if announced && !leaving {
                    leaving = true;
                    set_leaving(&agent, true);
                    agent.say.node("Shutdown", "Shutdown manager detected shutdown event");
                    end_all(&agent).await;
                } else if !announced && leaving {
                    leaving = false;
                    set_leaving(&agent, false);
                    agent.say.node("Shutdown", "Shutdown manager detected shutdown cancellation");
                }
                agent.clock.sleep(PERIOD).await;
            }
        })
        .await;
}

fn set_leaving(agent: &Agent, on: bool) {
    agent.leaving.store(on, Ordering::Release);
    // The node's status is written at once, not at its next turn.
    agent.pressure.send_modify(|_| {});
}

/// Pods by group, lowest priority first; one below all groups belongs to the first.
pub(crate) fn groups(groups: &[ShutdownGroup], pods: Vec<Arc<Pod>>) -> Vec<(ShutdownGroup, Vec<Arc<Pod>>)> {
    let mut out: Vec<(ShutdownGroup, Vec<Arc<Pod>>)> = groups.iter().map(|g| (*g, Vec::new())).collect();
    out.sort_by_key(|(g, _)| g.priority);
    for pod in pods {
        let priority = spec::pod_spec(&pod).priority.unwrap_or(0);
        let index = out.iter().rposition(|(g, _)| g.priority <= priority).unwrap_or(0);
        if let Some((_, list)) = out.get_mut(index) {
            list.push(pod);
        }
    }
    out
}

async fn end_all(agent: &Agent) {
    for (group, pods) in groups(&agent.config.shutdown, agent.workers.active()) {
        let until = agent.clock.now().after(group.grace);
        let uids: Vec<String> = pods.iter().filter_map(|p| p.metadata.uid.clone()).collect();
        for (pod, uid) in pods.iter().zip(&uids) {
            let own = spec::pod_spec(pod).termination_grace_period_seconds.unwrap_or(30);
            let most = i64::try_from(group.grace.as_secs()).unwrap_or(i64::MAX);
            let verdict = Verdict {
                reason: "Terminated".to_owned(),
                message: MESSAGE.to_owned(),
                disruption: Some(MESSAGE.to_owned()),
            };
            agent.workers.end(uid, EndRequest { grace: Some(own.min(most)), verdict: Some(verdict) });
        }
        while agent.clock.now() < until && !uids.iter().all(|u| agent.workers.is_cleaned(u)) {
            agent.clock.sleep(POLL).await;
        }
        if !uids.iter().all(|u| agent.workers.is_cleaned(u)) {
            tracing::warn!(priority = group.priority, "not all Pods of the group ended in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use podlab_api::core::PodSpec;

    use super::*;

    #[test]
    fn a_pod_belongs_to_the_highest_group_it_reaches() {
        let g = |priority, s| ShutdownGroup { priority, grace: Duration::from_secs(s) };
        let pod = |priority| Arc::new(Pod { spec: Some(PodSpec { priority, ..PodSpec::default() }), ..Pod::default() });
        let pods = vec![pod(Some(-5)), pod(None), pod(Some(999)), pod(Some(1000)), pod(Some(i32::MAX))];
        let got = groups(&[g(1000, 1), g(0, 2), g(100_000, 3)], pods);
        let sizes: Vec<_> = got.iter().map(|(g, l)| (g.priority, l.len())).collect();
        assert_eq!(sizes, [(0, 3), (1000, 1), (100_000, 1)]);
    }
}
