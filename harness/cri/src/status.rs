//! What the bridge says of containers.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    error::Error,
    runtime::Runtime,
    spec,
    state::{Container, ContainerPhase, ContainerRecord},
    v1::{self, ContainerState},
};

fn state_of(record: &ContainerRecord) -> ContainerState {
    match record.phase {
        ContainerPhase::Created => ContainerState::ContainerCreated,
        ContainerPhase::Running => ContainerState::ContainerRunning,
        ContainerPhase::Exited => ContainerState::ContainerExited,
    }
}

impl Runtime {
    /// The image a container was made from, as status shows it: the name it has here, else what was asked for.
    fn image_spec(&self, record: &ContainerRecord) -> v1::ImageSpec {
        let asked = record.config.image.clone().unwrap_or_default();
        let named = self.images.get(&record.image_id).and_then(|i| i.tags.first().or(i.digests.first()).cloned());
        v1::ImageSpec { image: named.unwrap_or_else(|| asked.image.clone()), ..asked }
    }

    pub(crate) fn container_status_of(&self, container: &Container) -> v1::ContainerStatus {
        let record = container.record.lock().clone();
        let reason = match record.phase {
            ContainerPhase::Exited if record.reason.is_empty() && record.exit_code == 0 => "Completed".into(),
            ContainerPhase::Exited if record.reason.is_empty() => "Error".into(),
            _ => record.reason.clone(),
        };
        let user = record.identity.as_ref().map(|i| v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: i.uid.into(),
                gid: i.gid.into(),
                supplemental_groups: i.groups.iter().map(|g| (*g).into()).collect(),
            }),
        });
        v1::ContainerStatus {
            state: state_of(&record).into(),
            created_at: record.created_at,
            started_at: record.started_at,
            finished_at: record.finished_at,
            exit_code: record.exit_code,
            image: Some(self.image_spec(&record)),
            image_ref: record.image_ref.clone(),
            image_id: record.image_id.clone(),
            reason,
            message: record.message.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
            mounts: record.mounts.clone(),
            log_path: record.log_path.clone(),
            resources: Some(v1::ContainerResources { linux: Some(spec::resources(&record.config)), windows: None }),
            user,
            stop_signal: spec::signal_value(&record.stop_signal).into(),
            metadata: record.config.metadata,
            id: record.id,
        }
    }

    pub(crate) fn container_status(
        self: &Arc<Self>,
        id: &str,
        verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, Error> {
        let container = self.container(id)?;
        let mut info = BTreeMap::new();
        if verbose {
            let record = container.record.lock();
            let json = serde_json::json!({
                "sandboxID": record.sandbox_id, "pid": record.process.map(|p| p.pid), "removing": false,
                "config": record.config, "argv": record.argv, "cwd": record.cwd, "user": record.user, "cgroup": record.cgroup,
            });
            info.insert("info".to_owned(), json.to_string());
        }
        Ok(v1::ContainerStatusResponse { status: Some(self.container_status_of(&container)), info })
    }

    pub(crate) fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
        let chosen = self.choose_containers(filter.unwrap_or_default());
        let items = chosen.iter().map(|c| c.record.lock().clone()).map(|r| v1::Container {
            state: state_of(&r).into(),
            image: Some(self.image_spec(&r)),
            image_ref: r.image_ref.clone(),
            image_id: r.image_id.clone(),
            created_at: r.created_at,
            labels: r.config.labels,
            annotations: r.config.annotations,
            metadata: r.config.metadata,
            pod_sandbox_id: r.sandbox_id,
            id: r.id,
        });
        items.collect()
    }

    /// All filters must hold.
    pub(crate) fn choose_containers(&self, f: v1::ContainerFilter) -> Vec<Arc<Container>> {
        let all: Vec<Arc<Container>> = self.containers.lock().values().cloned().collect();
        let fits = |c: &Arc<Container>| {
            let r = c.record.lock();
            (f.id.is_empty() || r.id.starts_with(&f.id))
                && (f.pod_sandbox_id.is_empty() || r.sandbox_id.starts_with(&f.pod_sandbox_id))
                && f.state.as_ref().is_none_or(|s| s.state == i32::from(state_of(&r)))
                && f.label_selector.iter().all(|(k, v)| r.config.labels.get(k) == Some(v))
        };
        all.into_iter().filter(fits).collect()
    }
}
