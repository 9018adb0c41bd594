//! One probe of one container: when to look, and what a look changes.

use std::{sync::Arc, time::Duration};

use podlab_api::core::{Container, ContainerStatus, Pod, Probe};
use podlab_lifecycle::{
    probe::{Machine, PodView, ProbeKind, ProbeResult, ProbeTimes, Turn},
    restart, spec,
    spec::{ContainerKind, RestartPolicy},
    words::Phase,
};
use podlab_timeline::Outcome;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Prober, dial, raw_id};
use crate::status::key_of;

/// Tries within one turn when the probe itself could not be carried out.
const TRIES: usize = 3;

pub(super) struct Worker {
    pub(super) prober: Arc<Prober>,
    pub(super) uid: String,
    pub(super) container: Container,
    pub(super) kind: ProbeKind,
    pub(super) probe: Probe,
    pub(super) trigger: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

impl Worker {
    pub(super) async fn run(self) {
        let key = (self.uid.clone(), self.container.name.clone(), self.kind);
        let stop = self.stop.clone();
        let id = stop.run_until_cancelled(self.turns()).await;
        if id.is_some() {
            self.prober.ended(&key);
        }
    }

    async fn turns(&self) {
        let times = ProbeTimes::of(&self.probe);
        let period = Duration::from_secs(times.period);
        let clock = self.prober.clock;
        let mut machine = Machine::new(self.kind, times);
        if clock.now().since(self.prober.began) < period {
            // Agents that restart together must not probe everything at the same moment.
            clock.sleep(period.mul_f64(self.prober.rng.unit())).await;
        }
        let mut next = clock.now();
        loop {
            if !self.turn(&mut machine, &times).await {
                return;
            }
            next = next.after(period);
            while next < clock.now() {
                next = next.after(period);
            }
            loop {
                tokio::select! {
                    biased;
                    () = self.trigger.notified() => {
                        if !self.turn(&mut machine, &times).await {
                            return;
                        }
                    }
                    () = clock.sleep_until(next) => break,
                }
            }
        }
    }

    fn status(&self) -> Option<(Arc<Pod>, podlab_api::core::PodStatus, Option<ContainerStatus>)> {
        let pod = self.prober.state.lock().pods.get(&self.uid).cloned()?;
        let status = self.prober.status.get(&self.uid)?;
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let found = lists.into_iter().flatten().flatten().find(|s| s.name == self.container.name).cloned();
        Some((pod, status, found))
    }

    /// One turn; false when the worker is done.
    async fn turn(&self, machine: &mut Machine, times: &ProbeTimes) -> bool {
        let Some((pod, status, container)) = self.status() else { return true };
        if let Some(c) = &container {
            let first = machine.id().is_none();
            let shown = match self.kind {
                ProbeKind::Readiness => c.ready,
                ProbeKind::Startup => c.started == Some(true),
                ProbeKind::Liveness => false,
            };
            if let Some(adopted) = machine.adopt(c, first && shown) {
                if let Some(old) = &adopted.old {
                    self.prober.state.lock().results(self.kind).remove(raw_id(old));
                }
                let id = c.container_id.clone().unwrap_or_default();
                if adopted.set == self.kind.initial() {
                    self.prober.state.lock().results(self.kind).set(raw_id(&id), adopted.set);
                } else {
                    self.prober.set(&pod, &self.uid, self.kind, &id, adopted.set);
                }
            }
        }
        let init = spec::init_containers(&pod).iter().any(|c| c.name == self.container.name);
        let view = PodView {
            deleting: spec::is_deleting(&pod),
            terminal: Phase::parse(status.phase.as_deref()).is_terminal(),
            restarts: restart::effective_policy(&pod, &self.container, init) != RestartPolicy::Never,
        };
        let id = container.as_ref().and_then(|c| c.container_id.clone()).unwrap_or_default();
        match machine.turn(container.as_ref(), view, self.prober.clock.wall()) {
            Turn::Skip => true,
            Turn::End => false,
            Turn::Set(result) => {
                self.prober.set(&pod, &self.uid, self.kind, &id, result);
                true
            }
            Turn::SetAndEnd(result) => {
                self.prober.set(&pod, &self.uid, self.kind, &id, result);
                false
            }
            Turn::Probe => {
                let kind = if init { ContainerKind::Init } else { ContainerKind::Regular };
                if let Some(result) = self.look(&pod, kind, &status, &id, times).await
                    && let Some(settled) = machine.outcome(result)
                {
                    self.prober.set(&pod, &self.uid, self.kind, &id, settled);
                }
                true
            }
        }
    }

    fn count(&self, pod: &Pod, result: Option<ProbeResult>, took: Duration) {
        let text = |v: &Option<String>| v.clone().unwrap_or_default();
        let m = &pod.metadata;
        let (kind, namespace, name) = (self.kind.as_str(), text(&m.namespace), text(&m.name));
        let result = match result {
            Some(ProbeResult::Success) => "successful",
            Some(ProbeResult::Failure) => "failed",
            Some(ProbeResult::Unknown) | None => "unknown",
        };
        let place = [
            ("probe_type", kind),
            ("container", self.container.name.as_str()),
            ("pod", name.as_str()),
            ("namespace", namespace.as_str()),
        ];
        let counted = [place[0], ("result", result), place[1], place[2], place[3], ("pod_uid", self.uid.as_str())];
        self.prober.metrics.inc("prober_probe_total", &counted);
        self.prober.metrics.observe("prober_probe_duration_seconds", &place, took);
    }

    /// Carries the probe out and says what went wrong; `None` when it could not be carried out.
    async fn look(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        status: &podlab_api::core::PodStatus,
        id: &str,
        times: &ProbeTimes,
    ) -> Option<ProbeResult> {
        let p = &self.prober;
        let start = p.recorder.now();
        let timeout = Duration::from_secs(times.timeout);
        let mut look = dial::Look::Error(String::new());
        for _ in 0..TRIES {
            look = dial::run(p, pod, &self.container, &self.probe, status, raw_id(id), timeout).await;
            if !matches!(look, dial::Look::Error(_)) {
                break;
            }
        }
        let word = self.kind.as_str();
        let (outcome, result) = match look {
            dial::Look::Success => (Outcome::Ok, Some(ProbeResult::Success)),
            dial::Look::Warning(output) => {
                p.say.container_warn(
                    pod,
                    kind,
                    &self.container.name,
                    "ProbeWarning",
                    format!("{word} probe warning: {output}"),
                );
                (Outcome::Ok, Some(ProbeResult::Success))
            }
            dial::Look::Failure(output) => {
                p.say.container_warn(
                    pod,
                    kind,
                    &self.container.name,
                    "Unhealthy",
                    format!("{word} probe failed: {output}"),
                );
                (Outcome::Error(output), Some(ProbeResult::Failure))
            }
            dial::Look::Error(error) => {
                let message = format!("{word} probe errored and resulted in unknown state: {error}");
                p.say.container_warn(pod, kind, &self.container.name, "Unhealthy", message);
                (Outcome::Error(error), None)
            }
        };
        self.count(pod, result, p.clock.now().since(start));
        p.recorder.call(Some(&key_of(pod)), word, &self.container.name, start, outcome);
        result
    }
}
