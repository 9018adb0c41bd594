//! `stress`: scenarios that have a load, with what was measured of it told and kept.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};
use podlab_measure::Progress;
use podlab_runner::{Trial, select::Selection};
use podlab_scenario::Cel;
use serde_json::Value;

use super::e2e;
use crate::{
    cli::{At, Backend, Format},
    out::complain,
};

/// The words of `podlab stress`.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scenario: Vec<String>,
    pub(crate) scenarios: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) seed: u64,
    pub(crate) format: Format,
    pub(crate) param: Vec<(String, String)>,
    /// Where.
    pub(crate) at: At,
}

/// Plays them, one at a time: two loads on one machine measure each other.
pub(crate) fn run(o: Options) -> Result<ExitCode> {
    let loads: Vec<String> = e2e::read(&o.scenarios, "")?
        .into_iter()
        .filter(|r| r.scenario.load.is_some() && o.scenario.iter().any(|s| r.name.contains(s.as_str())))
        .map(|r| r.name)
        .collect();
    if loads.is_empty() {
        bail!("no scenario with a load in {} is called {}", o.scenarios.display(), o.scenario.join(" or "));
    }
    let elsewhere = o.at.backend != Backend::Embedded;
    e2e::run(&e2e::Options {
        at: o.at,
        scenarios: o.scenarios,
        out: o.out,
        selection: Selection {
            names: loads,
            tags: Vec::new(),
            expression: None::<Cel>,
            world: None,
            only: None,
            shard: None,
            elsewhere,
        },
        failed: false,
        list: false,
        jobs: 1,
        seed: o.seed,
        rounds: 1,
        until_fail: false,
        retries: 0,
        flaky_fails: false,
        fail_fast: false,
        pause: false,
        format: o.format,
        param: o.param,
        snapshots: PathBuf::from("reports/snapshots/timelines"),
        record: Vec::new(),
        live: true,
    })
}

/// How a load stands, in a line.
pub(crate) fn line(p: Progress) -> String {
    format!(
        "{}/{} sent, {} ready, {} on their way, {} lost, {} missed",
        p.sent, p.of, p.ready, p.waiting, p.lost, p.missed
    )
}

/// What was measured of a trial, for people; kept as JSON beside its run log. Empty when nothing was.
pub(crate) fn told(trial: &Trial) -> String {
    if trial.measured.is_null() {
        return String::new();
    }
    if let Some(dir) = trial.log.parent() {
        let path = dir.join("measured.json");
        let text = serde_json::to_vec_pretty(&trial.measured).unwrap_or_default();
        if let Err(e) = std::fs::write(&path, text) {
            complain!("podlab: {}: {e}", path.display());
        }
    }
    render(&trial.measured)
}

fn render(measured: &Value) -> String {
    let mut out = String::new();
    let number = |v: &Value| v.as_f64().map_or("-".to_owned(), |n| format!("{n:.2}"));
    if measured.get("sent").is_some() {
        let _ = write!(
            out,
            "\n    {} Pods in {} s, {} lost, {} missed; the latest arrival was {} ms late",
            measured["sent"],
            number(&measured["seconds"]),
            measured["lost"],
            measured["missed"],
            number(&measured["latestArrivalMs"])
        );
    }
    for (id, m) in measured["measures"].as_object().into_iter().flatten() {
        match m["phases"].as_array() {
            None => {
                let _ = write!(out, "\n    {id}: n {}", m["count"]);
                for key in ["min", "lowerHalf", "mean", "p50", "p90", "p99", "max"] {
                    if !m[key].is_null() {
                        let _ = write!(out, ", {key} {} ms", number(&m[key]));
                    }
                }
                let _ = write!(out, "; lost {}, missed {}, excluded {}", m["lost"], m["missed"], m["excluded"]);
            }
            Some(phases) => {
                let share = m["unattributed"].as_f64().unwrap_or(0.0) * 100.0;
                let _ = write!(
                    out,
                    "\n    {id}: {share:.2} % unattributed, sums off by {} ms at most",
                    number(&m["offByMs"])
                );
                let total = ("total", &m["total"]);
                let rows = phases.iter().map(|p| (p["phase"].as_str().unwrap_or_default(), &p["times"]));
                for (name, t) in std::iter::once(total).chain(rows) {
                    let _ = write!(
                        out,
                        "\n      {name:<10} lower half {:>8} p50 {:>8} p90 {:>8} max {:>8} ms",
                        number(&t["lowerHalf"]),
                        number(&t["p50"]),
                        number(&t["p90"]),
                        number(&t["max"])
                    );
                }
            }
        }
    }
    if let Some(rate) = measured.pointer("/capacity/rate") {
        for t in measured["capacity"]["tried"].as_array().into_iter().flatten() {
            let held = if t["met"] == true {
                "holds".to_owned()
            } else {
                format!("does not: {}", t["why"].as_str().unwrap_or_default())
            };
            let _ = write!(out, "\n    {} a second {held}", number(&t["rate"]));
        }
        let above = if measured["capacity"]["above"] == true { " or more" } else { "" };
        let _ = write!(out, "\n    capacity: {} Pods a second{above}", number(rate));
    }
    for (part, cost) in measured["cost"].as_object().into_iter().flatten() {
        let _ = write!(
            out,
            "\n    {part}: {} ms CPU per Pod, {} MiB resident, {} descriptors, {} threads",
            number(&cost["cpuMsPerPod"]),
            number(&cost["rssMiB"]),
            cost["fds"],
            cost["threads"]
        );
    }
    out
}
