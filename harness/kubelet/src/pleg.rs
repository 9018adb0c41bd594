//! What happens in the runtime, told to the workers: its event stream, and a full listing now and then in case an event
//! was lost. Source: k/k pkg/kubelet/pleg/{evented,generic}.go.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt;
use podlab_cri::v1;
use podlab_lifecycle::runtime::RuntimeState;
use podlab_timeline::PodKey;

use crate::{
    agent::Agent,
    container, labels,
    pods::{Kill, Target},
    runtime::{Cri, EventStream},
};

/// Pause before the event stream is opened again.
const RECONNECT: Duration = Duration::from_millis(200);
/// Grace for containers of Pods nobody knows any more.
const ORPHAN_GRACE: Duration = Duration::from_secs(30);

/// Something of the runtime, as a listing shows it.
struct Seen {
    uid: String,
    id: String,
    state: RuntimeState,
}

/// Follows the runtime until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown.run_until_cancelled(follow(&agent)).await;
}

async fn follow(agent: &Arc<Agent>) {
    loop {
        match agent.runtime.events().await {
            Ok(stream) => {
                // Whatever happened while nobody listened shows in the listing.
                if let Err(error) = relist(agent).await {
                    tracing::warn!(%error, "relist failed");
                }
                listen(agent, stream).await;
            }
            Err(error) => tracing::debug!(%error, "no event stream"),
        }
        agent.clock.sleep(RECONNECT).await;
        if let Err(error) = relist(agent).await {
            tracing::debug!(%error, "relist failed");
        }
    }
}

async fn listen(agent: &Arc<Agent>, mut stream: EventStream) {
    let mut next = agent.clock.now().after(agent.config.relist_period);
    loop {
        tokio::select! {
            biased;
            event = stream.next() => match event {
                Some(Ok(e)) => tell(agent, &e),
                Some(Err(error)) => {
                    tracing::debug!(%error, "event stream broke");
                    return;
                }
                None => return,
            },
            () = agent.clock.sleep_until(next) => {
                if let Err(error) = relist(agent).await {
                    tracing::warn!(%error, "relist failed");
                }
                next = agent.clock.now().after(agent.config.relist_period);
            }
        }
    }
}

fn tell(agent: &Arc<Agent>, e: &v1::ContainerEventResponse) {
    let sandbox = e.pod_sandbox_status.as_ref();
    let from_sandbox = sandbox.and_then(|s| s.metadata.as_ref()).map(|m| m.uid.clone());
    let from_container = e
        .containers_statuses
        .iter()
        .find(|c| c.id == e.container_id)
        .and_then(|c| c.labels.get(labels::POD_UID).cloned());
    let Some(uid) = from_sandbox.or(from_container).filter(|u| !u.is_empty()) else { return };
    let state = match e.container_event_type() {
        v1::ContainerEventType::ContainerCreatedEvent | v1::ContainerEventType::ContainerDeletedEvent => return,
        v1::ContainerEventType::ContainerStartedEvent => RuntimeState::Running,
        v1::ContainerEventType::ContainerStoppedEvent => RuntimeState::Exited,
    };
    if state == RuntimeState::Running
        && let Some(status) = e.containers_statuses.iter().find(|c| c.id == e.container_id)
        && status.state() == v1::ContainerState::ContainerRunning
    {
        agent.workers.started(&uid, status);
    }
    agent.workers.runtime_event(&uid, &e.container_id, state);
}

async fn listing(agent: &Agent) -> Cri<Vec<Seen>> {
    let (sandboxes, containers) = futures::future::try_join(
        agent.runtime.list_pod_sandbox(v1::PodSandboxFilter::default()),
        agent.runtime.list_containers(v1::ContainerFilter::default()),
    )
    .await?;
    let mut out = Vec::new();
    for s in sandboxes {
        let state =
            if s.state() == v1::PodSandboxState::SandboxReady { RuntimeState::Running } else { RuntimeState::Exited };
        let uid = s.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        out.push(Seen { uid, id: s.id, state });
    }
    for c in containers {
        let state = match c.state() {
            v1::ContainerState::ContainerCreated => continue,
            v1::ContainerState::ContainerRunning => RuntimeState::Running,
            v1::ContainerState::ContainerExited => RuntimeState::Exited,
            v1::ContainerState::ContainerUnknown => RuntimeState::Unknown,
        };
        let uid = c.labels.get(labels::POD_UID).cloned().unwrap_or_default();
        out.push(Seen { uid, id: c.id, state });
    }
    Ok(out)
}

/// Lists everything, tells the workers what is news to them.
async fn relist(agent: &Arc<Agent>) -> Cri<()> {
    let mut strangers = BTreeSet::new();
    let began = agent.clock.now();
    let all = listing(agent).await?;
    agent.metrics.observe("kubelet_pleg_relist_duration_seconds", &[], agent.clock.now().since(began));
    for s in all {
        if !agent.workers.runtime_event(&s.uid, &s.id, s.state) && !s.uid.is_empty() {
            strangers.insert(s.uid);
        }
    }
    if agent.swept.load(std::sync::atomic::Ordering::Acquire) {
        // Twice unknown is no race with a Pod that has just come or gone.
        let before = std::mem::replace(&mut *agent.suspects.lock(), strangers.clone());
        for uid in strangers.intersection(&before) {
            let (agent, uid) = (agent.clone(), uid.clone());
            agent.tasks.clone().spawn(async move {
                if let Err(error) = remove_orphan(&agent, &uid).await {
                    tracing::warn!(uid, %error, "orphan not removed");
                }
            });
        }
    }
    Ok(())
}

/// UIDs of all Pods the runtime has something of.
pub(crate) async fn inventory(agent: &Agent) -> Cri<BTreeSet<String>> {
    Ok(listing(agent).await?.into_iter().map(|s| s.uid).filter(|u| !u.is_empty()).collect())
}

/// What an earlier agent left of Pods that nobody knows any more.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// UIDs the runtime has something of.
    runtime: Vec<String>,
    /// UIDs that have a directory.
    directories: Vec<String>,
    /// Cgroups. Its predecessor may have died between a Pod's last status and the removal of its cgroup, when the runtime
    /// knows nothing of the Pod any more. Source: k/k pkg/kubelet/kubelet_pods.go cleanupOrphanedPodCgroups.
    cgroups: Vec<String>,
}

/// Looks for them, once all Pods are known. This takes no time in which another Pod could come: removing them does, and
/// must not touch what is made meanwhile.
pub(crate) fn find_orphans(agent: &Agent, known: &BTreeSet<String>) -> Orphans {
    let unknown = |uid: &String| !known.contains(uid);
    let host = agent.host.as_ref();
    let directories = host.list(&agent.config.root_dir.join("pods")).unwrap_or_default();
    let of_class = |class: &&str| {
        let children = host.cgroup_children(class).unwrap_or_default().into_iter();
        let orphaned = |child: &String| child.strip_prefix("pod").is_some_and(|uid| !known.contains(uid));
        children.filter(orphaned).map(|child| format!("{class}/{child}")).collect::<Vec<_>>()
    };
    let classes = if agent.config.cgroup_root.is_some() { &container::QOS_CGROUPS[..] } else { &[] };
    Orphans {
        runtime: agent.inventory.lock().iter().filter(|u| unknown(u)).cloned().collect(),
        directories: directories.into_iter().filter(unknown).collect(),
        cgroups: classes.iter().flat_map(of_class).collect(),
    }
}

/// Stops and removes them.
pub(crate) async fn remove_orphans(agent: &Arc<Agent>, orphans: Orphans) {
    for uid in &orphans.runtime {
        if let Err(error) = remove_orphan(agent, uid).await {
            tracing::warn!(uid, %error, "orphan not removed");
        }
    }
    for uid in &orphans.directories {
        match agent.volumes.tear_down(uid).await {
            Ok(()) => {
                agent.volumes.forget_messages(uid);
                agent.users.release(uid);
            }
            Err(error) => tracing::warn!(uid, %error, "volumes of an orphan not removed"),
        }
    }
    for path in &orphans.cgroups {
        if let Err(error) = agent.host.cgroup_remove(path) {
            tracing::warn!(path, %error, "cgroup of an orphan not removed");
        }
    }
}

async fn remove_orphan(agent: &Arc<Agent>, uid: &str) -> Cri<()> {
    agent.metrics.inc("kubelet_orphaned_runtime_pods_total", &[]);
    let selector: std::collections::BTreeMap<String, String> = [(labels::POD_UID.to_owned(), uid.to_owned())].into();
    let running = v1::ContainerFilter {
        label_selector: selector,
        state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() }),
        ..Default::default()
    };
    let containers = agent.runtime.list_containers(running).await?;
    let grace = containers.iter().find_map(|c| {
        let text = |k: &str| c.annotations.get(k).and_then(|v| v.parse::<u64>().ok());
        text(labels::POD_DELETION_GRACE).or_else(|| text(labels::POD_GRACE))
    });
    let targets: Vec<Target> = containers
        .into_iter()
        .map(|c| Target {
            id: c.id,
            name: c.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
            message: None,
            reason: None,
        })
        .collect();
    let key = PodKey { namespace: String::new(), name: String::new(), uid: uid.to_owned() };
    let kill = Kill { agent, pod: None, key: &key };
    kill.containers(&targets, Some(grace.map_or(ORPHAN_GRACE, Duration::from_secs))).await;
    agent.remove_leftovers(uid).await;
    Ok(())
}
