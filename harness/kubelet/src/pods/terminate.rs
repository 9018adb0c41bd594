//! Ending a Pod: stop everything, show how it ended, clean up, let go of the API object.
//! Source: k/k pkg/kubelet/kubelet.go SyncTerminatingPod, SyncTerminatedPod.

use std::sync::Arc;

use podlab_api::core::Pod;
use podlab_lifecycle::{
    phase::Liveness,
    runtime::RuntimeState,
    spec,
    status::{self, MayRun},
};

use super::worker::Worker;
use crate::{container, volumes::VolumeError};

/// Why a Pod could not be stopped; tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndError {
    /// The runtime refused.
    #[error("{0}")]
    Runtime(#[from] crate::runtime::RuntimeError),
    /// Containers are still there.
    #[error("detected running containers after a successful KillPod, CRI violation: [{0}]")]
    StillRunning(String),
}

impl Worker {
    pub(super) async fn terminate(&mut self, pod: &Arc<Pod>) -> Result<(), EndError> {
        self.may_have_history |= self.agent.had_at_start(&self.uid);
        if let Some(verdict) = self.mailbox.end_request().verdict {
            self.verdict = Some(verdict);
        }
        self.just_started = None;
        let runtime = self.read().await?;
        if self.verdict.is_some() {
            self.check_deadline(pod);
        }
        let now = self.generate(pod, &runtime, Liveness::Active);
        self.publish(pod, now, MayRun::Yes);
        self.agent.prober.stop_liveness_and_startup(&self.uid);
        // A stop under way goes on as it began: a second deletion with less grace is heard by the next try alone.
        let pod = self.mailbox.pod();
        let grace = self.pod_grace(&pod);
        self.kill_everything(&pod, &runtime, Some(grace)).await?;
        self.agent.prober.remove_pod(&self.uid);
        let pod = self.mailbox.pod();
        let runtime = self.read().await?;
        let running: Vec<String> =
            runtime.containers.iter().filter(|c| c.state == RuntimeState::Running).map(|c| c.name.clone()).collect();
        if !running.is_empty() {
            return Err(EndError::StillRunning(running.join(" ")));
        }
        if self.verdict.is_some() {
            self.check_deadline(&pod);
        }
        let ended = self.generate(&pod, &runtime, Liveness::Terminal);
        self.publish(&pod, ended, MayRun::No);
        Ok(())
    }

    pub(super) async fn clean_up(&mut self, pod: &Arc<Pod>) -> Result<(), VolumeError> {
        let agent = self.agent.clone();
        agent.volumes.tear_down(&self.uid).await?;
        agent.users.release(&self.uid);
        if agent.config.cgroup_root.is_some() {
            let path = container::pod_cgroup_path(pod);
            agent.host.cgroup_remove(&path).map_err(VolumeError::file(format!("remove cgroup {path}")))?;
            agent.qos_changed();
        }
        agent.objects.release(&self.uid);
        agent.images.forget(&self.uid);
        if let Some(current) = agent.status.get(&self.uid) {
            self.publish(pod, status::finish(pod, &current), MayRun::No);
        }
        let pod = self.mailbox.pod();
        if spec::is_deleting(&pod) || self.mailbox.is_removed() {
            agent.remove_leftovers(&self.uid).await;
        }
        self.mailbox.finish();
        agent.workers.room_made();
        agent.status.finish(&self.uid);
        if self.mailbox.is_removed() {
            agent.workers.forget(&self.uid);
        }
        Ok(())
    }
}
