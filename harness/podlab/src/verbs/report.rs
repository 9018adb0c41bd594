//! `report`: every form of report of a run from what it wrote down, also of one that was killed.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use podlab_reports::{Began, Form, LogTail, Run, Trial, Verdict};
use podlab_runner::session::{self, Ended, Folded, SESSION_FILE, Said};

use super::push::{self, Endpoint};
use crate::{cli::ReportForm, out::say};

/// Of each component's log, this many lines of the last this many bytes.
const LOG_LINES: usize = 60;
const LOG_BYTES: usize = 64 << 10;

/// What to make of which run.
#[derive(Debug)]
pub(crate) struct Options {
    /// Its log, or the folder of it.
    pub(crate) log: PathBuf,
    pub(crate) out: Option<PathBuf>,
    pub(crate) flaky_fails: bool,
    pub(crate) format: Vec<ReportForm>,
    pub(crate) against: Option<PathBuf>,
    pub(crate) otlp_endpoint: Option<Endpoint>,
}

/// Renders a run again.
pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    let log = log_of(&o.log);
    let (run, _) = read(&log)?;
    let out = o.out.clone().unwrap_or_else(|| log.parent().unwrap_or_else(|| Path::new(".")).to_owned());
    let forms: Vec<Form> = o.format.iter().map(|f| form(*f)).collect();
    let forms = if forms.is_empty() { &Form::ALWAYS[..] } else { &forms };
    podlab_reports::write(&run, forms, &out)?;
    say!("{}", podlab_reports::summary_line(&run));
    for form in forms {
        say!("{}", out.join(form.file()).display());
    }
    if let Some(before) = &o.against {
        let (before, _) = read(&log_of(before))?;
        say!("{}", podlab_reports::write_comparison(&before, &run, &out)?.display());
    }
    if let Some(endpoint) = &o.otlp_endpoint {
        let bodies = podlab_reports::otlp_requests(&run)?;
        push::push(endpoint, &bodies)?;
        say!("{} traces sent", bodies.len());
    }
    Ok(ExitCode::from(run.exit_code(o.flaky_fails)))
}

fn log_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(SESSION_FILE) } else { path.to_owned() }
}

fn form(f: ReportForm) -> Form {
    match f {
        ReportForm::Junit => Form::Junit,
        ReportForm::Json => Form::Json,
        ReportForm::Html => Form::Html,
        ReportForm::Markdown => Form::Markdown,
        ReportForm::Perfetto => Form::Perfetto,
        ReportForm::Otlp => Form::Otlp,
    }
}

/// Writes the reports of the run in a folder into it; with whether somebody ended it.
pub(crate) fn write(out: &Path) -> Result<(Run, bool)> {
    let (run, interrupted) = read(&out.join(SESSION_FILE))?;
    podlab_reports::write_all(&run, out)?;
    if let Some(file) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|f| !f.is_empty()) {
        // The summary of the job it runs in, which other steps add to as well.
        let opened = std::fs::File::options().create(true).append(true).open(&file);
        let text = Form::Markdown.render(&run)?;
        opened.and_then(|mut f| f.write_all(text.as_bytes())).with_context(|| format!("add to {}", file.display()))?;
    }
    Ok((run, interrupted))
}

fn read(log: &Path) -> Result<(Run, bool)> {
    let session = session::read(log).with_context(|| format!("read {}", log.display()))?;
    let trials = session.trials.iter().map(of_folded).collect();
    let duration = Duration::from_micros(session.duration_us);
    let began = session.began.map(|b| Began { unix_ns: b.unix_ns, mono: b.mono });
    let run = Run { suite: session.suite, duration, began, environment: session.environment, trials };
    Ok((run, session.interrupted))
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
    let entries = entries.unwrap_or_default();
    let verdict = verdict(&f.ended);
    let logs = if verdict == Verdict::Passed { Vec::new() } else { tails(&f.log) };
    Trial {
        name: f.trial.clone(),
        intent: f.intent.clone(),
        verdict,
        duration: Duration::from_micros(f.duration_us),
        boot: Duration::from_micros(f.boot_us),
        world: f.world.clone(),
        timelines: podlab_runner::session::timelines(&entries),
        entries,
        timeline: f.timeline.clone(),
        recorded: f.recorded.clone(),
        logs,
    }
}

/// Ends of the components' logs beside a run log.
fn tails(log: &Path) -> Vec<LogTail> {
    let Some(dir) = log.parent().filter(|d| !d.as_os_str().is_empty()) else { return Vec::new() };
    let files = std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut files: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    files.sort();
    let tail = |path: PathBuf| {
        let bytes = std::fs::read(&path).ok()?;
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_BYTES)..]).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let component = path.file_stem()?.to_string_lossy().into_owned();
        Some(LogTail { component, text: lines[lines.len().saturating_sub(LOG_LINES)..].join("\n") })
    };
    files.into_iter().filter_map(tail).filter(|t| !t.text.is_empty()).collect()
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
        ..Trial::default()
    }
}
