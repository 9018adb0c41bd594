//! Whether the runtime and its network work.

use std::{sync::Arc, time::Duration};

use podlab_cri::v1;

use crate::agent::{Agent, HandlerFeatures, RuntimeHealth};

/// How often the runtime is asked once it has worked. Source: k/k pkg/kubelet/kubelet.go updateRuntimeUp.
const POLL: Duration = Duration::from_secs(5);
/// How often before that: a node must become ready as soon as its runtime is.
const POLL_STARTING: Duration = Duration::from_millis(20);

/// Asks once.
pub(crate) async fn check(agent: &Agent) -> RuntimeHealth {
    let answer = match agent.runtime.status().await {
        Ok(s) => s,
        Err(e) => {
            let problem = format!("container runtime is down: {e}");
            return RuntimeHealth {
                known: true,
                runtime_problem: Some(problem.clone()),
                network_problem: Some(problem),
                ..agent.health.borrow().clone()
            };
        }
    };
    let status = answer.status.unwrap_or_default();
    let problem = |kind: &str, label: &str| {
        let Some(c) = status.conditions.iter().find(|c| c.r#type == kind) else {
            return Some(format!("container runtime status check may not have completed yet: {kind} is missing"));
        };
        (!c.status).then(|| format!("{label} not ready: {kind}=false reason:{} message:{}", c.reason, c.message))
    };
    RuntimeHealth {
        known: true,
        runtime_problem: problem("RuntimeReady", "container runtime"),
        network_problem: problem("NetworkReady", "container runtime network"),
        handlers: answer.runtime_handlers.into_iter().map(|h| (h.name, features(h.features))).collect(),
        groups_policy: answer.features.is_some_and(|f| f.supplemental_groups_policy),
    }
}

fn features(of: Option<v1::RuntimeHandlerFeatures>) -> HandlerFeatures {
    let of = of.unwrap_or_default();
    HandlerFeatures { recursive_read_only_mounts: of.recursive_read_only_mounts, user_namespaces: of.user_namespaces }
}

/// Keeps asking until the agent stops.
pub(crate) async fn watch_health(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            let mut worked = false;
            loop {
                let health = check(&agent).await;
                worked |= health.runtime_problem.is_none() && health.network_problem.is_none();
                agent.health.send_if_modified(|old| {
                    let changed = *old != health;
                    *old = health;
                    changed
                });
                agent.clock.sleep(if worked { POLL } else { POLL_STARTING }).await;
            }
        })
        .await;
}
