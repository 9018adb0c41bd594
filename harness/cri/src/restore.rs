//! A bridge that starts finds what its predecessor left: it undoes what was half made, adopts what runs, takes back
//! descriptors, and learns of the ends it missed.

use std::{collections::BTreeSet, fs, sync::Arc};

use crate::{
    init::Exit,
    journal::Kind,
    runtime::Runtime,
    state::{Container, ContainerPhase, ContainerRecord, Sandbox, SandboxPhase, SandboxRecord},
};

/// Exit code of a container whose end nobody saw. Source: containerd internal/cri/server/restart.go.
const UNKNOWN_EXIT: i32 = 255;

impl Runtime {
    /// Reads the records and brings memory in line with the world. Called once, before the first request.
    pub(crate) async fn restore(self: &Arc<Self>) {
        let mut half_made = Vec::new();
        for (id, record) in self.journal.read_all::<SandboxRecord>(Kind::Sandbox) {
            let sandbox = Sandbox::new(record);
            if sandbox.record.lock().phase == SandboxPhase::Creating {
                half_made.push(sandbox);
                continue;
            }
            self.adopt_sandbox(&sandbox);
            self.sandboxes.lock().insert(id, sandbox);
        }
        for sandbox in half_made {
            self.undo_half_made(&sandbox).await;
        }
        for (id, record) in self.journal.read_all::<ContainerRecord>(Kind::Container) {
            if self.sandbox(&record.sandbox_id).is_err() {
                let _ = self.journal.remove(Kind::Container, &id);
                continue;
            }
            let container = Container::new(record);
            self.name_container(&container);
            self.containers.lock().insert(id, Arc::clone(&container));
            if container.phase() == ContainerPhase::Running {
                self.adopt_container(&container).await;
            }
        }
        let swept = self.blocking(|this| {
            this.sweep();
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "what the predecessor left could not be swept");
        }
        let ids: Vec<String> = self.sandboxes.lock().keys().cloned().collect();
        if let Err(error) = self.network.gc(&ids).await {
            tracing::debug!(%error, "the network could not be swept");
        }
    }

    fn adopt_sandbox(&self, sandbox: &Sandbox) {
        let mut record = sandbox.record.lock();
        if let Some(m) = record.config.metadata.clone() {
            let name = format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt);
            let _ = self.reserve("sandbox", &name, &record.id);
        }
        let network_kept = record.netns.as_deref().is_none_or(crate::sandbox::is_netns);
        if record.phase == SandboxPhase::Ready && !(network_kept && record.process.is_some_and(|p| p.alive())) {
            record.phase = SandboxPhase::NotReady;
            let _ = self.journal.write(Kind::Sandbox, &record.id, &*record);
        }
    }

    fn name_container(&self, container: &Container) {
        let record = container.record.lock();
        let Ok(sandbox) = self.sandbox(&record.sandbox_id) else { return };
        let of = sandbox.record.lock().config.metadata.clone().unwrap_or_default();
        if let Some(m) = &record.config.metadata {
            let name = format!("{}_{}_{}_{}_{}", m.name, of.name, of.namespace, of.uid, m.attempt);
            let _ = self.reserve("container", &name, &record.id);
        }
    }

    async fn adopt_container(self: &Arc<Self>, container: &Arc<Container>) {
        // Its output first: what it wrote before its end is still in the pipes that init holds.
        match self.init.take(&format!("c/{}", container.id)) {
            Ok(fds) => {
                if let Err(error) = self.watch_output(container, fds) {
                    tracing::warn!(container = %container.id, %error, "its output cannot be followed");
                    container.drained.send_replace(true);
                }
            }
            Err(_) => drop(container.drained.send_replace(true)),
        }
        let Some(process) = container.record.lock().process else { return };
        let known = process.exists() || self.init.has_exit(process).unwrap_or(false);
        if !known {
            container.record.lock().reason = "Unknown".into();
            let exit = Exit {
                seq: 0,
                pid: process.pid,
                start: process.start,
                key: String::new(),
                code: UNKNOWN_EXIT,
                signal: 0,
                wall_ns: self.now_ns(),
            };
            self.container_exited(&container.id, exit).await;
        }
    }

    /// Removes what belongs to nothing: held descriptors, directories.
    fn sweep(&self) {
        let containers: BTreeSet<String> = self.containers.lock().keys().cloned().collect();
        let sandboxes: BTreeSet<String> = self.sandboxes.lock().keys().cloned().collect();
        let is_running = |c: &&Arc<Container>| c.phase() == ContainerPhase::Running;
        let running: BTreeSet<String> =
            self.containers.lock().values().filter(is_running).map(|c| c.id.clone()).collect();
        for key in self.init.keys().unwrap_or_default() {
            let owner = key.split_once('/').map_or("", |k| k.1);
            if !running.contains(owner) {
                let _ = self.init.drop_key(&key);
            }
        }
        let orphans = |dir: &str, known: &BTreeSet<String>| {
            let all = fs::read_dir(self.config.run.join("rw").join(dir)).into_iter().flatten().flatten();
            all.filter(|e| !known.contains(&*e.file_name().to_string_lossy())).map(|e| e.path()).collect::<Vec<_>>()
        };
        for dir in orphans("pods", &sandboxes) {
            crate::sandbox::remove_sandbox_dir(&dir);
        }
        for dir in orphans("containers", &containers).into_iter().chain(orphans("io", &containers)) {
            self.remove_container_dir(&dir);
        }
    }
}
