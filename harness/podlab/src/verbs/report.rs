//! `report`: JUnit, JSON and HTML of a run from what it wrote down, also of one that was killed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use podlab_reports::{Run, Trial, Verdict};
use podlab_runner::session::{self, Ended, Folded, SESSION_FILE, Said};

use crate::out::say;

/// Renders a run again; `path` is its log or the folder of it.
pub(crate) fn run(path: &Path, out: Option<PathBuf>, flaky_fails: bool) -> Result<ExitCode> {
    let log = if path.is_dir() { path.join(SESSION_FILE) } else { path.to_owned() };
    let (run, _) = read(&log)?;
    let out = out.unwrap_or_else(|| log.parent().unwrap_or_else(|| Path::new(".")).to_owned());
    podlab_reports::write_all(&run, &out)?;
    say!("{}", podlab_reports::summary_line(&run));
    say!("reports: {}", out.join("report.html").display());
    Ok(ExitCode::from(run.exit_code(flaky_fails)))
}

/// Writes the reports of the run in a folder into it; with whether somebody ended it.
pub(crate) fn write(out: &Path) -> Result<(Run, bool)> {
    let (run, interrupted) = read(&out.join(SESSION_FILE))?;
    podlab_reports::write_all(&run, out)?;
    Ok((run, interrupted))
}

fn read(log: &Path) -> Result<(Run, bool)> {
    let session = session::read(log).with_context(|| format!("read {}", log.display()))?;
    let trials = session.trials.iter().map(of_folded).collect();
    let duration = Duration::from_micros(session.duration_us);
    Ok((Run { suite: session.suite, duration, environment: session.environment, trials }, session.interrupted))
}

fn verdict(e: &Ended) -> Verdict {
    let (step, why) = (e.step.clone(), e.why.clone());
    match e.verdict.as_str() {
        "passed" => Verdict::Passed,
        "failed" => Verdict::Failed { step, why, context: e.context.clone() },
        "invalid" => Verdict::Invalid(why),
        "skipped" => Verdict::Skipped(why),
        "flaky" => Verdict::Flaky(why),
        "quarantined" => Verdict::Quarantined(why),
        // An outcome of a newer version is nothing this one may call good.
        _ => Verdict::Broken { step, why },
    }
}

fn of_folded(f: &Folded) -> Trial {
    // A log that is gone leaves a trial without timelines.
    let entries = if f.log.as_os_str().is_empty() { Ok(Vec::new()) } else { podlab_runner::session::entries(&f.log) };
    Trial {
        name: f.trial.clone(),
        intent: f.intent.clone(),
        verdict: verdict(&f.ended),
        duration: Duration::from_micros(f.duration_us),
        boot: Duration::from_micros(f.boot_us),
        timelines: entries.map(|e| podlab_runner::session::timelines(&e)).unwrap_or_default(),
    }
}

/// One attempt as it is shown while a run is played.
pub(crate) fn of_trial(trial: &podlab_runner::Trial, said: &Said) -> Trial {
    let verdict = match said {
        Said::TrialEnd { ended, quarantine: Some(text), .. } if ended.verdict != "passed" => {
            Verdict::Quarantined(format!("{text}; {}: {}", ended.step, ended.why))
        }
        Said::TrialEnd { ended, .. } => verdict(ended),
        Said::Begin { .. } | Said::TrialBegin { .. } | Said::End { .. } => Verdict::Passed,
    };
    Trial {
        name: trial.name.clone(),
        intent: trial.intent.clone(),
        verdict,
        duration: trial.duration,
        boot: trial.boot,
        timelines: BTreeMap::clone(&trial.timelines),
    }
}
