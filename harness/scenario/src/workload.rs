//! Loads, measures and gates: Pods that arrive by a plan, what is measured of them, and how good that must be.

use std::{collections::BTreeSet, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

use crate::{Scenario, Span};

/// Fewest starts of which a 99th percentile is quoted.
pub const P99_NEEDS: u32 = 300;

/// Pods per second, written with their time: `20/s`, `90/m`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("{s:?} is not a rate; write a number above zero and a time, such as 20/s or 90/m");
        let (n, per) = s.split_once('/').ok_or_else(bad)?;
        let n: f64 = n.parse().map_err(|_| bad())?;
        let rate = match per {
            "s" => n,
            "m" => n / 60.0,
            _ => return Err(bad()),
        };
        if rate > 0.0 && rate <= 100_000.0 { Ok(Self(rate)) } else { Err(bad()) }
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Pods per second or minute: a number, a slash, and s or m.",
            "type": "string",
            "pattern": "^[0-9]+(\\.[0-9]+)?/[sm]$",
        })
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// Pods that arrive by a plan, after `when` and before `then`. They are named `load-1`, `load-2` and so on.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// When they arrive.
    pub arrivals: ArrivalPlan,
    /// How many arrive, those of the warm-up counted; a search makes its own count.
    #[serde(default)]
    pub count: u32,
    /// How many of the first are not measured.
    #[serde(default)]
    pub warmup: u32,
    /// The Pod, as YAML; its name is given to it.
    pub template: String,
    /// A Pod that is not Ready by then is lost.
    #[serde(default = "half_a_minute")]
    pub within: Span,
    /// How many may be on their way at a time; an arrival beyond that is missed, and counted.
    #[serde(default = "a_thousand")]
    pub at_most: u32,
    /// Churn: how long a Pod that is Ready stays before it is deleted. Those without stay.
    #[serde(default)]
    pub lifetime: Option<Span>,
    /// What ends the load early.
    #[serde(default)]
    pub stop_when: StopLoad,
}

fn half_a_minute() -> Span {
    Span(std::time::Duration::from_secs(30))
}

fn a_thousand() -> u32 {
    1000
}

/// A plan of arrivals. They do not wait for what came of earlier ones, except where the plan is closed.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ArrivalPlan {
    /// One after the other at the same distance.
    Constant {
        /// How many per time.
        rate: Rate,
    },
    /// A rate that changes evenly and then stays.
    Ramp {
        /// At the beginning.
        from: Rate,
        /// At the end.
        to: Rate,
        /// How long the change takes.
        over: Span,
    },
    /// Several at once, again and again.
    Burst {
        /// How many at once.
        size: u32,
        /// From one burst to the next.
        every: Span,
    },
    /// At random with this mean rate, each independent of the others; the seed decides.
    Poisson {
        /// How many per time.
        rate: Rate,
    },
    /// Each as soon as one before it is Ready or lost, so many at a time.
    Closed {
        /// How many are on their way at a time.
        concurrency: u32,
    },
    /// At these times after the beginning.
    Trace {
        /// In rising order.
        offsets: Vec<Span>,
    },
    /// The highest rate at which all gates hold, nobody is lost and no arrival is missed; its Pods are deleted as soon as they are
    /// Ready. Its result is measured as `capacity`.
    Search {
        /// The rate to begin with; it must hold.
        lo: Rate,
        /// The highest rate to try.
        hi: Rate,
        /// How far apart, in percent, a rate that holds and one that does not may stay.
        #[serde(default = "ten_percent")]
        precision: f64,
        /// How long each rate is tried.
        hold: Span,
    },
}

fn ten_percent() -> f64 {
    10.0
}

/// What ends a load early.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopLoad {
    /// So many Pods were lost.
    #[serde(default)]
    pub lost: Option<u32>,
    /// So many arrivals were missed.
    #[serde(default)]
    pub missed: Option<u32>,
}

/// Something measured of the Pods of the load.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Its name, for gates and reports.
    pub id: String,
    /// What it is of.
    pub of: Measured,
}

/// What can be measured.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Measured {
    /// The time from one moment of a Pod's start to another.
    Startup {
        /// It begins when.
        #[serde(default)]
        from: Begin,
        /// It ends when.
        #[serde(default)]
        to: Finish,
    },
    /// The service level indicator of Kubernetes to the letter: schedulable and stateless Pods, without image pulls and init
    /// containers, until a watch has shown every container started.
    Sli {},
    /// Where the time of each start went, in phases that add up.
    #[serde(rename_all = "camelCase")]
    Phases {
        /// The sum of the phases may differ from the whole by this much.
        #[serde(default)]
        tolerance: Option<Span>,
        /// Percent of all time whose end no milestone marks.
        #[serde(default = "five_percent")]
        unattributed_at_most: f64,
    },
    /// From the deletion to the moment a watch shows the Pod gone.
    Deletion {},
}

fn five_percent() -> f64 {
    5.0
}

/// Where a startup begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Begin {
    /// The plan wanted the Pod: what a cluster that falls behind keeps waiting is counted.
    Due,
    /// The create request was sent.
    #[default]
    Asked,
}

/// Where a startup ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Finish {
    /// A watch has shown every container started.
    Started,
    /// A watch has shown the Pod Ready.
    #[default]
    Ready,
}

/// How good a figure must be.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gate {
    /// `<measure>.<statistic>`: of times min, lowerHalf, mean, p50, p90, p99 and max; of Pods count, lost, missed and excluded; of a
    /// search `capacity.rate`.
    pub of: String,
    /// A time: at most this long.
    #[serde(default)]
    pub at_most: Option<Span>,
    /// A count of Pods: at most so many.
    #[serde(default)]
    pub count_at_most: Option<u32>,
    /// A rate: at least so many.
    #[serde(default)]
    pub rate_at_least: Option<Rate>,
    /// An agreed objective.
    #[serde(default)]
    pub slo: Option<Slo>,
}

/// An agreed objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Slo {
    /// Kubernetes: at most 5 s at the 99th percentile.
    #[serde(rename = "k8s-stateless-5s")]
    K8sStateless5s,
}

impl Slo {
    /// The time it allows.
    pub fn at_most(self) -> std::time::Duration {
        match self {
            Self::K8sStateless5s => std::time::Duration::from_secs(5),
        }
    }
}

/// Statistics of times.
pub const TIMES: [&str; 7] = ["min", "lowerHalf", "mean", "p50", "p90", "p99", "max"];
/// Statistics of Pods.
pub const COUNTS: [&str; 4] = ["count", "lost", "missed", "excluded"];

/// What is wrong with load, measures and gates.
pub(crate) fn check(s: &Scenario, say: &mut impl FnMut(&str, &str)) {
    if s.load.is_none() && !(s.measure.is_empty() && s.gate.is_empty()) {
        say("", "measure and gate need a load whose Pods are measured");
    }
    if let Some(load) = &s.load {
        workload(load, say);
    }
    let mut ids = BTreeSet::new();
    for (i, m) in s.measure.iter().enumerate() {
        let at = format!("measure[{}]", i + 1);
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if m.id.is_empty() || !m.id.chars().all(word) || m.id == "capacity" {
            say(&at, "id must be letters, digits and dashes, and not capacity");
        }
        if !ids.insert(m.id.as_str()) {
            say(&at, &format!("there are two measures {:?}", m.id));
        }
        if let Measured::Phases { unattributed_at_most, .. } = &m.of
            && !(0.0..=100.0).contains(unattributed_at_most)
        {
            say(&at, "unattributedAtMost is a share in percent, 0 to 100");
        }
        if matches!(m.of, Measured::Deletion {}) && s.load.as_ref().is_some_and(|l| !deletes(l)) {
            say(&at, "the Pods of the load stay; give them a lifetime to measure their deletion");
        }
    }
    for (i, g) in s.gate.iter().enumerate() {
        if let Some(why) = gate(s, g) {
            say(&format!("gate[{}]", i + 1), &why);
        }
    }
}

fn deletes(load: &Workload) -> bool {
    load.lifetime.is_some() || matches!(load.arrivals, ArrivalPlan::Search { .. })
}

fn workload(load: &Workload, say: &mut impl FnMut(&str, &str)) {
    let search = matches!(load.arrivals, ArrivalPlan::Search { .. });
    if !search && load.count <= load.warmup {
        say("load.count", "it must be more than the warm-up; nothing would be measured");
    }
    if load.count > 100_000 {
        say("load.count", "it must be at most 100000");
    }
    if load.at_most == 0 || load.within.0.is_zero() {
        say("load", "atMost and within must be more than zero; every Pod would be missed or lost");
    }
    match &load.arrivals {
        ArrivalPlan::Burst { size: 0, .. } => say("load.arrivals.burst", "size must be 1 or more"),
        ArrivalPlan::Closed { concurrency: 0 } => say("load.arrivals.closed", "concurrency must be 1 or more"),
        ArrivalPlan::Trace { offsets } if !offsets.is_sorted() => {
            say("load.arrivals.trace", "offsets must not go back in time");
        }
        ArrivalPlan::Trace { offsets } if u32::try_from(offsets.len()).is_ok_and(|n| n < load.count) => {
            say("load.arrivals.trace", "it has fewer offsets than the load has Pods");
        }
        ArrivalPlan::Search { lo, hi, precision, hold } => {
            if lo >= hi || !(1.0..=100.0).contains(precision) || hold.0.is_zero() {
                say(
                    "load.arrivals.search",
                    "it needs lo below hi, a precision of 1 to 100 percent, and a time to hold",
                );
            }
            if load.count > 0 {
                say("load.count", "a search makes its own count of rate and time");
            }
        }
        _ => {}
    }
    let pod: Result<serde_json::Value, _> = serde_saphyr::from_str(&load.template);
    match pod {
        Ok(pod) if pod["kind"] != "Pod" => say("load.template", "it must be a Pod"),
        Ok(pod) if pod.pointer("/spec/containers").and_then(|c| c.as_array()).is_none_or(Vec::is_empty) => {
            say("load.template", "the Pod has no containers");
        }
        Ok(_) => {}
        Err(e) => say("load.template", &format!("it is no YAML: {e}")),
    }
}

fn gate(s: &Scenario, g: &Gate) -> Option<String> {
    let given = [g.at_most.is_some(), g.count_at_most.is_some(), g.rate_at_least.is_some(), g.slo.is_some()];
    if given.iter().filter(|b| **b).count() != 1 {
        return Some("it needs exactly one of atMost, countAtMost, rateAtLeast and slo".into());
    }
    let Some((id, stat)) = g.of.split_once('.') else {
        return Some(format!("of {:?} is not <measure>.<statistic>, such as ready.p90", g.of));
    };
    let search = s.load.as_ref().is_some_and(|l| matches!(l.arrivals, ArrivalPlan::Search { .. }));
    if id == "capacity" {
        return match (search, stat, g.rate_at_least.is_some()) {
            (true, "rate", true) => None,
            (false, ..) => Some("capacity is measured by a search, and the arrivals are none".into()),
            _ => Some("of a search there is capacity.rate, with rateAtLeast".into()),
        };
    }
    if g.rate_at_least.is_some() {
        return Some("rateAtLeast is for capacity.rate".into());
    }
    let measures = s.measure.iter().map(|m| m.id.as_str());
    if !measures.clone().any(|m| m == id) {
        return Some(format!("there is no measure {id:?}{}", crate::problem::suggest(id, measures)));
    }
    let time = g.at_most.is_some() || g.slo.is_some();
    let known = if time { &TIMES[..] } else { &COUNTS[..] };
    if !known.contains(&stat) {
        return Some(format!(
            "there is no {stat:?} here{}; there are {}",
            crate::problem::suggest(stat, known.iter().copied()),
            known.join(", ")
        ));
    }
    let measured = s.load.as_ref().map_or(0, |l| l.count.saturating_sub(l.warmup));
    (stat == "p99" && !search && measured < P99_NEEDS)
        .then(|| format!("a 99th percentile needs {P99_NEEDS} measured Pods, and there are {measured}; take p90"))
}
