//! `e2e`: chooses trials, plays them, writes down each thing that happens, and reports what was written.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use podlab_clock::Clock;
use podlab_measure::Progress;
use podlab_runner::{
    PlayOptions,
    quarantine::Quarantine,
    select::Selection,
    session::{self, Began, Planned, SESSION_FILE, Said, SessionLog},
    suite::{self, Course, Ready, World},
};
use podlab_testbed::Zygote;
use tokio_util::sync::CancellationToken;

use super::{cluster::check_host, place, report, stress};
use crate::{
    cli::{At, Backend, Format},
    out::{complain, say},
};

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) at: At,
    pub(crate) scenarios: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) selection: Selection,
    pub(crate) failed: bool,
    pub(crate) list: bool,
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    pub(crate) until_fail: bool,
    pub(crate) retries: u32,
    pub(crate) flaky_fails: bool,
    pub(crate) fail_fast: bool,
    pub(crate) pause: bool,
    pub(crate) format: Format,
    pub(crate) snapshots: PathBuf,
    pub(crate) param: Vec<(String, String)>,
    /// Show how a load stands.
    pub(crate) live: bool,
    pub(crate) record: Vec<podlab_tape::Seam>,
}

/// Exit code of a run somebody ended.
const INTERRUPTED: u8 = 130;

/// Reads scenarios; every unusable file is named before anything starts.
pub(crate) fn read(root: &Path, filter: &str) -> Result<Vec<Ready>> {
    match suite::read(root, filter) {
        Ok(ready) => Ok(ready),
        Err(errors) => refuse(&errors),
    }
}

/// What is asked for by a file's path is asked for by its name.
pub(crate) fn name_of(root: &Path, word: &str) -> String {
    let Some(path) = word.strip_suffix(".yaml") else { return word.to_owned() };
    let path = Path::new(path);
    let inside = path.strip_prefix(root).or_else(|_| path.strip_prefix("scenarios")).unwrap_or(path);
    inside.display().to_string()
}

fn refuse<T>(errors: &[podlab_scenario::LoadError]) -> Result<T> {
    errors.iter().for_each(|e| complain!("{e}"));
    bail!("{} of the scenario files cannot be used", errors.len())
}

pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    if o.at.backend != Backend::Embedded && o.selection.world == Some(World::Virtual) {
        bail!("--world virtual has a place of its own; leave out --backend");
    }
    let trials = match choose(o)? {
        Some(trials) => trials,
        None => return Ok(ExitCode::SUCCESS),
    };
    if o.list {
        return list(&trials, o.format);
    }
    let known: Vec<&str> = trials.iter().map(|(r, _)| r.name.as_str()).collect();
    let all = podlab_scenario::discover(&o.scenarios)?;
    let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).chain(known.iter().copied()).collect();
    let quarantine = Quarantine::read(&o.scenarios, &names).map_err(|e| anyhow!(e))?;
    let today = Clock::real().wall().to_string().chars().take(10).collect::<String>();
    quarantine.expired(&today).for_each(|text| complain!("{text}"));
    let excused = known.iter().filter_map(|n| Some(((*n).to_owned(), quarantine.excuses(n, &today)?))).collect();
    let embedded = o.at.backend == Backend::Embedded;
    let zygote = if embedded && trials.iter().any(|(_, w)| *w == World::Real) {
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
    let interrupt = CancellationToken::new();
    let look = tokio::sync::watch::Sender::default();
    let options = PlayOptions {
        out: o.out.clone(),
        seed: o.seed,
        interrupt: interrupt.clone(),
        pause: o.pause,
        look: o.live.then(|| look.clone()),
        record: o.record.clone(),
        ..PlayOptions::default()
    };
    let place = runtime.block_on(place::connect(o.at.backend, &o.at.cluster, &o.out))?;
    // What is recorded is the timeline of an embedded cluster.
    let snapshots = (o.at.backend == Backend::Embedded).then(|| o.snapshots.clone());
    let course =
        Course { options, jobs: o.jobs, retries: o.retries, fail_fast: o.fail_fast, excused, place, snapshots };
    let worst = rounds(o, &runtime, &zygote, &trials, &course, &interrupt, &look);
    // Also when a round could not be played: what was begun elsewhere must not stay.
    runtime.block_on(course.place.end());
    let worst = worst?;
    if o.format == Format::Text {
        say!("reports: {}", o.out.join("report.html").display());
    }
    Ok(ExitCode::from(worst))
}

/// Plays round after round; the worst exit code.
fn rounds(
    o: &Options,
    runtime: &tokio::runtime::Runtime,
    zygote: &Option<Arc<Zygote>>,
    trials: &[(Ready, World)],
    course: &Course,
    interrupt: &CancellationToken,
    look: &tokio::sync::watch::Sender<podlab_measure::Progress>,
) -> Result<u8> {
    let mut worst = 0;
    let mut round = 0;
    loop {
        round += 1;
        if (o.rounds > 1 || o.until_fail) && o.format == Format::Text {
            say!("round {round}{}", if o.until_fail { String::new() } else { format!(" of {}", o.rounds) });
        }
        runtime.block_on(async {
            tokio::select! {
                biased;
                done = play(zygote, trials.to_vec(), course, o, look.subscribe()) => done,
                never = heed(interrupt) => never,
            }
        })?;
        let (run, interrupted) = report::write(&o.out)?;
        if o.format == Format::Text {
            say!("{}", podlab_reports::summary_line(&run));
        }
        let code = if interrupted { INTERRUPTED } else { run.exit_code(o.flaky_fails) };
        worst = worst.max(code);
        if interrupted || (o.until_fail && code != 0) || (!o.until_fail && round >= o.rounds) {
            break;
        }
    }
    Ok(worst)
}

/// The trials to play; `None` when those that failed last time are asked for and there are none.
fn choose(o: &Options) -> Result<Option<Vec<(Ready, World)>>> {
    let params: BTreeMap<String, String> = o.param.iter().cloned().collect();
    let scenarios = match suite::read_with(&o.scenarios, "", &params) {
        Ok(scenarios) => scenarios,
        Err(errors) => return refuse(&errors),
    };
    let mut selection = o.selection.clone();
    selection.check().map_err(|e| anyhow!("--filter: {e}"))?;
    if o.failed {
        let log = o.out.join(SESSION_FILE);
        let last = session::read(&log).with_context(|| format!("read what failed last time from {}", log.display()))?;
        let names: BTreeSet<String> = last.unsettled().map(str::to_owned).collect();
        if names.is_empty() {
            say!("nothing failed last time");
            return Ok(None);
        }
        selection.only = Some(names);
    }
    let mut trials = selection.of(&scenarios).map_err(|e| anyhow!(e))?;
    if selection.names.is_empty() && selection.only.is_none() && !o.list {
        // What a load must hold on real containers is a time, which whatever else runs decides.
        let all = trials.len();
        trials.retain(|(r, world)| *world == World::Virtual || r.scenario.load.is_none());
        if o.format == Format::Text && trials.len() < all {
            say!("{} loads on real containers are left to `podlab stress`", all - trials.len());
        }
    }
    if trials.is_empty() {
        let asked = selection.names.join(" ");
        let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        let names: Vec<String> = scenarios.iter().flat_map(|s| [s.name.clone(), last(&s.name)]).collect();
        let meant = podlab_scenario::near(&asked, names.iter().map(String::as_str));
        let meant = meant.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        let (n, dir) = (scenarios.len(), o.scenarios.display());
        bail!("none of the {n} scenarios in {dir} is what was asked for{meant}");
    }
    if let Some(name) = params.keys().find(|n| !trials.iter().any(|(s, _)| s.scenario.params.contains_key(*n))) {
        bail!("--param {name}: none of these scenarios has a parameter of that name");
    }
    Ok(Some(trials))
}

fn world_word(w: World) -> &'static str {
    if w == World::Real { "real" } else { "virtual" }
}

fn list(trials: &[(Ready, World)], format: Format) -> Result<ExitCode> {
    match format {
        Format::Text => trials.iter().for_each(|(r, w)| say!("{}", r.trial_name(*w))),
        Format::Json => {
            let one = |(r, w): &(Ready, World)| serde_json::json!({"trial": r.trial_name(*w), "world": world_word(*w), "intent": r.scenario.intent.trim(), "tags": r.scenario.tags, "file": r.path});
            say!("{}", serde_json::to_string_pretty(&trials.iter().map(one).collect::<Vec<_>>())?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Heeds whoever wants the run to end: once, and what is being played is cleaned up; twice, and it is over at once. The
/// clusters of a runner end with it, whatever it dies of.
async fn heed(interrupt: &CancellationToken) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut next = async || {
        tokio::select! {
            biased;
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    };
    next().await;
    interrupt.cancel();
    complain!("ending: what is being played is cleaned up; once more to end at once");
    next().await;
    std::process::exit(i32::from(INTERRUPTED))
}

async fn play(
    zygote: &Option<Arc<Zygote>>,
    trials: Vec<(Ready, World)>,
    course: &Course,
    o: &Options,
    mut load: tokio::sync::watch::Receiver<Progress>,
) -> Result<()> {
    let clock = Clock::real();
    let start = clock.now();
    let log = SessionLog::create(&o.out).with_context(|| format!("begin a log in {}", o.out.display()))?;
    let bar = ProgressBar::new(u64::try_from(trials.len()).unwrap_or(0));
    if o.format == Format::Json {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut lost = None;
    let mut tell = |said: &Said, line: Option<String>| {
        lost = lost.take().or(log.say(said).err());
        match (o.format, line) {
            (Format::Json, _) => say!("{}", serde_json::to_string(said).unwrap_or_default()),
            // The bar draws nothing where nobody watches; the lines must be there all the same.
            (Format::Text, Some(line)) if bar.is_hidden() => say!("{line}"),
            (Format::Text, Some(line)) => bar.println(line),
            (Format::Text, None) => {}
        }
    };
    let plan = |(r, w): &(Ready, World)| Planned {
        trial: r.trial_name(*w),
        intent: r.scenario.intent.trim().to_owned(),
        world: world_word(*w).to_owned(),
    };
    tell(&Said::begin("e2e", Began::now(clock), environment(course), trials.iter().map(plan).collect()), None);
    let live = async {
        while load.changed().await.is_ok() {
            bar.set_message(stress::line(*load.borrow_and_update()));
        }
        std::future::pending::<()>().await;
    };
    let all = suite::play_all(zygote.clone(), trials, course, |said, trial| {
        let line = trial.map(|t| podlab_reports::trial_line(&report::of_trial(t, said)));
        let line = line.zip(trial).map(|(l, t)| l + &stress::told(t));
        if let Some(t) = trial {
            bar.inc(1);
            bar.set_message(t.name.clone());
        }
        tell(said, line);
    });
    tokio::select! {
        biased;
        () = all => {}
        () = live => {}
    }
    let duration_us = u64::try_from(clock.now().since(start).as_micros()).unwrap_or(u64::MAX);
    tell(&Said::End { interrupted: course.options.interrupt.is_cancelled(), duration_us }, None);
    bar.finish_and_clear();
    match lost {
        None => Ok(()),
        Some(e) => Err(e).with_context(|| format!("write {}", o.out.join(SESSION_FILE).display())),
    }
}

/// What decides how fast a machine is, for whoever compares two reports.
fn environment(course: &Course) -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let cgroups = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" };
    [
        ("backend", course.place.name().to_owned()),
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
