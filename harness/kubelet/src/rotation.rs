//! Container logs that grew too large: renamed, reopened, older ones compressed, the oldest dropped.
//!
//! ```text
//! 0.log ──too large──► 0.log.<stamp> ──next rotation──► 0.log.<stamp>.gz ──too many──► gone
//! ```
//! Source: k/k pkg/kubelet/logs/container_log_manager.go.

use std::{io::Write, path::Path, sync::Arc};

use flate2::{Compression, write::GzEncoder};
use podlab_cri::v1;

use crate::{agent::Agent, host::Host, labels};

/// Read at a time while compressing.
const CHUNK: usize = 256 * 1024;
/// Ending of a compressed log.
const GZ: &str = ".gz";
/// Ending of a file that is being written.
const TMP: &str = ".tmp";

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
    tidy(agent, &dir, &format!("{attempt}.log.")).await?;
    let stamp = agent.clock.wall().strftime("%Y%m%d-%H%M%S").to_string();
    let old = dir.join(format!("{attempt}.log.{stamp}"));
    agent.host.rename(&log, &old).map_err(|e| e.to_string())?;
    if let Err(e) = agent.runtime.reopen_container_log(&c.id).await {
        // Without a reopened file the container would go on writing into the renamed one.
        agent.host.rename(&old, &log).map_err(|e| e.to_string())?;
        return Err(e.to_string());
    }
    Ok(())
}

/// Makes room for one more rotated log, and compresses those there are.
async fn tidy(agent: &Agent, dir: &Path, prefix: &str) -> Result<(), String> {
    let host = agent.host.as_ref();
    let mut old: Vec<String> =
        host.list(dir).map_err(|e| e.to_string())?.into_iter().filter(|n| n.starts_with(prefix)).collect();
    for name in old.iter().filter(|n| n.ends_with(TMP)) {
        host.remove_file(&dir.join(name)).map_err(|e| e.to_string())?;
    }
    old.retain(|n| !n.ends_with(TMP));
    old.sort();
    // One is being written, one is about to be rotated.
    let keep = agent.config.container_log_max_files.saturating_sub(2);
    let excess = old.len().saturating_sub(keep);
    for name in &old[..excess] {
        host.remove_file(&dir.join(name)).map_err(|e| e.to_string())?;
    }
    for name in old[excess..].iter().filter(|n| !n.ends_with(GZ)) {
        compress(host, &dir.join(name)).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Replaces a file by a compressed one. Dropped midway it leaves the file and a temporary one.
async fn compress(host: &dyn Host, path: &Path) -> std::io::Result<()> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    let mut at = 0;
    loop {
        let chunk = host.read_at(path, at, CHUNK)?;
        if chunk.is_empty() {
            break;
        }
        at += chunk.len() as u64;
        gz.write_all(&chunk)?;
        // Others have their turn between two chunks.
        tokio::task::yield_now().await;
    }
    let with = |ending: &str| std::path::PathBuf::from(format!("{}{ending}", path.display()));
    host.write(&with(TMP), &gz.finish()?, 0o640)?;
    host.rename(&with(TMP), &with(GZ))?;
    host.remove_file(path)
}
