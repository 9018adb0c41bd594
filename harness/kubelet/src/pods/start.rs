//! Starting one container: back-off, image, configuration, create, start, postStart.
//! Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container.go startContainer.

use podlab_api::{
    core::{Container, Pod},
    jiff::Timestamp,
};
use podlab_lifecycle::{
    container::StartFailure,
    runtime::RuntimeState,
    spec::{self, ContainerKind},
    words::WaitingReason,
};
use podlab_timeline::{Outcome, Stage};

use super::{
    hooks,
    kill::{Kill, Target},
    sync::{Errors, Round},
    worker::Worker,
};
use crate::{
    container::{ContainerInputs, container_config, spec_hash},
    images::{Present, Request},
    users::enter_container,
};

/// A container that did not start.
pub(super) struct Failed {
    /// When a back-off ends, if that is why.
    pub(super) until: Option<Timestamp>,
    /// Whether the runtime holds something new because of the attempt.
    pub(super) touched: bool,
}

impl Worker {
    /// Starts a container; its failure is remembered for the status.
    pub(super) async fn start(&mut self, round: &Round, kind: ContainerKind, c: &Container) -> Result<(), Failed> {
        let kind_label = match kind {
            ContainerKind::Init => "init_container",
            ContainerKind::Regular => "container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        let agent = self.agent.clone();
        let labels = [("container_type", kind_label)];
        match self.try_start(round, kind, c).await {
            Ok(()) => {
                agent.metrics.inc("kubelet_started_containers_total", &labels);
                self.failures.remove(&c.name);
                Ok(())
            }
            Err((failure, failed)) => {
                if failure.reason != WaitingReason::CrashLoopBackOff {
                    let labels = [labels[0], ("code", failure.reason.as_str())];
                    agent.metrics.inc("kubelet_started_containers_total", &labels[..1]);
                    agent.metrics.inc("kubelet_started_containers_errors_total", &labels);
                }
                self.failures.insert(c.name.clone(), failure);
                Err(failed)
            }
        }
    }

    async fn try_start(
        &mut self,
        round: &Round,
        kind: ContainerKind,
        c: &Container,
    ) -> Result<(), (StartFailure, Failed)> {
        let (agent, pod) = (self.agent.clone(), &round.pod);
        let fail = |reason: WaitingReason, message: String, until: Option<Timestamp>, touched: bool| {
            (StartFailure { reason, message }, Failed { until, touched })
        };
        if kind == ContainerKind::Regular {
            // The init phase is over, whether there was one or not; without one the image comes first in time.
            if !spec::init_containers(pod).is_empty() {
                self.stamp(Stage::ImagesReady);
                self.stamp(Stage::InitDone);
            }
        }
        if let Some((message, until)) = self.crash_backoff(round, kind, c) {
            return Err(fail(WaitingReason::CrashLoopBackOff, message, Some(until), false));
        }
        let warn = |message: &str| agent.say.container_warn(pod, kind, &c.name, "Failed", format!("Error: {message}"));
        let request = Request { pod, kind, container: c, keyring: &round.keyring, sandbox: &round.sandbox };
        let ending = self.mailbox.ending.clone();
        let image = match ending.run_until_cancelled(agent.images.ensure(&request)).await {
            Some(Ok(image)) => image,
            Some(Err(e)) => {
                warn(e.failure.reason.as_str());
                return Err((e.failure, Failed { until: e.until, touched: false }));
            }
            None => return Err(fail(WaitingReason::ErrImagePull, "context canceled".to_owned(), None, false)),
        };
        self.stamp(Stage::ImagesReady);
        if kind == ContainerKind::Regular {
            self.stamp(Stage::InitDone);
        }
        let config = match self.config(round, kind, c, image).await {
            Ok(config) => config,
            Err(message) => {
                warn(&message);
                return Err(fail(WaitingReason::CreateContainerConfigError, message, None, false));
            }
        };
        let start = agent.recorder.now();
        let made = agent.runtime.create_container(&round.sandbox_id, config, round.sandbox.clone()).await;
        let outcome = made.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        agent.recorder.call(Some(&self.key), "CreateContainer", &c.name, start, outcome);
        let id = match made {
            Ok(id) => id,
            Err(e) => {
                warn(&e.message);
                return Err(fail(WaitingReason::CreateContainerError, e.message, None, false));
            }
        };
        if let Some(expected) = &mut self.expected {
            expected.containers.push(id.clone());
        }
        agent.say.container(pod, kind, &c.name, "Created", "Container created");
        let start = agent.recorder.now();
        let started = agent.runtime.start_container(&id).await;
        let outcome = started.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        agent.recorder.call(Some(&self.key), "StartContainer", &c.name, start, outcome);
        if let Err(e) = started {
            let message = e.message.replace(&id, &c.name);
            warn(&message);
            return Err(fail(WaitingReason::RunContainerError, e.message, None, true));
        }
        self.just_started = Some(id.clone());
        self.requested.retain(|id, _| round.runtime.containers.iter().any(|c| c.id == *id));
        self.requested.insert(id.clone(), podlab_lifecycle::resources::memory_request(c));
        if self.sized.is_none() {
            self.sized = pod.metadata.generation;
        }
        agent.say.container(pod, kind, &c.name, "Started", "Container started");
        self.link_log(c, &id, round);
        if let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) {
            let ip = round.ips.first().cloned().unwrap_or_default();
            if let Err(message) = hooks::run(&agent, pod, c, &id, &ip, hook).await {
                agent.say.container_warn(pod, kind, &c.name, "FailedPostStartHook", "PostStartHook failed");
                let target = Target {
                    id: id.clone(),
                    name: c.name.clone(),
                    message: Some("FailedPostStartHook".to_owned()),
                    reason: None,
                };
                Kill { agent: &agent, pod: Some(pod), key: &self.key }.containers(&[target], None).await;
                self.just_started = None;
                // What was known of it says that it runs.
                self.expected = None;
                return Err(fail(WaitingReason::PostStartHookError, message, None, true));
            }
        }
        Ok(())
    }

    /// Whether the container's last end is too recent; the message and when it may start again.
    /// Source: k/k pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff.
    fn crash_backoff(&self, round: &Round, kind: ContainerKind, c: &Container) -> Option<(String, Timestamp)> {
        // The newest that has ended: a newer one may have been created and never started.
        let record = round.runtime.containers.iter().find(|r| r.name == c.name && r.state == RuntimeState::Exited)?;
        let agent = &self.agent;
        let ended = record.finished_at.unwrap_or(record.created_at);
        let label = spec::pod_label(&round.pod);
        let key = format!("{label}{}{:x}", c.name, spec_hash(c));
        let mut crash = agent.crash.lock();
        let now = agent.clock.wall();
        let Some(until) = crash.waits_until(&key, ended, now) else {
            crash.next(&key, ended, now);
            return None;
        };
        let delay = crash.delay(&key);
        drop(crash);
        agent.say.container_warn(
            &round.pod,
            kind,
            &c.name,
            "BackOff",
            format!("Back-off restarting failed container {} in pod {label}", c.name),
        );
        Some((
            format!("back-off {} restarting failed container={} pod={label}", go_seconds(delay.as_secs()), c.name),
            until,
        ))
    }

    async fn config(
        &self,
        round: &Round,
        kind: ContainerKind,
        c: &Container,
        image: Present,
    ) -> Result<podlab_cri::v1::ContainerConfig, String> {
        let agent = &self.agent;
        let record = round.runtime.container(&c.name);
        let restart_count = match record {
            Some(r) => r.restart_count + 1,
            None => self.count_without_record(c),
        };
        let target = (kind == ContainerKind::Ephemeral).then(|| target_name(&round.pod, &c.name)).flatten();
        let target_id = target.and_then(|t| round.runtime.container(&t).map(|r| r.id.clone()));
        let inputs = ContainerInputs {
            pod: &round.pod,
            container: c,
            restart_count,
            image: image.spec,
            image_user: image.user,
            pod_ips: &round.ips,
            volumes: &round.volumes,
            image_volumes: &round.image_volumes,
            target_id,
            allocatable: agent.allocatable,
            memory_capacity: agent.machine.memory,
            nonce: format!("{:08x}", agent.rng.next_u64() & 0xffff_ffff),
        };
        let made = container_config(&inputs, &agent.config, &agent.objects, agent.host.as_ref()).await;
        let mut made = made.map_err(|e| e.to_string())?;
        if let Some(users) = agent.users_known(inputs.pod)? {
            enter_container(&mut made, &users);
        }
        Ok(made)
    }

    /// The restart count of a container the runtime has no trace of: one more than the API shows if the API still shows
    /// the one that is gone; a status that was generated since has counted it already.
    fn count_without_record(&self, c: &Container) -> u32 {
        let Some(status) = self.agent.status.get(&self.uid) else { return 0 };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let old = lists.into_iter().flatten().flatten().find(|s| s.name == c.name);
        old.map_or(0, |s| u32::try_from(s.restart_count).unwrap_or(0) + u32::from(s.container_id.is_some()))
    }

    /// Gets the images that are mounted as volumes.
    pub(super) async fn image_volumes(&self, round: &mut Round, errors: &mut Errors) {
        let pod = round.pod.clone();
        for v in spec::pod_spec(&pod).volumes.iter().flatten() {
            let Some(source) = &v.image else { continue };
            // The image of a volume is asked for as a container's would be, under the volume's name.
            let as_container = Container {
                name: v.name.clone(),
                image: source.reference.clone(),
                image_pull_policy: source.pull_policy.clone(),
                ..Container::default()
            };
            let request = Request {
                pod: &pod,
                kind: ContainerKind::Regular,
                container: &as_container,
                keyring: &round.keyring,
                sandbox: &round.sandbox,
            };
            match self.agent.images.ensure(&request).await {
                Ok(present) => {
                    round.image_volumes.insert(v.name.clone(), present.spec);
                }
                Err(e) => errors.add(e.until),
            }
        }
    }

    fn link_log(&self, c: &Container, id: &str, round: &Round) {
        let Some(dir) = &self.agent.config.container_logs_dir else { return };
        let k = &self.key;
        let attempt = round.runtime.container(&c.name).map_or(0, |r| r.restart_count + 1);
        let log = self.agent.config.log_dir(&k.namespace, &k.name, &k.uid).join(&c.name).join(format!("{attempt}.log"));
        let link = dir.join(format!("{}_{}_{}-{id}.log", k.name, k.namespace, c.name));
        if let Err(error) = self.agent.host.symlink(&log, &link) {
            tracing::debug!(%error, link = %link.display(), "log not linked");
        }
    }
}

/// `10s`, `1m20s`, `5m0s`: Go's print of whole seconds.
fn go_seconds(s: u64) -> String {
    if s < 60 { format!("{s}s") } else { format!("{}m{}s", s / 60, s % 60) }
}

fn target_name(pod: &Pod, ephemeral: &str) -> Option<String> {
    let list = spec::pod_spec(pod).ephemeral_containers.as_deref().unwrap_or_default();
    list.iter().find(|e| e.name == ephemeral)?.target_container_name.clone().filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::go_seconds;

    #[test]
    fn back_off_times_print_as_go_prints_them() {
        assert_eq!([10, 40, 80, 160, 300].map(go_seconds), ["10s", "40s", "1m20s", "2m40s", "5m0s"]);
    }
}
