//! What traces are made of, for the formats that other programs read: a trial's spans, on one axis with the run's others.

mod otlp;
mod perfetto;

use podlab_clock::Mono;
use podlab_timeline::{Entry, Event, Outcome, PodKey, PodTimeline, Stage};
use serde_json::Value;

use crate::{Run, StepState, Trial, steps};

pub(crate) use otlp::{render as otlp, requests as otlp_requests};
pub(crate) use perfetto::render as perfetto;

/// Something that took time.
struct Span {
    /// Which row it belongs to: `steps`, `Pod web: cri`.
    row: String,
    name: String,
    start: Mono,
    end: Mono,
    /// Why it did not succeed, if so.
    error: Option<String>,
    /// The Pod it is about.
    pod: Option<PodKey>,
    /// More to say, by name.
    more: Vec<(&'static str, String)>,
}

/// Something that took none.
struct Instant {
    row: String,
    name: String,
    at: Mono,
    pod: PodKey,
    more: Vec<(&'static str, String)>,
}

/// Nanoseconds since 1970 of a trial's moments, or since the run's begin where nobody wrote down when that was. Trials in the
/// virtual world have a clock of their own: they begin with the run.
fn axis(run: &Run, trial: &Trial) -> impl Fn(Mono) -> u64 + use<> {
    let begin = begin(trial);
    let (wall, mono) = match (run.began, trial.world.as_str()) {
        (Some(b), "virtual") => (b.unix_ns, begin),
        (Some(b), _) => (b.unix_ns, b.mono),
        (None, _) => (0, begin),
    };
    move |t| wall.saturating_add(t.0.saturating_sub(mono.0))
}

fn begin(trial: &Trial) -> Mono {
    let start = |e: &Entry| if let Event::Call { start, .. } = &e.event { *start } else { e.t };
    trial.entries.iter().map(start).min().unwrap_or_default()
}

fn end(trial: &Trial) -> Mono {
    trial.entries.iter().map(|e| e.t).max().unwrap_or_default()
}

/// Everything of a trial that took time: its steps, and each Pod's phases and calls.
fn spans(trial: &Trial) -> Vec<Span> {
    let step = |s: crate::StepRun| Span {
        row: "steps".into(),
        name: s.at,
        start: s.start,
        end: s.end,
        error: (s.state != StepState::Done)
            .then(|| if s.state == StepState::Failed { "failed" } else { "cut off" }.into()),
        pod: None,
        more: vec![("what", s.what)],
    };
    let mut out: Vec<Span> = steps(&trial.entries).into_iter().map(step).collect();
    for (key, timeline) in trial.timelines.iter().filter(|(k, _)| !k.uid.is_empty()) {
        phases(&mut out, key, timeline);
        out.extend(timeline.calls.iter().map(|c| Span {
            row: format!("Pod {}: {}", key.name, lane(c.lane)),
            name: c.method.clone(),
            start: c.start,
            end: c.end,
            error: if let Outcome::Error(why) = &c.outcome { Some(why.clone()) } else { None },
            pod: Some(key.clone()),
            more: if c.subject.is_empty() { Vec::new() } else { vec![("subject", c.subject.clone())] },
        }));
    }
    out
}

fn phases(out: &mut Vec<Span>, key: &PodKey, timeline: &PodTimeline) {
    for p in timeline.phases().into_iter().flat_map(|p| p.phases) {
        out.push(Span {
            row: format!("Pod {}: phases", key.name),
            name: p.name.to_owned(),
            start: p.start,
            end: p.start.after(p.duration),
            error: None,
            pod: Some(key.clone()),
            more: Vec::new(),
        });
    }
}

/// Each Pod's milestones, events and what a watcher saw.
fn instants(trial: &Trial) -> Vec<Instant> {
    let mut out = Vec::new();
    for (key, timeline) in trial.timelines.iter().filter(|(k, _)| !k.uid.is_empty()) {
        let mut push = |row: &str, name: String, at: Mono, more| {
            out.push(Instant { row: format!("Pod {}: {row}", key.name), name, at, pod: key.clone(), more });
        };
        for (stage, at) in &timeline.stages {
            push("milestones", stage_word(*stage), *at, Vec::new());
        }
        for e in &timeline.events {
            let more = vec![
                ("type", e.kind.clone()),
                ("message", e.message.clone()),
                ("source", e.source.clone()),
                ("count", e.count.to_string()),
            ];
            push("events", e.reason.clone(), e.first, more);
        }
        for (name, (at, value)) in timeline.fields.iter().flat_map(|(n, values)| values.iter().map(move |v| (n, v))) {
            push("watch", format!("{name} = {value}"), *at, Vec::new());
        }
    }
    out
}

fn lane(lane: podlab_timeline::Lane) -> String {
    word(serde_json::to_value(lane))
}

fn stage_word(stage: Stage) -> String {
    word(serde_json::to_value(stage))
}

/// The name a value is written under.
fn word(value: Result<Value, serde_json::Error>) -> String {
    value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
