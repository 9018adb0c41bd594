//! Node-pressure eviction: when a resource of the node runs short, which Pod goes, and what is said about it.
//!
//! ```text
//! observations ─► thresholds met ─► + those met before and not yet min-reclaimed
//!                      │ first seen at          │ node condition, held for the transition period
//!                      ▼ grace period over
//!                 thresholds to act on ─ memory first ─► reclaim on the node ─ not enough ─► rank Pods, evict one
//! ```
//! Source: k/k pkg/kubelet/eviction/{eviction_manager,helpers}.go, apis/eviction, pkg/kubelet/eviction/api/types.go.

mod message;
mod rank;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use message::{binary_si, critical, local_storage, message};
use podlab_api::{ParseQuantityError, jiff::Timestamp, parse_quantity};
pub use rank::{ContainerUsage, Files, PodUsage, rank};

use crate::backoff::since;

/// Grace of a Pod that is evicted at once, seconds.
pub const IMMEDIATE_GRACE: i64 = 1;
/// How often the node is looked at.
pub const PERIOD: Duration = Duration::from_secs(10);
/// How long an evicted Pod is waited for before the next look.
pub const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pressure condition is held after the pressure was last seen, by default.
pub const TRANSITION: Duration = Duration::from_secs(300);

/// What is observed of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the node that is not in the working set.
    MemoryAvailable,
    /// Memory Pods may have that is not in their working set.
    AllocatableMemoryAvailable,
    /// Bytes left on the node's file system.
    NodefsAvailable,
    /// Inodes left on the node's file system.
    NodefsInodesFree,
    /// Bytes left where images are.
    ImagefsAvailable,
    /// Inodes left where images are.
    ImagefsInodesFree,
    /// Bytes left where writable layers are.
    ContainerfsAvailable,
    /// Inodes left where writable layers are.
    ContainerfsInodesFree,
    /// Process ids left.
    PidAvailable,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    /// As configuration names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == name)
    }

    /// The starved resource, as messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// The node condition that shows it.
    pub fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree
            | Self::ContainerfsAvailable
            | Self::ContainerfsInodesFree => Pressure::Disk,
            Self::PidAvailable => Pressure::Pid,
        }
    }
}

/// A pressure condition of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// `MemoryPressure`.
    Memory,
    /// `DiskPressure`.
    Disk,
    /// `PIDPressure`.
    Pid,
}

impl Pressure {
    /// The condition's type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// How much of a resource: a number, or a share of the capacity.
#[derive(Debug, Clone, PartialEq)]
pub enum Amount {
    /// A quantity; its text is kept for messages.
    Quantity(i64, String),
    /// A share, 0 to 1.
    Share(f32),
}

impl Amount {
    /// In units, on this capacity.
    pub fn of(&self, capacity: i64) -> i64 {
        match self {
            Self::Quantity(n, _) => *n,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "a share of a capacity below 2^53; upstream computes it in floating point as well"
            )]
            Self::Share(share) => (capacity as f64 * f64::from(*share)) as i64,
        }
    }

    pub(crate) fn shown(&self, capacity: i64) -> String {
        match self {
            Self::Quantity(_, text) => text.clone(),
            Self::Share(_) => binary_si(self.of(capacity)),
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quantity(_, text) => f.write_str(text),
            Self::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

/// Why a threshold is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// No such signal.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// Not a number.
    #[error("eviction threshold {signal}: {source}")]
    Quantity {
        /// Of which signal.
        signal: String,
        /// Why.
        #[source]
        source: ParseQuantityError,
    },
    /// Zero or less.
    #[error("eviction threshold {0} must be positive: {1}")]
    NotPositive(String, String),
    /// Not a percentage.
    #[error("eviction percentage threshold {0} must be >= 0% and <= 100%: {1}")]
    Percentage(String, String),
    /// A soft threshold without a period.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGrace(String),
}

/// Below what a signal must not fall.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// Of which signal.
    pub signal: Signal,
    /// The bound.
    pub value: Amount,
    /// How long it must be crossed; zero for a hard threshold.
    pub grace: Duration,
    /// How far above the bound the signal must come before the threshold counts as resolved.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether it acts at once.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// Reads one bound, e.g. `100Mi` or `10%`. `Ok(None)` for one that is switched off (`0%`, `100%`).
///
/// # Errors
/// [`ThresholdError`], in upstream's words.
pub fn parse_amount(signal: &str, text: &str) -> Result<Option<Amount>, ThresholdError> {
    if let Some(number) = text.strip_suffix('%') {
        let bad = || ThresholdError::Percentage(signal.to_owned(), text.to_owned());
        if matches!(text, "0%" | "100%") {
            return Ok(None);
        }
        let share = number.parse::<f32>().map_err(|_| bad())? / 100.0;
        return if (0.0..=1.0).contains(&share) { Ok(Some(Amount::Share(share))) } else { Err(bad()) };
    }
    let n = parse_quantity(text)
        .map_err(|source| ThresholdError::Quantity { signal: signal.to_owned(), source })
        .map(|n| i64::try_from(n).unwrap_or(i64::MAX))?;
    if n <= 0 {
        return Err(ThresholdError::NotPositive(signal.to_owned(), text.to_owned()));
    }
    Ok(Some(Amount::Quantity(n, text.to_owned())))
}

/// The thresholds of a configuration, hard ones first. A hard `memory.available` also guards the memory of Pods.
///
/// # Errors
/// [`ThresholdError`], in upstream's words.
pub fn thresholds(
    hard: &BTreeMap<String, String>,
    soft: &BTreeMap<String, String>,
    soft_grace: &BTreeMap<String, Duration>,
    min_reclaim: &BTreeMap<String, String>,
) -> Result<Vec<Threshold>, ThresholdError> {
    let known = |name: &str| Signal::parse(name).ok_or_else(|| ThresholdError::Signal(name.to_owned()));
    let reclaim = |name: &str| min_reclaim.get(name).map(|t| parse_amount(name, t)).transpose().map(Option::flatten);
    for name in soft_grace.keys().chain(min_reclaim.keys()) {
        known(name)?;
    }
    let mut out = Vec::new();
    for (name, text) in hard {
        let signal = known(name)?;
        if let Some(value) = parse_amount(name, text)? {
            out.push(Threshold { signal, value, grace: Duration::ZERO, min_reclaim: reclaim(name)? });
        }
    }
    for (name, text) in soft {
        let signal = known(name)?;
        let grace = *soft_grace.get(name).ok_or_else(|| ThresholdError::NoGrace(name.clone()))?;
        if let Some(value) = parse_amount(name, text)? {
            out.push(Threshold { signal, value, grace, min_reclaim: reclaim(name)? });
        }
    }
    let of_pods = out.iter().find(|t| t.signal == Signal::MemoryAvailable && t.is_hard()).cloned();
    out.extend(of_pods.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..t }));
    Ok(out)
}

/// A reading of one signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// What is left.
    pub available: i64,
    /// What there is.
    pub capacity: i64,
}

/// Readings by signal; what is missing is not judged.
pub type Observations = BTreeMap<Signal, Observation>;

/// What the manager remembers between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Thresholds that were acted on last time.
    met: Vec<Threshold>,
    /// When each threshold was first seen crossed.
    first_observed: Vec<(Threshold, Timestamp)>,
    /// When each pressure was last seen.
    last_observed: BTreeMap<Pressure, Timestamp>,
    /// Conditions that are shown.
    conditions: BTreeSet<Pressure>,
}

impl State {
    /// The pressure conditions the node shows.
    pub fn conditions(&self) -> &BTreeSet<Pressure> {
        &self.conditions
    }
}

/// Those of `thresholds` that are crossed; with `min_reclaim`, those not yet left behind by far enough.
pub fn met(thresholds: &[Threshold], seen: &Observations, min_reclaim: bool) -> Vec<Threshold> {
    let crossed = |t: &&Threshold| {
        seen.get(&t.signal).is_some_and(|o| {
            let extra = t.min_reclaim.as_ref().filter(|_| min_reclaim).map_or(0, |m| m.of(o.capacity));
            t.value.of(o.capacity).saturating_add(extra) > o.available
        })
    };
    thresholds.iter().filter(crossed).cloned().collect()
}

/// One look at the node: the next state, and the thresholds to act on, memory first.
pub fn step(
    state: &State,
    thresholds: &[Threshold],
    transition: Duration,
    seen: &Observations,
    now: Timestamp,
) -> (State, Vec<Threshold>) {
    let mut crossed = met(thresholds, seen, false);
    for t in met(&state.met, seen, true) {
        if !crossed.contains(&t) {
            crossed.push(t);
        }
    }
    let before = |t: &Threshold| state.first_observed.iter().find(|(o, _)| o == t).map(|(_, at)| *at);
    let first_observed: Vec<(Threshold, Timestamp)> =
        crossed.into_iter().map(|t| (t.clone(), before(&t).unwrap_or(now))).collect();
    let mut last_observed = state.last_observed.clone();
    last_observed.extend(first_observed.iter().map(|(t, _)| (t.signal.pressure(), now)));
    let conditions = last_observed.iter().filter(|(_, at)| since(now, **at) < transition).map(|(p, _)| *p).collect();
    let due = first_observed.iter().filter(|(t, at)| since(now, *at) >= t.grace).map(|(t, _)| t.clone());
    let met: Vec<Threshold> = due.collect();
    let mut act = met.clone();
    act.sort_by_key(|t| t.signal.pressure() != Pressure::Memory);
    (State { met, first_observed, last_observed, conditions }, act)
}

/// Grace of a Pod evicted for a threshold, seconds: at once for a hard one, else the configured most.
pub fn grace(threshold: &Threshold, max_pod_grace: i64) -> i64 {
    if threshold.is_hard() { IMMEDIATE_GRACE } else { max_pod_grace }
}

#[cfg(test)]
mod tests;
