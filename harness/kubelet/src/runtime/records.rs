//! From CRI messages to the lifecycle's records, one Pod at a time.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_api::jiff::Timestamp;
use podlab_cri::v1;
use podlab_lifecycle::runtime::{ContainerRecord, RunsAs, RuntimePod, RuntimeResources, RuntimeState, SandboxRecord};

use super::{Cri, Runtime};
use crate::{crilog, host::Host, labels};

/// Longest termination message read from its file.
const MAX_MESSAGE: usize = 4096;
/// What the log fallback takes at most: this many bytes…
const FALLBACK_BYTES: usize = 2048;
/// …and lines.
const FALLBACK_LINES: usize = 80;

/// What a sync that only added things leaves behind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// The sandbox in use and older ones.
    pub(crate) sandboxes: Vec<SandboxRecord>,
    /// Ids of all containers.
    pub(crate) containers: Vec<String>,
}

/// Reads one Pod from the runtime and remembers what cannot change any more.
pub(crate) struct Reader {
    runtime: Arc<dyn Runtime>,
    host: Arc<dyn Host>,
    log_root: PathBuf,
    ips: BTreeMap<String, (Vec<String>, bool)>,
    ended: BTreeMap<String, ContainerRecord>,
}

impl Reader {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, host: Arc<dyn Host>, log_root: PathBuf) -> Self {
        Self { runtime, host, log_root, ips: BTreeMap::new(), ended: BTreeMap::new() }
    }

    /// Everything the runtime has under a Pod's UID.
    ///
    /// # Errors
    /// When a list fails; a container that vanishes between list and status is left out.
    pub(crate) async fn read(&mut self, uid: &str) -> Cri<RuntimePod> {
        let selector: BTreeMap<String, String> = [(labels::POD_UID.to_owned(), uid.to_owned())].into();
        let sandboxes = v1::PodSandboxFilter { label_selector: selector.clone(), ..Default::default() };
        let containers = v1::ContainerFilter { label_selector: selector, ..Default::default() };
        let (sandboxes, containers) = futures::future::try_join(
            self.runtime.list_pod_sandbox(sandboxes),
            self.runtime.list_containers(containers),
        )
        .await?;
        let mut pod = RuntimePod::default();
        for s in sandboxes {
            if let Some(record) = self.sandbox(s).await? {
                pod.sandboxes.push(record);
            }
        }
        let fresh: Vec<String> =
            containers.iter().filter(|c| !self.ended.contains_key(&c.id)).map(|c| c.id.clone()).collect();
        let statuses = futures::future::join_all(fresh.iter().map(|id| self.runtime.container_status(id))).await;
        for status in statuses {
            match status {
                Ok(s) => {
                    if let Some(record) = self.container(s).await {
                        if record.state == RuntimeState::Exited {
                            self.ended.insert(record.id.clone(), record.clone());
                        }
                        pod.containers.push(record);
                    }
                }
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        for c in &containers {
            if !fresh.contains(&c.id)
                && let Some(record) = self.ended.get(&c.id)
            {
                pod.containers.push(record.clone());
            }
        }
        self.ended.retain(|id, _| containers.iter().any(|c| c.id == *id));
        self.ips.retain(|id, _| pod.sandboxes.iter().any(|s| s.id == *id));
        pod.sort();
        Ok(pod)
    }

    /// The same, when it is known what there must be: asks for the containers alone, and lists only if one is missing.
    /// `told` holds statuses that events brought already.
    pub(crate) async fn read_known(
        &mut self,
        uid: &str,
        expected: Expected,
        told: &BTreeMap<String, v1::ContainerStatus>,
    ) -> Cri<RuntimePod> {
        let fresh: Vec<&String> = expected.containers.iter().filter(|id| !self.ended.contains_key(*id)).collect();
        let look = |id: &String| {
            let (told, id, runtime) = (told.get(id).cloned(), id.clone(), self.runtime.clone());
            async move {
                match told {
                    Some(status) => Ok(status),
                    None => runtime.container_status(&id).await,
                }
            }
        };
        let statuses = futures::future::join_all(fresh.into_iter().map(look)).await;
        let mut pod = RuntimePod { sandboxes: expected.sandboxes, containers: Vec::new() };
        for status in statuses {
            match status {
                Ok(s) => pod.containers.extend(self.container(s).await),
                Err(_) => return self.read(uid).await,
            }
        }
        pod.containers.extend(expected.containers.iter().filter_map(|id| self.ended.get(id)).cloned());
        for c in pod.containers.iter().filter(|c| c.state == RuntimeState::Exited) {
            self.ended.entry(c.id.clone()).or_insert_with(|| c.clone());
        }
        pod.sort();
        Ok(pod)
    }

    async fn sandbox(&mut self, s: v1::PodSandbox) -> Cri<Option<SandboxRecord>> {
        let ready = s.state() == v1::PodSandboxState::SandboxReady;
        if !self.ips.contains_key(&s.id) {
            match self.runtime.pod_sandbox_status(&s.id).await {
                Ok(r) => {
                    let status = r.status.unwrap_or_default();
                    self.ips.insert(s.id.clone(), (addresses(&status), on_host_network(&status)));
                }
                Err(e) if e.is_not_found() => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let (ips, host_network) = self.ips.get(&s.id).cloned().unwrap_or_default();
        let attempt = s.metadata.as_ref().map_or(0, |m| m.attempt);
        Ok(Some(SandboxRecord {
            id: s.id,
            attempt,
            ready,
            created_at: time(s.created_at).unwrap_or_default(),
            ips,
            host_network,
        }))
    }

    async fn container(&self, s: v1::ContainerStatus) -> Option<ContainerRecord> {
        let name = s.labels.get(labels::CONTAINER_NAME)?.clone();
        let state = match s.state() {
            v1::ContainerState::ContainerCreated => RuntimeState::Created,
            v1::ContainerState::ContainerRunning => RuntimeState::Running,
            v1::ContainerState::ContainerExited => RuntimeState::Exited,
            v1::ContainerState::ContainerUnknown => RuntimeState::Unknown,
        };
        let message = if state == RuntimeState::Exited { self.message(&s) } else { s.message.clone() };
        let image = s.image.clone().unwrap_or_default();
        let restart_count = s.annotations.get(labels::RESTART_COUNT).and_then(|v| v.parse().ok());
        let linux = s.resources.as_ref().and_then(|r| r.linux.as_ref());
        Some(ContainerRecord {
            id: s.id.clone(),
            name,
            restart_count: restart_count.unwrap_or_else(|| s.metadata.as_ref().map_or(0, |m| m.attempt)),
            state,
            created_at: time(s.created_at).unwrap_or_default(),
            started_at: time(s.started_at),
            finished_at: time(s.finished_at),
            exit_code: s.exit_code,
            reason: s.reason.clone(),
            message,
            image: if image.user_specified_image.is_empty() { image.image } else { image.user_specified_image },
            image_id: if s.image_ref.is_empty() { s.image_id.clone() } else { s.image_ref.clone() },
            spec_hash: s.annotations.get(labels::HASH).and_then(|h| u64::from_str_radix(h, 16).ok()),
            user: s.user.as_ref().and_then(|u| u.linux.as_ref()).map(|u| RunsAs {
                uid: u.uid,
                gid: u.gid,
                groups: u.supplemental_groups.clone(),
            }),
            resources: linux.map(|l| RuntimeResources {
                cpu_quota: l.cpu_quota,
                cpu_period: l.cpu_period,
                cpu_shares: l.cpu_shares,
                memory_limit: l.memory_limit_in_bytes,
            }),
        })
    }

    /// The termination message: the runtime's words, then what the container wrote to its file, or the end of its log.
    /// Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container.go getTerminationMessage.
    fn message(&self, s: &v1::ContainerStatus) -> String {
        let mut out = s.message.clone();
        let Some(path) = s.annotations.get(labels::MESSAGE_PATH).filter(|p| !p.is_empty()) else { return out };
        let fallback =
            s.annotations.get(labels::MESSAGE_POLICY).is_some_and(|p| p == "FallbackToLogsOnError") && s.exit_code != 0;
        let file = s.mounts.iter().find(|m| m.container_path == *path);
        let mut own =
            file.and_then(|m| self.host.read_at(Path::new(&m.host_path), 0, MAX_MESSAGE).ok()).unwrap_or_default();
        if own.is_empty() && fallback {
            let log =
                if s.log_path.starts_with('/') { PathBuf::from(&s.log_path) } else { self.log_root.join(&s.log_path) };
            own = crilog::last(self.host.as_ref(), &log, FALLBACK_LINES, FALLBACK_BYTES);
        }
        let own = String::from_utf8_lossy(&own);
        if !own.is_empty() {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&own);
        }
        out
    }
}

/// Nanoseconds since the epoch; 0 means it did not happen.
pub(crate) fn time(ns: i64) -> Option<Timestamp> {
    (ns != 0).then(|| Timestamp::from_nanosecond(i128::from(ns)).ok()).flatten()
}

fn addresses(s: &v1::PodSandboxStatus) -> Vec<String> {
    let Some(n) = &s.network else { return Vec::new() };
    let all = std::iter::once(&n.ip).chain(n.additional_ips.iter().map(|a| &a.ip));
    all.filter(|ip| !ip.is_empty()).cloned().collect()
}

fn on_host_network(s: &v1::PodSandboxStatus) -> bool {
    let options = s.linux.as_ref().and_then(|l| l.namespaces.as_ref()).and_then(|n| n.options.as_ref());
    options.is_some_and(|o| o.network() == v1::NamespaceMode::Node)
}
