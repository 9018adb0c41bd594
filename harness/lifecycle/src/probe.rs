//! Probe results and the state of one probe of one container.
//!
//! ```text
//!  Waiting ──running, delay over, turn──► Probing ──threshold──► result set
//!     ▲  new container id                    │ liveness/startup failure, startup success
//!     └──────────────────── OnHold ◄─────────┘
//! ```
//! Source: k/k pkg/kubelet/prober/worker.go, pkg/kubelet/prober/results/results_manager.go.

use std::collections::BTreeMap;

use podlab_api::{
    core::{ContainerStatus, Probe},
    jiff::Timestamp,
};
use podlab_mutant::{self as mutant, Mutant};

use crate::backoff;

/// Which of a container's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Gates the others.
    Startup,
    /// Restarts the container.
    Liveness,
    /// Takes the container out of service.
    Readiness,
}

impl ProbeKind {
    /// As events write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// The result before any probe ran.
    pub fn initial(self) -> ProbeResult {
        match self {
            Self::Startup => ProbeResult::Unknown,
            Self::Liveness => ProbeResult::Success,
            Self::Readiness => ProbeResult::Failure,
        }
    }
}

/// What a probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeResult {
    /// Healthy.
    Success,
    /// Not.
    Failure,
    /// Not known yet.
    Unknown,
}

impl ProbeResult {
    /// As events write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Unknown => "unknown",
        }
    }
}

/// Results by container id, for one kind of probe.
#[derive(Debug, Clone, Default)]
pub struct Results(BTreeMap<String, ProbeResult>);

impl Results {
    /// The result of a container, if a probe of it exists.
    pub fn get(&self, id: &str) -> Option<ProbeResult> {
        self.0.get(id).copied()
    }

    /// Sets a result; true when it changed.
    pub fn set(&mut self, id: &str, result: ProbeResult) -> bool {
        self.0.insert(id.to_owned(), result) != Some(result)
    }

    /// Forgets a container.
    pub fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }
}

/// Thresholds and timings of a probe, defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeTimes {
    /// Seconds after the container's start before the first probe.
    pub initial_delay: u64,
    /// Seconds between probes.
    pub period: u64,
    /// Seconds a probe may take.
    pub timeout: u64,
    /// Successes in a row that count.
    pub success: u32,
    /// Failures in a row that count.
    pub failure: u32,
}

impl ProbeTimes {
    /// Reads a probe's numbers; absent or non-positive ones take upstream's defaults.
    pub fn of(p: &Probe) -> Self {
        let positive =
            |v: Option<i32>, default: u32| v.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default);
        Self {
            initial_delay: u64::from(positive(p.initial_delay_seconds, 0)),
            period: u64::from(positive(p.period_seconds, 10)),
            timeout: u64::from(positive(p.timeout_seconds, 1)),
            success: positive(p.success_threshold, 1),
            failure: positive(p.failure_threshold, 3),
        }
    }
}

/// What the Pod around the container is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodView {
    /// It is marked for deletion.
    pub deleting: bool,
    /// Its phase is final.
    pub terminal: bool,
    /// The container comes back when it ends.
    pub restarts: bool,
}

/// What a turn of the probe leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do until the next turn.
    Skip,
    /// Record this result and skip.
    Set(ProbeResult),
    /// Record this result and end the worker.
    SetAndEnd(ProbeResult),
    /// End the worker.
    End,
    /// Run the probe now.
    Probe,
}

/// One probe of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    kind: ProbeKind,
    times: ProbeTimes,
    id: Option<String>,
    on_hold: bool,
    last: Option<ProbeResult>,
    run: u32,
}

/// A new container id was met: results of the old one go, the new one starts with `set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The id before, if any.
    pub old: Option<String>,
    /// The result to begin with.
    pub set: ProbeResult,
}

impl Machine {
    /// A probe that has met no container yet.
    pub fn new(kind: ProbeKind, times: ProbeTimes) -> Self {
        Self { kind, times, id: None, on_hold: false, last: None, run: 0 }
    }

    /// The container it is about.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Takes notice of the container's id; must precede [`Machine::turn`]. A container the API already showed as ready
    /// or started (the agent was restarted) begins with that result.
    pub fn adopt(&mut self, status: &ContainerStatus, first_sight_ready: bool) -> Option<Adopted> {
        let id = status.container_id.as_deref().filter(|id| !id.is_empty())?;
        if self.id.as_deref() == Some(id) {
            return None;
        }
        let old = self.id.replace(id.to_owned());
        self.on_hold = false;
        (self.last, self.run) = (None, 0);
        let set = match self.kind {
            ProbeKind::Readiness if first_sight_ready => ProbeResult::Success,
            ProbeKind::Startup if first_sight_ready => ProbeResult::Success,
            kind => kind.initial(),
        };
        if self.kind == ProbeKind::Startup && set == ProbeResult::Success {
            self.on_hold = true;
        }
        Some(Adopted { old, set })
    }

    /// Decides what this turn does.
    pub fn turn(&self, status: Option<&ContainerStatus>, pod: PodView, now: Timestamp) -> Turn {
        if pod.terminal {
            return Turn::End;
        }
        let Some(status) = status.filter(|s| s.container_id.as_deref().is_some_and(|id| !id.is_empty())) else {
            return Turn::Skip;
        };
        if self.on_hold {
            return Turn::Skip;
        }
        let state = status.state.as_ref();
        let Some(running) = state.and_then(|s| s.running.as_ref()) else {
            let ended = state.is_some_and(|s| s.terminated.is_some());
            return if ended && !pod.restarts {
                Turn::SetAndEnd(ProbeResult::Failure)
            } else {
                Turn::Set(ProbeResult::Failure)
            };
        };
        if pod.deleting && self.kind != ProbeKind::Readiness {
            return Turn::SetAndEnd(ProbeResult::Success);
        }
        let started = running.started_at.as_ref().map_or(now, |t| t.0);
        if backoff::since(now, started).as_secs() < self.times.initial_delay {
            return Turn::Skip;
        }
        let is_startup = self.kind == ProbeKind::Startup;
        let started = status.started == Some(true) || (!is_startup && mutant::is(Mutant::StartupHoldsNobody));
        if started == is_startup { Turn::Skip } else { Turn::Probe }
    }

    /// Counts an outcome; the result to record when a threshold is reached.
    pub fn outcome(&mut self, result: ProbeResult) -> Option<ProbeResult> {
        if self.last == Some(result) {
            self.run += 1;
        } else {
            (self.last, self.run) = (Some(result), 1);
        }
        let needed = match result {
            ProbeResult::Failure if mutant::is(Mutant::OneFailureIsEnough) => 1,
            ProbeResult::Success if mutant::is(Mutant::OneSuccessIsEnough) => 1,
            ProbeResult::Failure => self.times.failure,
            ProbeResult::Success => self.times.success,
            ProbeResult::Unknown => return None,
        };
        if self.run < needed {
            return None;
        }
        let fatal = self.kind == ProbeKind::Liveness && result == ProbeResult::Failure;
        if fatal || self.kind == ProbeKind::Startup {
            self.on_hold = true;
            self.run = 0;
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests;
