//! Stopping containers: the event, preStop, whose turn it is, TERM and KILL.
//! Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use podlab_api::core::Pod;
use podlab_lifecycle::{actions::KillReason, spec, termination};
use podlab_mutant::{self as mutant, Mutant};
use podlab_timeline::{Outcome, PodKey};
use tokio::sync::watch;

use super::hooks;
use crate::agent::Agent;

/// A container to stop.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) id: String,
    pub(crate) name: String,
    /// Message of the Killing event; the usual one when `None`.
    pub(crate) message: Option<String>,
    /// Why, when its Pod goes on.
    pub(crate) reason: Option<KillReason>,
}

/// Who stops containers, of which Pod. A Pod nobody knows any more has no spec: no hooks, no events.
pub(crate) struct Kill<'a> {
    pub(crate) agent: &'a Arc<Agent>,
    pub(crate) pod: Option<&'a Arc<Pod>>,
    pub(crate) key: &'a PodKey,
}

impl Kill<'_> {
    /// Stops containers side by side, sidecars after whom they outlive. `grace` overrides what the spec says. Failures
    /// are logged: the caller reads the runtime afterwards and sees who is still there.
    pub(crate) async fn containers(&self, targets: &[Target], grace: Option<Duration>) {
        let names: Vec<String> = targets.iter().map(|t| t.name.clone()).collect();
        let order = self.pod.map(|p| termination::outlives(p, &names)).unwrap_or_default();
        let ended: BTreeMap<String, (watch::Sender<bool>, watch::Receiver<bool>)> =
            names.iter().map(|n| (n.clone(), watch::channel(false))).collect();
        let kills = targets.iter().map(|t| {
            let wait: Vec<watch::Receiver<bool>> = order
                .get(&t.name)
                .into_iter()
                .flatten()
                .filter_map(|n| ended.get(n).map(|(_, rx)| rx.clone()))
                .collect();
            let done = ended.get(&t.name).map(|(tx, _)| tx.clone());
            async move {
                self.one(t, grace, wait).await;
                if let Some(done) = done {
                    done.send_replace(true);
                }
            }
        });
        join_all(kills).await;
    }

    async fn one(&self, t: &Target, grace: Option<Duration>, wait: Vec<watch::Receiver<bool>>) {
        let agent = self.agent;
        let found = self.pod.and_then(|p| spec::find(p, &t.name));
        let own = self.pod.map_or(30, |p| termination::container_grace(p, found.as_ref().map(|(_, c)| c), t.reason));
        let grace = grace.unwrap_or_else(|| Duration::from_secs(u64::try_from(own).unwrap_or(0)));
        if let (Some(pod), Some((kind, _))) = (self.pod, &found) {
            let message = t.message.clone().unwrap_or_else(|| format!("Stopping container {}", t.name));
            agent.say.container(pod, *kind, &t.name, "Killing", message);
        }
        let began = agent.clock.now();
        if let (Some(pod), Some((kind, c))) = (self.pod, &found)
            && let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
            && !grace.is_zero()
            && !mutant::is(Mutant::PreStopIsSkipped)
        {
            let ip = agent.status.get(&self.key.uid).and_then(|s| s.pod_ip).unwrap_or_default();
            let start = agent.recorder.now();
            let result = agent.clock.timeout(grace, hooks::run(agent, pod, c, &t.id, &ip, hook)).await;
            let outcome = match &result {
                Some(Ok(())) => Outcome::Ok,
                Some(Err(e)) => Outcome::Error(e.clone()),
                None => Outcome::Error("grace period ended".to_owned()),
            };
            agent.recorder.call(Some(self.key), "PreStop", &t.name, start, outcome);
            if !matches!(result, Some(Ok(()))) {
                agent.say.container_warn(pod, *kind, &t.name, "FailedPreStopHook", "PreStopHook failed");
            }
        }
        let left = grace.saturating_sub(agent.clock.now().since(began));
        if !wait.is_empty() && !left.is_zero() {
            let turns = join_all(wait.into_iter().map(|mut rx| async move {
                // A sender that is gone has stopped its container.
                let _ = rx.wait_for(|done| *done).await;
            }));
            let _ = agent.clock.timeout(left, turns).await;
        }
        let timeout = termination::stop_timeout(grace, agent.clock.now().since(began));
        let start = agent.recorder.now();
        let stopped = agent.runtime.stop_container(&t.id, timeout).await;
        let outcome = stopped.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |()| Outcome::Ok);
        agent.recorder.call(Some(self.key), "StopContainer", &t.name, start, outcome);
        if let Err(error) = stopped.or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) }) {
            tracing::warn!(pod = self.key.name, container = t.name, %error, "container not stopped");
        }
    }
}
