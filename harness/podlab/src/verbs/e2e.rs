//! `e2e`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use podlab_clock::Clock;
use podlab_reports::{Run, Trial, Verdict};
use podlab_runner::{Outcome, PlayOptions, suite};
use podlab_testbed::Zygote;

use super::cluster::check_host;
use crate::out::{complain, say};

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) filter: String,
    pub(crate) scenarios: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    pub(crate) world: Option<suite::World>,
    pub(crate) param: Vec<(String, String)>,
}

/// Reads scenarios; every unusable file is named before anything starts.
pub(crate) fn read(root: &Path, filter: &str) -> Result<Vec<suite::Ready>> {
    read_with(root, filter, &BTreeMap::new())
}

/// The same with values for parameters.
fn read_with(root: &Path, filter: &str, params: &BTreeMap<String, String>) -> Result<Vec<suite::Ready>> {
    match suite::read_with(root, filter, params) {
        Ok(ready) => Ok(ready),
        Err(errors) => {
            for e in &errors {
                complain!("{e}");
            }
            bail!("{} of the scenario files cannot be used", errors.len())
        }
    }
}

pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    let params: BTreeMap<String, String> = o.param.iter().cloned().collect();
    let scenarios = read_with(&o.scenarios, &o.filter, &params)?;
    if let Some(name) = params.keys().find(|n| !scenarios.iter().any(|s| s.scenario.params.contains_key(*n))) {
        bail!("--param {name}: none of these scenarios has a parameter of that name");
    }
    if scenarios.is_empty() {
        bail!("no scenario in {} has {:?} in its name", o.scenarios.display(), o.filter);
    }
    let worlds = |s: &suite::Ready| s.worlds(o.world).into_iter().map(|w| (s.clone(), w)).collect::<Vec<_>>();
    let scenarios: Vec<(suite::Ready, suite::World)> = scenarios.iter().flat_map(worlds).collect();
    if scenarios.is_empty() {
        bail!("no scenario with {:?} in its name is played in that world", o.filter);
    }
    let zygote = if scenarios.iter().any(|(_, w)| *w == suite::World::Real) {
        check_host()?;
        Some(Arc::new(Zygote::start().context("prepare to fork")?))
    } else {
        None
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let mut worst = 0;
    for round in 1..=o.rounds {
        if o.rounds > 1 {
            say!("round {round} of {}", o.rounds);
        }
        let run = runtime.block_on(play(&zygote, scenarios.clone(), o));
        podlab_reports::write_all(&run, &o.out)?;
        say!("{}", podlab_reports::summary_line(&run));
        worst = worst.max(run.exit_code());
    }
    say!("reports: {}", o.out.join("report.html").display());
    Ok(ExitCode::from(worst))
}

async fn play(zygote: &Option<Arc<Zygote>>, scenarios: Vec<(suite::Ready, suite::World)>, o: &Options) -> Run {
    let clock = Clock::real();
    let start = clock.now();
    let bar = ProgressBar::new(u64::try_from(scenarios.len()).unwrap_or(0));
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    let options = PlayOptions { out: o.out.clone(), seed: o.seed, ..PlayOptions::default() };
    let played = suite::play_all(zygote.clone(), scenarios, options, o.jobs, |trial| {
        let line = podlab_reports::trial_line(&report(trial));
        // The bar draws nothing where nobody watches; the lines must be there all the same.
        if bar.is_hidden() {
            say!("{line}")
        } else {
            bar.println(line)
        }
        bar.inc(1);
        bar.set_message(trial.name.clone());
    })
    .await;
    bar.finish_and_clear();
    let trials: Vec<Trial> = played.iter().map(report).collect();
    Run { suite: "e2e".into(), duration: clock.now().since(start), environment: environment(), trials }
}

/// A played scenario as reports know it.
pub(crate) fn report(trial: &podlab_runner::Trial) -> Trial {
    let verdict = match &trial.outcome {
        Outcome::Passed => Verdict::Passed,
        Outcome::Failed(f) => Verdict::Failed { step: f.step.clone(), why: f.why.clone(), context: f.context.clone() },
        Outcome::Broken(f) => Verdict::Broken { step: f.step.clone(), why: f.why.clone() },
        Outcome::Invalid(why) => Verdict::Invalid(why.clone()),
    };
    Trial {
        name: trial.name.clone(),
        intent: trial.intent.clone(),
        verdict,
        duration: trial.duration,
        boot: trial.boot,
        timelines: trial.timelines.clone(),
    }
}

/// What decides how fast a machine is, for whoever compares two reports.
fn environment() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let cgroups = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" };
    [
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("cores", cores.to_string()),
        ("cgroups", cgroups.to_owned()),
        ("rcu_expedited", read("/sys/kernel/rcu_expedited")),
        ("load", read("/proc/loadavg")),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect()
}
