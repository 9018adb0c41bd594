//! The end of a container: its output is written out, its code is written down, everybody is told, its cgroup goes.

use std::{fs, sync::Arc, time::Duration};

use podlab_mutant::{self as mutant, Mutant};

use crate::{
    container::KILL_PATIENCE,
    init::Exit,
    runtime::Runtime,
    state::{Container, ContainerPhase, upper_dir},
    v1::ContainerEventType,
};

/// What a child exits with that never got the word to go on, and the file beside its writable layer that says it got it.
const NOT_RELEASED: i32 = 127;
pub(crate) const STARTED: &str = "started";
/// How long output may follow the end of a container whose children hold its pipes.
const DRAIN: Duration = Duration::from_secs(2);

impl Runtime {
    /// Init says that a container's first process has ended.
    pub(crate) async fn container_exited(self: &Arc<Self>, id: &str, exit: Exit) {
        let known = self.container(id).ok();
        if let Some(container) = &known {
            // A start that is still under way settles first.
            let _op = container.op.lock().await;
            let ours = container.record.lock().process.is_some_and(|p| p.pid == exit.pid && p.start == exit.start);
            if ours && container.phase() == ContainerPhase::Running {
                self.settle_exit(container, &exit).await;
            }
        }
        let id = id.to_owned();
        self.background(move |this| {
            // What is held belongs to a later start of the container, if there has been one. The acknowledgement comes
            // last: without it a successor does this again.
            if known.is_none_or(|c| c.phase() != ContainerPhase::Running) {
                for key in [format!("c/{id}"), format!("i/{id}")] {
                    let _ = this.init.drop_key(&key);
                }
            }
            let _ = this.init.acknowledge(exit.pid, exit.start);
        });
    }

    async fn settle_exit(self: &Arc<Self>, container: &Arc<Container>, exit: &Exit) {
        let record = container.record.lock().clone();
        if exit.code == NOT_RELEASED
            && fs::metadata(upper_dir(&self.config.run, &record.id).join(STARTED)).is_ok_and(|m| m.len() == 0)
        {
            // Our predecessor died between writing the start down and saying so: nothing has run.
            return self.take_back_start(container).await;
        }
        let group = self.cgroups.group(&record.cgroup);
        if !self.owns_pid_namespace(&record) {
            group.kill();
        }
        self.drain(container).await;
        let oom = group.oom_kills() > 0 && !mutant::is(Mutant::OomIsJustAnExit);
        {
            let mut record = container.record.lock();
            record.phase = ContainerPhase::Exited;
            record.exit_code = if mutant::is(Mutant::EveryExitIsZero) { 0 } else { exit.code };
            record.finished_at = exit.wall_ns;
            if oom {
                record.reason = "OOMKilled".into();
            }
        }
        if let Err(error) = self.save_container(container) {
            tracing::error!(container = %container.id, %error, "the end of a container could not be written down");
        }
        self.emit(ContainerEventType::ContainerStoppedEvent, &container.id, &record.sandbox_id);
        container.changed.send_replace(ContainerPhase::Exited);
        let c = Arc::clone(container);
        self.background(move |this| this.remove_cgroup(&c));
    }

    async fn take_back_start(&self, container: &Container) {
        self.drain(container).await;
        {
            let mut record = container.record.lock();
            record.phase = ContainerPhase::Created;
            record.started_at = 0;
            (record.process, record.identity) = (None, None);
        }
        if let Err(error) = self.save_container(container) {
            tracing::error!(container = %container.id, %error, "a start that was taken back could not be written down");
        }
        container.changed.send_replace(ContainerPhase::Created);
    }

    /// Waits until all output is in the log; heirs of the container do not hold this up for long.
    async fn drain(&self, container: &Container) {
        let mut drained = container.drained.subscribe();
        if self.clock.timeout(DRAIN, drained.wait_for(|d| *d)).await.is_none() {
            let handle = container.log.lock().clone();
            if let Some(handle) = handle {
                handle.finish().await;
                let _ = self.clock.timeout(DRAIN, drained.wait_for(|d| *d)).await;
            }
        }
        *container.log.lock() = None;
    }

    /// Removes a container's writable layer or spool, and the cgroup the former names.
    pub(crate) fn remove_container_dir(&self, dir: &std::path::Path) {
        if let Ok(cgroup) = fs::read_link(dir.join("cgroup")) {
            self.remove_group(&self.cgroups.group(&cgroup.to_string_lossy()));
        }
        let _ = fs::remove_dir_all(dir);
    }

    pub(crate) fn remove_cgroup(&self, container: &Container) {
        let group = self.cgroups.group(&container.record.lock().cgroup);
        self.remove_group(&group);
    }

    /// Blocks until the group is gone.
    fn remove_group(&self, group: &crate::cgroup::Group) {
        // Zombies leave a group a moment after their parent has heard of them, and what was killed takes a moment to end.
        let handle = tokio::runtime::Handle::current();
        let mut pause = Duration::from_millis(1);
        while let Err(e) = group.remove()
            && e.kind() == std::io::ErrorKind::ResourceBusy
            && pause < KILL_PATIENCE
        {
            group.kill();
            handle.block_on(self.clock.sleep(pause));
            pause *= 2;
        }
    }
}
