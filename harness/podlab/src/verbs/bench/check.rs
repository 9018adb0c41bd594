//! The gate held against itself: one build compared with itself, and with itself made slower on purpose.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use podlab_stats::Verdict;
use serde_json::json;

use super::{Bench, judge, machine, measure, pair::Side};
use crate::out::say;

/// Milestones before which the delay is put, and the phases they end.
const PLANTED: [(&str, &str); 4] =
    [("sandbox-ready", "sandbox"), ("started", "start"), ("bound", "schedule"), ("popped", "queue")];

/// Share of the total that is put into one phase.
const DELAY: f64 = 0.03;

pub(crate) fn run(o: &Bench, own: &Path, n: u32) -> Result<ExitCode> {
    let plain = Side { program: own.to_owned(), up: Vec::new() };
    let (mut alarms, mut found, mut log) = (0, 0, Vec::new());
    let mut total = 0.0;
    let mut changes = Vec::new();
    for i in 0..n.max(1) {
        let o = Bench { seed: o.seed + u64::from(i), ..o.clone() };
        let design = o.design();
        let done = measure(&o, &[plain.clone(), plain.clone()], &design)?;
        total = if i == 0 { done.all().total.a } else { f64::min(total, done.all().total.a) };
        changes.push(done.all().total.change);
        let alarm = done.verdict != Verdict::NotSlower;
        alarms += u32::from(alarm);
        let said = judge::sentence(&done.verdict, &design);
        let (load, _) = machine::load();
        say!(
            "A/A {:>2}: {:+.2} % ± {:.2}, total {:.2} ms, {} pairs in {:.1} s, load {load}: {said}",
            i + 1,
            done.all().total.change * 100.0,
            done.all().total.error * 100.0,
            done.first.total.a,
            done.all().pairs,
            done.took.as_secs_f64()
        );
        log.push(json!({"planted": null, "alarm": alarm, "found": judge::to_json(done.all()), "load": load}));
    }
    let wanted = o.planted.unwrap_or(n.max(1).div_ceil(2));
    for i in 0..wanted {
        let o = Bench { seed: o.seed + 1000 + u64::from(i), ..o.clone() };
        let design = o.design();
        let (stage, phase) =
            *PLANTED.get(usize::try_from(i).unwrap_or(0) % PLANTED.len()).context("there is a milestone")?;
        // The total of the run just before, so that a machine that has become slower has its 3 % as well.
        let micros = format!("{:.0}", total * DELAY * 1000.0);
        let slow = Side { program: own.to_owned(), up: vec!["--plant".into(), format!("{stage}={micros}")] };
        let done = measure(&o, &[plain.clone(), slow], &design)?;
        total = done.all().total.a;
        let named = done.verdict.phase() == Some(phase);
        found += u32::from(named);
        let said = judge::sentence(&done.verdict, &design);
        let (load, _) = machine::load();
        say!(
            "{micros} µs in {phase}: {:+.2} % ± {:.2}, {} pairs in {:.1} s, load {load}: {said}",
            done.all().total.change * 100.0,
            done.all().total.error * 100.0,
            done.all().pairs,
            done.took.as_secs_f64()
        );
        log.push(json!({"planted": phase, "micros": micros, "named": named, "found": judge::to_json(done.all()), "load": load}));
    }
    let sd = deviation(&changes);
    let allowed = n.max(1).div_ceil(40);
    say!(
        "{alarms} alarms in {} comparisons of one program ({allowed} allowed; changes of the total deviate by {:.2} %); {found} of {wanted} delays found and named",
        n.max(1),
        sd * 100.0
    );
    let report = json!({"version": 1, "machine": machine::facts(), "alarms": alarms, "found": found, "of": wanted, "deviation": sd, "runs": log});
    let path = o.out.join("self-check.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&report)?).with_context(|| format!("{}", path.display()))?;
    Ok(if alarms <= allowed && found == wanted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn deviation(all: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n.max(1.0);
    (all.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0)).sqrt()
}
