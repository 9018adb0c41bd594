//! Lines for a terminal.

use std::{fmt::Write, time::Duration};

use podlab_timeline::fold::Phases;

use crate::{Run, Trial, Verdict};

/// A duration with the unit a person would choose.
pub(crate) fn millis(d: Duration) -> String {
    let ms = d.as_secs_f64() * 1000.0;
    if ms >= 10_000.0 {
        format!("{:.1} s", ms / 1000.0)
    } else if ms >= 100.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.1} ms")
    }
}

/// One line for a finished trial, with the startup of its first Pod that became Ready.
pub fn trial_line(trial: &Trial) -> String {
    let mark = match trial.verdict {
        Verdict::Passed => "ok     ",
        Verdict::Failed { .. } => "FAILED ",
        Verdict::Broken { .. } => "BROKEN ",
        Verdict::Invalid(_) => "INVALID",
        Verdict::Skipped(_) => "skipped",
        Verdict::Flaky(_) => "FLAKY  ",
        Verdict::Quarantined(_) => "quarant",
    };
    let mut line = format!("{mark} {:<44} {:>9}  boot {:>8}", trial.name, millis(trial.duration), millis(trial.boot));
    if let Some((key, phases)) = trial.startup() {
        let _ = write!(line, "  {} Ready in {}", key.name, millis(phases.total));
    }
    match &trial.verdict {
        Verdict::Failed { step, why, context } => {
            let _ = write!(line, "\n  {step}: {why}\n");
            for l in context.lines() {
                let _ = writeln!(line, "    {l}");
            }
        }
        Verdict::Broken { step, why } => drop(write!(line, "\n  {step}: {why}")),
        Verdict::Invalid(why) | Verdict::Skipped(why) | Verdict::Flaky(why) | Verdict::Quarantined(why) => {
            let _ = write!(line, "\n  {why}");
        }
        Verdict::Passed => {}
    }
    line
}

/// The last line of a run, in the form test runners are read by.
pub fn summary_line(run: &Run) -> String {
    let judged = run.count("failed") + run.count("broken") + run.count("invalid");
    let (flaky, quarantined) = (run.count("flaky"), run.count("quarantined"));
    let passed = run.count("passed") + flaky;
    let mut line = format!("{passed} passed, {judged} failed, {} skipped", run.count("skipped") + quarantined);
    let more = [(flaky, "passed only when played again"), (quarantined, "failed in quarantine")];
    let more: Vec<String> =
        more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} of those {what}")).collect();
    if !more.is_empty() {
        let _ = write!(line, "\n({})", more.join(", "));
    }
    if judged > run.count("failed") {
        let _ = write!(
            line,
            "\n({} failed, {} broken, {} invalid)",
            run.count("failed"),
            run.count("broken"),
            run.count("invalid")
        );
    }
    line
}

/// The phases of one startup, one row each, and their sum.
pub fn phase_table(phases: &Phases) -> String {
    let mut out = String::new();
    let total = phases.total.as_secs_f64().max(1e-9);
    for p in &phases.phases {
        let _ = writeln!(
            out,
            "{:<10} {:>10} {:>5.1} %",
            p.name,
            millis(p.duration),
            100.0 * p.duration.as_secs_f64() / total
        );
    }
    let _ =
        writeln!(out, "{:<10} {:>10}  (unattributed {})", "total", millis(phases.total), millis(phases.unattributed));
    out
}
