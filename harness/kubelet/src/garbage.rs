//! What the runtime keeps and nobody needs: dead containers beyond the newest of a name, old sandboxes, log directories
//! of Pods that are gone. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_gc.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use podlab_cri::v1;

use crate::{agent::Agent, labels};

/// How often it is looked for.
const PERIOD: Duration = Duration::from_secs(60);

/// What a finished Pod's containers leave behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The newest of each name, for its log and its exit code.
    Newest,
    /// Nothing: the node needs the room.
    Nothing,
}

/// Collects until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            loop {
                agent.clock.sleep(PERIOD).await;
                remove_dead_containers(&agent, Keep::Newest).await;
                remove_old_sandboxes(&agent).await;
                remove_stray_logs(&agent);
            }
        })
        .await;
}

fn label(labels: &BTreeMap<String, String>, key: &str) -> String {
    labels.get(key).cloned().unwrap_or_default()
}

/// Removes dead containers: of each Pod and name all but the newest, and of finished Pods what `keep` says.
pub(crate) async fn remove_dead_containers(agent: &Agent, keep: Keep) {
    let mut by_name: BTreeMap<(String, String), Vec<v1::Container>> = BTreeMap::new();
    for c in agent.runtime.list_containers(v1::ContainerFilter::default()).await.unwrap_or_default() {
        let key = (label(&c.labels, labels::POD_UID), label(&c.labels, labels::CONTAINER_NAME));
        if !key.0.is_empty() {
            by_name.entry(key).or_default().push(c);
        }
    }
    for ((uid, _), list) in by_name {
        // Whoever lost its worker altogether is an orphan, and those are removed elsewhere with their sandbox.
        let left = usize::from(keep == Keep::Newest || !agent.workers.is_cleaned(&uid));
        for c in surplus(list, left) {
            remove_container(agent, &c).await;
        }
    }
}

/// Of all containers of one name those that may go when `left` dead ones stay. Of two that were made in the same instant
/// the later attempt is the newer one.
fn surplus(mut list: Vec<v1::Container>, mut left: usize) -> Vec<v1::Container> {
    let attempt = |c: &v1::Container| label(&c.annotations, labels::RESTART_COUNT).parse::<u32>().unwrap_or(0);
    list.sort_by_key(|c| std::cmp::Reverse((c.created_at, attempt(c))));
    let all_go = left == 0;
    let mut first = true;
    list.retain(|c| {
        let newest = std::mem::take(&mut first);
        match c.state() {
            v1::ContainerState::ContainerExited if left > 0 => {
                left -= 1;
                false
            }
            v1::ContainerState::ContainerExited => true,
            // The newest may be about to start; one with a successor never will.
            v1::ContainerState::ContainerCreated => all_go || !newest,
            v1::ContainerState::ContainerRunning | v1::ContainerState::ContainerUnknown => false,
        }
    });
    list
}

/// Removes a container with its logs.
async fn remove_container(agent: &Agent, c: &v1::Container) {
    if let Err(error) = agent.runtime.remove_container(&c.id).await {
        tracing::debug!(container = c.id, %error, "container not removed");
        return;
    }
    let dir = agent
        .config
        .log_dir(
            &label(&c.labels, labels::POD_NAMESPACE),
            &label(&c.labels, labels::POD_NAME),
            &label(&c.labels, labels::POD_UID),
        )
        .join(label(&c.labels, labels::CONTAINER_NAME));
    remove_logs(agent, &dir, &label(&c.annotations, labels::RESTART_COUNT));
}

/// Removes the log of one attempt, with what rotation made of it.
pub(crate) fn remove_logs(agent: &Agent, dir: &Path, attempt: &str) {
    let current = format!("{attempt}.log");
    let rotated = format!("{attempt}.log.");
    for name in agent.host.list(dir).unwrap_or_default() {
        if name == current || name.starts_with(&rotated) {
            let _ = agent.host.remove_file(&dir.join(name));
        }
    }
}

/// Removes the sandboxes of each Pod that are not ready, hold no container and are not its newest.
async fn remove_old_sandboxes(agent: &Agent) {
    let (sandboxes, containers) = tokio::join!(
        agent.runtime.list_pod_sandbox(v1::PodSandboxFilter::default()),
        agent.runtime.list_containers(v1::ContainerFilter::default())
    );
    let (Ok(sandboxes), Ok(containers)) = (sandboxes, containers) else { return };
    let used: BTreeSet<&str> = containers.iter().map(|c| c.pod_sandbox_id.as_str()).collect();
    let mut by_pod: BTreeMap<String, Vec<&v1::PodSandbox>> = BTreeMap::new();
    for s in &sandboxes {
        by_pod.entry(s.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default()).or_default().push(s);
    }
    for list in by_pod.values_mut() {
        list.sort_by_key(|s| std::cmp::Reverse(s.created_at));
        let idle =
            |s: &&&v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxNotready && !used.contains(s.id.as_str());
        for s in list.iter().skip(1).filter(idle) {
            if let Err(error) = agent.runtime.remove_pod_sandbox(&s.id).await {
                tracing::debug!(sandbox = s.id, %error, "sandbox not removed");
            }
        }
    }
}

/// Removes log directories no Pod belongs to, and links into them.
fn remove_stray_logs(agent: &Agent) {
    if !agent.swept.load(std::sync::atomic::Ordering::Acquire) {
        return;
    }
    let known: BTreeSet<String> = agent.workers.pods().iter().filter_map(|p| p.metadata.uid.clone()).collect();
    let root = &agent.config.pod_logs_dir;
    for name in agent.host.list(root).unwrap_or_default() {
        let stray = name.rsplit_once('_').is_some_and(|(_, uid)| !uid.is_empty() && !known.contains(uid));
        if stray && let Err(error) = agent.host.remove_tree(&root.join(&name)) {
            tracing::debug!(name, %error, "log directory not removed");
        }
    }
    let Some(links) = &agent.config.container_logs_dir else { return };
    for name in agent.host.list(links).unwrap_or_default() {
        let link = links.join(name);
        if agent.host.lstat(&link).is_ok() && agent.host.stat(&link).is_err() {
            let _ = agent.host.remove_file(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, state: v1::ContainerState, created_at: i64, attempt: u32) -> v1::Container {
        let annotations = BTreeMap::from([(labels::RESTART_COUNT.to_owned(), attempt.to_string())]);
        v1::Container { id: id.to_owned(), state: state.into(), created_at, annotations, ..Default::default() }
    }

    fn ids(list: Vec<v1::Container>, left: usize) -> Vec<String> {
        surplus(list, left).into_iter().map(|c| c.id).collect()
    }

    #[test]
    fn the_newest_dead_container_stays_also_among_those_of_one_instant() {
        use v1::ContainerState::{ContainerCreated as Created, ContainerExited as Exited, ContainerRunning as Running};
        for swapped in [false, true] {
            let mut list = vec![container("a", Exited, 5, 0), container("b", Exited, 5, 1)];
            if swapped {
                list.reverse();
            }
            assert_eq!(ids(list.clone(), 1), ["a"]);
            assert_eq!(ids(list, 0), ["b", "a"]);
        }
        let dead = || vec![container("a", Exited, 1, 0), container("b", Exited, 2, 1)];
        let with = |more: v1::Container| dead().into_iter().chain([more]).collect::<Vec<_>>();
        assert_eq!(ids(with(container("c", Running, 3, 2)), 1), ["a"]);
        assert_eq!(ids(with(container("c", Created, 3, 2)), 1), ["a"], "it is about to start");
        let never = vec![container("a", Created, 1, 1), container("b", Running, 2, 2)];
        assert_eq!(ids(never, 1), ["a"], "it never will");
    }
}
