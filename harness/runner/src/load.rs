//! The load of a scenario: drives it, measures it and holds the gates against it. What came of it is written into the run log
//! as one entry, `measured`, from which the verdict's figures and every report are made.

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Rng;
use podlab_measure::{
    Arrivals, Arrived, Figures, Found, Load, LoadReport, PhaseFigures, Progress, Search, StopWhen, all_started,
    deletion, drive, indicator, split, startup,
};
use podlab_scenario::{ArrivalPlan, Begin, Finish, Gate, Measured, Scenario, Workload};
use podlab_testbed::Cost;
use podlab_timeline::{Entry, Event};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    player::{Player, Stopped},
    steps::{StepError, chain},
};

/// What is known of one measure.
enum Known {
    Times(Figures),
    Phases(PhaseFigures),
}

impl Known {
    fn lost(&self) -> usize {
        match self {
            Self::Times(f) => f.lost,
            Self::Phases(p) => p.lost,
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Times(f) => f.to_json(),
            Self::Phases(p) => p.to_json(),
        }
    }
}

/// Drives the load of a scenario, if it has one, and judges it.
pub(crate) async fn play(
    player: &Player<'_>,
    seed: u64,
    look: Option<&watch::Sender<Progress>>,
) -> Result<(), Stopped> {
    let Some(load) = &player.scenario.load else { return Ok(()) };
    let template = serde_saphyr::from_str(&load.template)
        .map_err(|e| stopped("load.template", StepError::Broken(e.to_string())))?;
    let seed = if seed == 0 { Rng::from_entropy().next_u64() } else { seed };
    player.recorder.record(None, Event::Run(json!({"load": {"seed": seed}})));
    let one = One { player, load, template, rng: Rng::seeded(seed), look };
    let before = player.stage.backend.costs();
    let (mut measured, verdict) = match &load.arrivals {
        ArrivalPlan::Search { lo, hi, precision, hold } => {
            one.search(Search::new(lo.0, hi.0, precision / 100.0), hold.0).await?
        }
        plan => {
            let report = one.drive(arrivals(plan), load.count, load.warmup, load.lifetime.map(|l| l.0), "load").await?;
            one.judge(&report)?
        }
    };
    measured["cost"] = cost(&before, &player.stage.backend.costs(), sent(&measured));
    player.recorder.record(None, Event::Run(json!({"measured": measured})));
    verdict
}

/// How many Pods a load sent, over all rates of a search.
fn sent(measured: &Value) -> u64 {
    let tried = measured.pointer("/capacity/tried").and_then(Value::as_array);
    let each = |t: &Value| t.pointer("/measured/sent").and_then(Value::as_u64).unwrap_or(0);
    tried.map_or_else(|| measured["sent"].as_u64().unwrap_or(0), |all| all.iter().map(each).sum())
}

/// What each part used for one Pod, its start and, where the load deletes, its end; and what it holds at the end of the load.
fn cost(before: &BTreeMap<String, Cost>, after: &BTreeMap<String, Cost>, pods: u64) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let one = |(part, end): (&String, &Cost)| {
        let used = end.cpu.saturating_sub(before.get(part).map_or(Duration::ZERO, |c| c.cpu));
        let each = used.as_secs_f64() * 1e3 / pods.max(1) as f64;
        let mib = end.resident as f64 / f64::from(1 << 20);
        let said = json!({"cpuMsPerPod": each, "rssMiB": mib, "fds": end.descriptors, "threads": end.threads});
        (part.clone(), said)
    };
    Value::Object(after.iter().map(one).collect())
}

struct One<'a> {
    player: &'a Player<'a>,
    load: &'a Workload,
    template: Value,
    rng: Rng,
    look: Option<&'a watch::Sender<Progress>>,
}

type Judged = (Value, Result<(), Stopped>);

impl One<'_> {
    async fn drive(
        &self,
        arrivals: Arrivals,
        count: u32,
        warmup: u32,
        lifetime: Option<Duration>,
        prefix: &str,
    ) -> Result<LoadReport, Stopped> {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let stop = self.load.stop_when;
        let load = Load {
            arrivals,
            count: size(count),
            warmup: size(warmup),
            template: self.template.clone(),
            prefix: prefix.to_owned(),
            within: self.load.within.0,
            at_most: size(self.load.at_most),
            lifetime,
            stop_when: StopWhen { lost: stop.lost.map(size), missed: stop.missed.map(size) },
        };
        let stage = &self.player.stage;
        let mut look = |p: Progress| {
            if let Some(sender) = self.look {
                // Nobody needs to look on.
                let _ = sender.send(p);
            }
        };
        let driven = drive(stage.client.clone(), &stage.namespace, &load, stage.clock, &self.rng, &mut look).await;
        driven.map_err(|e| stopped("load", StepError::Broken(chain(&e))))
    }

    fn entries(&self) -> Result<Vec<Entry>, Stopped> {
        self.player.stage.backend.entries().map_err(|e| stopped("load", e))
    }

    /// Figures of every measure, in the order of the scenario.
    fn figures(&self, report: &LoadReport) -> Result<Vec<(String, Known)>, Stopped> {
        let entries = self.entries()?;
        let one = |of: &Measured| match of {
            Measured::Startup { from, to } => Known::Times(startup(report, begin(*from), finish(*to))),
            Measured::Sli {} => Known::Times(indicator(report, &entries, &self.template)),
            Measured::Phases { .. } => Known::Phases(split(report, &entries, &self.player.stage.namespace)),
            Measured::Deletion {} => Known::Times(deletion(report)),
        };
        Ok(self.player.scenario.measure.iter().map(|m| (m.id.clone(), one(&m.of))).collect())
    }

    fn judge(&self, report: &LoadReport) -> Result<Judged, Stopped> {
        let figures = self.figures(report)?;
        let verdict = match &report.stopped {
            Some(why) => Err(stopped("load.stopWhen", StepError::Failed(why.clone()))),
            None => sound(self.player.scenario, &figures).and_then(|()| gates(self.player.scenario, &figures, None)),
        };
        Ok((summary(report, &figures), verdict))
    }

    async fn search(&self, mut search: Search, hold: Duration) -> Result<Judged, Stopped> {
        let mut tried = Vec::new();
        let mut best = None;
        let found = loop {
            let rate = match search.next() {
                Ok(rate) => rate,
                Err(found) => break found,
            };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates and times are bounded")]
            let count = ((rate * hold.as_secs_f64()).ceil() as u32).max(1) + self.load.warmup;
            let prefix = format!("load-{}", tried.len() + 1);
            let plan = Arrivals::Constant { rate };
            let report = self.drive(plan, count, self.load.warmup, Some(Duration::ZERO), &prefix).await?;
            let figures = self.figures(&report)?;
            let held = if report.stopped.is_some() || report.missed > 0 || report.lost() > 0 {
                Err(format!("{} lost, {} missed", report.lost(), report.missed))
            } else {
                sound(self.player.scenario, &figures)
                    .and_then(|()| gates(self.player.scenario, &figures, None))
                    .map_err(|s| format!("{}: {}", s.at, s.error))
            };
            let met = held.is_ok();
            search.tell(rate, met);
            let summary = summary(&report, &figures);
            let said = json!({"rate": rate, "met": met, "why": held.err(), "measured": summary});
            self.player.recorder.record(None, Event::Run(json!({"tried": said})));
            if met {
                best = Some(summary);
            }
            tried.push(said);
        };
        let rate = match found {
            Found::None => 0.0,
            Found::Between { good, .. } | Found::AtLeast(good) => good,
        };
        let mut measured = best.unwrap_or_else(|| json!({}));
        measured["capacity"] = json!({"rate": rate, "above": matches!(found, Found::AtLeast(_)), "tried": tried});
        let verdict = if rate == 0.0 {
            let why = tried.first().and_then(|t| t["why"].as_str()).unwrap_or_default().to_owned();
            Err(stopped("load.arrivals.search.lo", StepError::Failed(format!("not even the lowest rate holds: {why}"))))
        } else {
            gates(self.player.scenario, &[], Some(rate))
        };
        Ok((measured, verdict))
    }
}

/// The figures as they are kept.
fn summary(report: &LoadReport, figures: &[(String, Known)]) -> Value {
    let refused = report.pods.iter().filter_map(|p| p.refused.as_ref()).next();
    let measures: serde_json::Map<String, Value> = figures.iter().map(|(id, k)| (id.clone(), k.to_json())).collect();
    let lag = report.pods.iter().map(|p| p.asked.since(p.due)).max().unwrap_or_default();
    json!({
        "sent": report.pods.len(), "missed": report.missed, "lost": report.lost(), "stopped": report.stopped,
        "refused": refused, "seconds": report.took.as_secs_f64(), "latestArrivalMs": lag.as_secs_f64() * 1e3,
        "measures": measures,
    })
}

fn stopped(at: &str, error: StepError) -> Stopped {
    Stopped { at: at.to_owned(), error }
}

fn failed(at: String, why: String) -> Stopped {
    Stopped { at, error: StepError::Failed(why) }
}

/// Whether what was measured is worth judging: nobody was lost, unless a gate says how many may be, phases add up, and next to
/// nothing is unexplained.
fn sound(scenario: &Scenario, figures: &[(String, Known)]) -> Result<(), Stopped> {
    for (i, (measure, (id, known))) in scenario.measure.iter().zip(figures).enumerate() {
        let at = || format!("measure[{}]", i + 1);
        let allowed = scenario.gate.iter().any(|g| g.of.strip_suffix(".lost") == Some(id));
        if known.lost() > 0 && !allowed {
            return Err(failed(
                at(),
                format!("{} Pods were lost; what is measured of the rest says nothing", known.lost()),
            ));
        }
        let (Measured::Phases { tolerance, unattributed_at_most }, Known::Phases(phases)) = (&measure.of, known) else {
            continue;
        };
        let limit = tolerance.map_or(Duration::ZERO, |t| t.0);
        if phases.off_by > limit {
            let why = format!("phases and whole differ by {:?}, more than {limit:?}", phases.off_by);
            return Err(failed(at(), why));
        }
        let share = phases.unattributed * 100.0;
        if share > *unattributed_at_most {
            let why = format!("{share:.1} % of the time is unattributed, more than {unattributed_at_most} %");
            return Err(failed(at(), why));
        }
    }
    Ok(())
}

/// Holds every gate against the figures; those of a search's result when its rate is given, all others when not.
fn gates(scenario: &Scenario, figures: &[(String, Known)], capacity: Option<f64>) -> Result<(), Stopped> {
    for (i, gate) in scenario.gate.iter().enumerate() {
        let of_search = gate.of == "capacity.rate";
        let missed = match capacity {
            Some(rate) if of_search => too_slow(gate, rate),
            None if !of_search => missed(gate, figures),
            _ => None,
        };
        if let Some(why) = missed {
            return Err(failed(format!("gate[{}]", i + 1), why));
        }
    }
    Ok(())
}

fn too_slow(gate: &Gate, rate: f64) -> Option<String> {
    let least = gate.rate_at_least?.0;
    (rate < least).then(|| format!("capacity.rate is {rate:.1} a second, less than {least}"))
}

/// How a figure misses its gate. A figure that is not there misses it.
fn missed(gate: &Gate, figures: &[(String, Known)]) -> Option<String> {
    let (id, statistic) = gate.of.split_once('.').unwrap_or((&gate.of, ""));
    let known = figures.iter().find(|(name, _)| name == id).map(|(_, k)| k);
    let limit = gate.at_most.map(|s| s.0).or(gate.slo.map(|s| s.at_most()));
    let nothing = || Some(format!("there is no {} to judge", gate.of));
    if let Some(limit) = limit {
        let time = match known {
            Some(Known::Times(f)) => f.time(statistic),
            Some(Known::Phases(p)) => Figures { times: p.total.clone(), ..Figures::default() }.time(statistic),
            None => None,
        };
        let Some(time) = time else { return nothing() };
        return (time > limit).then(|| format!("{} is {time:.1?}, more than {limit:?}", gate.of));
    }
    let count = match known {
        Some(Known::Times(f)) => f.count(statistic),
        Some(Known::Phases(p)) if statistic == "lost" => Some(p.lost),
        _ => None,
    };
    let Some(count) = count else { return nothing() };
    let most = usize::try_from(gate.count_at_most.unwrap_or(0)).unwrap_or(usize::MAX);
    (count > most).then(|| format!("{} is {count}, more than {most}", gate.of))
}

fn begin(from: Begin) -> fn(&Arrived) -> podlab_clock::Mono {
    match from {
        Begin::Due => |p| p.due,
        Begin::Asked => |p| p.asked,
    }
}

fn finish(to: Finish) -> fn(&Arrived) -> Option<podlab_clock::Mono> {
    match to {
        Finish::Started => all_started,
        Finish::Ready => |p| p.ready,
    }
}

fn arrivals(plan: &ArrivalPlan) -> Arrivals {
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    match plan {
        ArrivalPlan::Constant { rate } => Arrivals::Constant { rate: rate.0 },
        ArrivalPlan::Ramp { from, to, over } => Arrivals::Ramp { from: from.0, to: to.0, over: over.0 },
        ArrivalPlan::Burst { size: n, every } => Arrivals::Burst { size: size(*n), every: every.0 },
        ArrivalPlan::Poisson { rate } => Arrivals::Poisson { rate: rate.0 },
        ArrivalPlan::Closed { concurrency } => Arrivals::Closed { concurrency: size(*concurrency) },
        ArrivalPlan::Trace { offsets } => Arrivals::Trace(offsets.iter().map(|o| o.0).collect()),
        // A search makes plans of its own.
        ArrivalPlan::Search { lo, .. } => Arrivals::Constant { rate: lo.0 },
    }
}
