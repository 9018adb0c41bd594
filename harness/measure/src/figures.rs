//! What a load came to, as figures: times with their statistics, and Pods that have no time, counted.

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;
use podlab_stats::Samples;
use podlab_timeline::{Entry, Lane, Stage, fold::PodTimeline, fold::fold};
use serde_json::{Value, json};

use crate::{Arrived, Interval, LoadReport, Sli, SliInput, Start, attribute, is_stateful, sli};

/// Figures of one measure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// The times.
    pub times: Samples,
    /// Pods that were measured and have no time.
    pub lost: usize,
    /// Arrivals that were never sent.
    pub missed: usize,
    /// Pods that do not count.
    pub excluded: usize,
}

impl Figures {
    /// A statistic of the times, by its name in a gate; the 99th percentile only of enough.
    pub fn time(&self, statistic: &str) -> Option<Duration> {
        match statistic {
            "min" => self.times.min(),
            "lowerHalf" => self.times.lower_half_mean(),
            "mean" => self.times.mean(),
            "p50" => self.times.percentile(50.0),
            "p90" => self.times.percentile(90.0),
            "p99" => self.times.quotable(99.0),
            "max" => self.times.max(),
            _ => None,
        }
    }

    /// A count, by its name in a gate.
    pub fn count(&self, statistic: &str) -> Option<usize> {
        match statistic {
            "count" => Some(self.times.len()),
            "lost" => Some(self.lost),
            "missed" => Some(self.missed),
            "excluded" => Some(self.excluded),
            _ => None,
        }
    }

    /// All of it, times in milliseconds.
    pub fn to_json(&self) -> Value {
        let mut out = serde_json::Map::new();
        for name in ["min", "lowerHalf", "mean", "p50", "p90", "p99", "max"] {
            if let Some(t) = self.time(name) {
                out.insert(name.to_owned(), json!(ms(t)));
            }
        }
        for name in ["count", "lost", "missed", "excluded"] {
            out.insert(name.to_owned(), json!(self.count(name)));
        }
        Value::Object(out)
    }
}

/// Milliseconds to the microsecond.
pub(crate) fn ms(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

fn measured(report: &LoadReport) -> impl Iterator<Item = &Arrived> {
    report.pods.iter().filter(|p| !p.warmup)
}

fn figures(report: &LoadReport, time: impl Fn(&Arrived) -> Option<Duration>) -> Figures {
    let all: Vec<Option<Duration>> = measured(report).map(time).collect();
    let times: Vec<Duration> = all.iter().copied().flatten().collect();
    let lost = all.len() - times.len();
    Figures { times: Samples::new(times), lost, missed: report.missed, excluded: 0 }
}

/// From one moment to another of each Pod's start.
pub fn startup(report: &LoadReport, from: fn(&Arrived) -> Mono, to: fn(&Arrived) -> Option<Mono>) -> Figures {
    figures(report, |pod| Some(to(pod)?.since(from(pod))))
}

/// When a watch had shown every container of a Pod started.
pub fn all_started(pod: &Arrived) -> Option<Mono> {
    pod.started.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// From a Pod's deletion until a watch showed it gone. One that was never Ready is none of these.
pub fn deletion(report: &LoadReport) -> Figures {
    let ready =
        LoadReport { pods: report.pods.iter().filter(|p| p.ready.is_some()).cloned().collect(), ..report.clone() };
    figures(&ready, |pod| Some(pod.gone?.since(pod.deleted?)))
}

/// The Kubernetes service level indicator of each Pod.
pub fn indicator(report: &LoadReport, entries: &[Entry], template: &Value) -> Figures {
    let timelines = fold(entries);
    let by_uid: BTreeMap<&str, &PodTimeline> = timelines.iter().map(|(k, t)| (k.uid.as_str(), t)).collect();
    let stateful = is_stateful(template);
    let mut out = Figures { missed: report.missed, ..Figures::default() };
    let mut times = Vec::new();
    for pod in measured(report) {
        let timeline = by_uid.get(pod.uid.as_str()).copied();
        let input = SliInput {
            created: timeline.and_then(|t| t.stages.get(&Stage::Accepted)).copied().unwrap_or(pod.asked),
            started: pod.started.clone(),
            pulls: timeline.map(pulls).unwrap_or_default(),
            inits: timeline.map(|t| inits(t, template)).unwrap_or_default(),
            was_unschedulable: pod.was_unschedulable,
            stateful,
        };
        match sli(&input) {
            Sli::Latency(t) => times.push(t),
            Sli::Excluded(_) => out.excluded += 1,
            Sli::Lost => out.lost += 1,
        }
    }
    out.times = Samples::new(times);
    out
}

/// Image pulls of a Pod.
fn pulls(timeline: &PodTimeline) -> Vec<Interval> {
    let of_image = timeline.calls.iter().filter(|c| c.lane == Lane::Image && c.method == "pull");
    of_image.map(|c| (c.start, c.end)).collect()
}

/// Runs of init containers that end: from the start of each until the node agent went on to the next container. The run log
/// has no exit of its own; what passes between the exit and that moment counts as the init container's.
fn inits(timeline: &PodTimeline, template: &Value) -> Vec<Interval> {
    let all = template.pointer("/spec/initContainers").and_then(Value::as_array);
    let ends = |c: &&Value| c.get("restartPolicy").and_then(Value::as_str) != Some("Always");
    let names: Vec<&str> = all.into_iter().flatten().filter(ends).filter_map(|c| c.get("name")?.as_str()).collect();
    let calls = |method: &'static str| timeline.calls.iter().filter(move |c| c.lane == Lane::Cri && c.method == method);
    calls("StartContainer")
        .filter(|c| names.contains(&c.subject.as_str()))
        .filter_map(|c| {
            let next = calls("CreateContainer").map(|n| n.start).filter(|start| *start >= c.end).min()?;
            Some((c.end, next))
        })
        .collect()
}

/// Where the time of the starts went.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhaseFigures {
    /// By phase, in the order of a Pod's way.
    pub phases: Vec<(&'static str, Samples)>,
    /// The whole.
    pub total: Samples,
    /// Share of all time whose end no milestone marks, 0 to 1.
    pub unattributed: f64,
    /// The largest difference between a whole and the sum of its phases.
    pub off_by: Duration,
    /// Pods that did not arrive.
    pub lost: usize,
}

/// Splits every start of a load that arrived.
pub fn split(report: &LoadReport, entries: &[Entry], namespace: &str) -> PhaseFigures {
    let starts: Vec<Start> = measured(report)
        .filter_map(|p| Some(Start { name: p.name.clone(), uid: p.uid.clone(), asked: p.asked, seen: p.ready? }))
        .collect();
    let all = attribute(entries, namespace, &starts);
    let mut order: Vec<&'static str> = Vec::new();
    let mut times: BTreeMap<&'static str, Vec<Duration>> = BTreeMap::new();
    let mut out = PhaseFigures { lost: measured(report).count() - starts.len(), ..PhaseFigures::default() };
    let (mut whole, mut unknown) = (Duration::ZERO, Duration::ZERO);
    for one in &all {
        for (name, time) in &one.phases {
            if !order.contains(name) {
                order.push(name);
            }
            times.entry(name).or_default().push(*time);
        }
        let sum: Duration = one.phases.iter().map(|(_, d)| *d).sum();
        if !one.phases.is_empty() {
            out.off_by = out.off_by.max(sum.abs_diff(one.total));
        }
        whole += one.total;
        unknown += one.unattributed;
    }
    out.total = Samples::new(all.iter().map(|a| a.total).collect());
    out.unattributed = if whole.is_zero() { 0.0 } else { unknown.as_secs_f64() / whole.as_secs_f64() };
    out.phases = order.into_iter().map(|n| (n, Samples::new(times.remove(n).unwrap_or_default()))).collect();
    out
}

impl PhaseFigures {
    /// All of it, times in milliseconds.
    pub fn to_json(&self) -> Value {
        let one = |s: &Samples| {
            let at = |p: f64| s.percentile(p).map(ms);
            json!({"lowerHalf": s.lower_half_mean().map(ms), "p50": at(50.0), "p90": at(90.0), "max": s.max().map(ms)})
        };
        let phases: Vec<Value> = self.phases.iter().map(|(n, s)| json!({"phase": n, "times": one(s)})).collect();
        json!({"total": one(&self.total), "phases": phases, "unattributed": self.unattributed, "offByMs": ms(self.off_by), "lost": self.lost})
    }
}
