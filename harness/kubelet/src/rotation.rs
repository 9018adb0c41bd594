//! Container logs that grew too large: renamed, reopened, the old ones dropped.
//! Source: k/k pkg/kubelet/logs/container_log_manager.go.

use std::{path::Path, sync::Arc};

use podlab_cri::v1;

use crate::{agent::Agent, labels};

/// Rotates until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            loop {
                agent.clock.sleep(agent.config.container_log_monitor_period).await;
                let running = v1::ContainerFilter {
                    state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() }),
                    ..Default::default()
                };
                for c in agent.runtime.list_containers(running).await.unwrap_or_default() {
                    if let Err(error) = rotate(&agent, &c).await {
                        tracing::warn!(container = c.id, error, "log not rotated");
                    }
                }
            }
        })
        .await;
}

async fn rotate(agent: &Agent, c: &v1::Container) -> Result<(), String> {
    let text = |k: &str| c.labels.get(k).cloned().unwrap_or_default();
    let attempt = c.annotations.get(labels::RESTART_COUNT).cloned().unwrap_or_default();
    let (namespace, name, uid) = (text(labels::POD_NAMESPACE), text(labels::POD_NAME), text(labels::POD_UID));
    let dir = agent.config.log_dir(&namespace, &name, &uid).join(text(labels::CONTAINER_NAME));
    let log = dir.join(format!("{attempt}.log"));
    let size = agent.host.stat(&log).map(|s| s.size).unwrap_or(0);
    if size < agent.config.container_log_max_size {
        return Ok(());
    }
    let stamp = agent.clock.wall().strftime("%Y%m%d-%H%M%S").to_string();
    let old = dir.join(format!("{attempt}.log.{stamp}"));
    agent.host.rename(&log, &old).map_err(|e| e.to_string())?;
    if let Err(e) = agent.runtime.reopen_container_log(&c.id).await {
        // Without a reopened file the container would go on writing into the renamed one.
        agent.host.rename(&old, &log).map_err(|e| e.to_string())?;
        return Err(e.to_string());
    }
    prune(agent, &dir, &format!("{attempt}.log."))
}

fn prune(agent: &Agent, dir: &Path, prefix: &str) -> Result<(), String> {
    let mut old: Vec<String> =
        agent.host.list(dir).map_err(|e| e.to_string())?.into_iter().filter(|n| n.starts_with(prefix)).collect();
    old.sort();
    let keep = agent.config.container_log_max_files.saturating_sub(1);
    let excess = old.len().saturating_sub(keep);
    for name in &old[..excess] {
        agent.host.remove_file(&dir.join(name)).map_err(|e| e.to_string())?;
    }
    Ok(())
}
