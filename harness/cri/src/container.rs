//! Containers: create, stop, remove. What starts one is in `start`, what follows its end in `exit`.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use podlab_mutant::{self as mutant, Mutant};

use crate::{
    error::Error,
    journal::Kind,
    runtime::Runtime,
    sandbox::namespace_options,
    spec,
    state::{Container, ContainerPhase, ContainerRecord, SandboxRecord, spool_dir, upper_dir},
    v1::{self, ContainerConfig, ContainerEventType, NamespaceMode},
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// How long the kernel may take to end what was killed.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(60);

impl Runtime {
    /// Makes a container; nothing runs yet.
    pub(crate) async fn create_container(
        self: &Arc<Self>,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::State(format!("sandbox container {:?} is not running", sandbox.id)));
        }
        let metadata =
            config.metadata.clone().ok_or_else(|| Error::Invalid("container config must include metadata".into()))?;
        let wanted = config.image.clone().unwrap_or_default();
        let missing = || Error::NotFound(format!("failed to resolve image {:?}: not found", wanted.image));
        let image =
            self.images.get(spec::image_key(&wanted)).or_else(|| self.images.get(&wanted.image)).ok_or_else(missing)?;
        let id = self.new_id();
        let record = {
            let pod = sandbox.record.lock();
            let from_pod = sandbox_config.unwrap_or_else(|| pod.config.clone());
            let of = pod.config.metadata.clone().unwrap_or_default();
            let name = format!("{}_{}_{}_{}_{}", metadata.name, of.name, of.namespace, of.uid, metadata.attempt);
            self.reserve("container", &name, &id)?;
            self.new_container(id.clone(), &pod, &from_pod, config, &image)
        };
        let record = record.inspect_err(|_| self.release(&id))?;
        let container = Container::new(record);
        let c = Arc::clone(&container);
        let saved = self.blocking(move |this| this.save_container(&c)).await;
        saved.inspect_err(|_| self.release(&id))?;
        self.containers.lock().insert(id.clone(), container);
        self.emit(ContainerEventType::ContainerCreatedEvent, &id, &sandbox.id);
        Ok(id)
    }

    fn new_container(
        &self,
        id: String,
        pod: &SandboxRecord,
        from_pod: &v1::PodSandboxConfig,
        config: ContainerConfig,
        image: &crate::images::ImageRecord,
    ) -> Result<ContainerRecord> {
        self.check_container(&config)?;
        let user = spec::user_string(&spec::security(&config), &image.config)?;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let own = config.envs.iter().map(|e| format!("{}={}", e.key, text(&e.value)));
        let log_directory =
            if from_pod.log_directory.is_empty() { &pod.config.log_directory } else { &from_pod.log_directory };
        let log_path = if log_directory.is_empty() || config.log_path.is_empty() {
            String::new()
        } else {
            std::path::Path::new(log_directory).join(&config.log_path).display().to_string()
        };
        let parent = pod
            .config
            .linux
            .as_ref()
            .map(|l| l.cgroup_parent.as_str())
            .filter(|p| !p.is_empty())
            .unwrap_or(&self.config.default_cgroup_parent);
        let mut mounts = config.mounts.clone();
        for mount in &mut mounts {
            if let Some(spec) = &mut mount.image
                && let Some(found) = self.images.get(spec::image_key(spec))
            {
                spec.image_ref.clone_from(&found.id);
            }
        }
        let cwds = [config.working_dir.as_str(), image.config.working_dir.as_str()];
        let cwd = cwds.into_iter().find(|d| !d.is_empty()).unwrap_or("/").to_owned();
        Ok(ContainerRecord {
            cgroup: self.cgroups.group(parent).child(&id).path().to_owned(),
            sandbox_id: pod.id.clone(),
            image_id: image.id.clone(),
            image_ref: image.digests.first().cloned().unwrap_or_else(|| image.id.clone()),
            argv: spec::argv(&config, &image.config)?,
            env: image.config.env.iter().cloned().chain(own).collect(),
            cwd,
            user,
            stop_signal: spec::stop_signal(&config, &image.config),
            mounts,
            log_path,
            created_at: self.now_ns(),
            config,
            id,
            ..ContainerRecord::default()
        })
    }

    /// Whether its processes die with the first one: only in a pid namespace of its own.
    pub(crate) fn owns_pid_namespace(&self, record: &ContainerRecord) -> bool {
        let pod = self.sandbox(&record.sandbox_id).ok().map(|s| namespace_options(&s.record.lock().config));
        let options = spec::security(&record.config).namespace_options.or(pod).unwrap_or_default();
        options.pid == NamespaceMode::Container as i32
    }

    /// Stops a container: its signal, so many seconds, SIGKILL. Not running is success.
    pub(crate) async fn stop_container(self: &Arc<Self>, container: &Arc<Container>, timeout: i64) -> Result<()> {
        if container.phase() == ContainerPhase::Created {
            let _op = container.op.lock().await;
            if container.phase() == ContainerPhase::Created {
                let mut record = container.record.lock();
                record.phase = ContainerPhase::Exited;
                record.finished_at = self.now_ns();
                drop(record);
                self.save_container(container)?;
                container.changed.send_replace(ContainerPhase::Exited);
                return Ok(());
            }
        }
        if container.phase() != ContainerPhase::Running {
            return Ok(());
        }
        let (process, signal) = {
            let record = container.record.lock();
            (record.process, spec::signal_number(&record.stop_signal).unwrap_or(libc::SIGTERM))
        };
        let Some(process) = process else { return Ok(()) };
        if timeout > 0 && !mutant::is(Mutant::KillsAtOnce) {
            // A second stop only waits anew: the process has heard it.
            if !container.stop_signalled.swap(true, Ordering::AcqRel) {
                process.signal(signal).map_err(Error::io(format!("signal container {}", container.id)))?;
            }
            let patience = Duration::from_secs(timeout.unsigned_abs());
            if self.clock.timeout(patience, container.exited()).await.is_some() {
                return Ok(());
            }
        }
        self.kill_container(container);
        if self.clock.timeout(KILL_PATIENCE, container.exited()).await.is_none() {
            return Err(Error::Deadline(format!(
                "an error occurs during waiting for container {:?} to be killed",
                container.id
            )));
        }
        Ok(())
    }

    fn kill_container(&self, container: &Container) {
        let record = container.record.lock().clone();
        if let Some(process) = record.process {
            let _ = process.signal(libc::SIGKILL);
        }
        if !self.owns_pid_namespace(&record) {
            self.cgroups.group(&record.cgroup).kill();
        }
    }

    /// Removes a container, killing it first if need be. Absent is success; its log stays.
    pub(crate) async fn remove_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(container) = self.container(id) else { return Ok(()) };
        if container.phase() == ContainerPhase::Running {
            self.stop_container(&container, 0).await?;
        }
        let Ok(_op) = container.op.try_lock() else {
            return self.remove_later(&container).await;
        };
        self.remove_now(&container).await
    }

    /// Somebody is starting, ending or removing it.
    async fn remove_later(self: &Arc<Self>, container: &Arc<Container>) -> Result<()> {
        if container.phase() == ContainerPhase::Created {
            return Err(Error::State("container is in starting state, can't be removed".into()));
        }
        let _op = container.op.lock().await;
        self.remove_now(container).await
    }

    async fn remove_now(self: &Arc<Self>, container: &Arc<Container>) -> Result<()> {
        container.removing.store(true, Ordering::Release);
        if container.phase() == ContainerPhase::Running {
            container.removing.store(false, Ordering::Release);
            return Err(Error::State(format!("container {:?} is running", container.id)));
        }
        self.journal.remove(Kind::Container, &container.id).map_err(Error::io("remove container state"))?;
        if self.containers.lock().remove(&container.id).is_none() {
            return Ok(());
        }
        self.release(&container.id);
        let sandbox_id = container.record.lock().sandbox_id.clone();
        self.emit(ContainerEventType::ContainerDeletedEvent, &container.id, &sandbox_id);
        let c = Arc::clone(container);
        self.background(move |this| {
            this.remove_cgroup(&c);
            this.remove_container_dir(&upper_dir(&this.config.run, &c.id));
            this.remove_container_dir(&spool_dir(&this.config.run, &c.id));
        });
        Ok(())
    }
}
