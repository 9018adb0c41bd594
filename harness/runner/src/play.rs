//! One scenario from boot to verdict.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use podlab_clock::{Clock, Mono};
use podlab_mutant::Mutant;
use podlab_scenario::{RecordSeam, Scenario};
use podlab_tape::Seam;
use podlab_testbed::{
    Cluster, ClusterSpec, Tapes, Zygote,
    world::{self, Choice, Disturbance, VirtualCluster, WorldSpec},
};
use podlab_timeline::{
    Entry, Event, PodKey, PodTimeline,
    fold::{fold, read_log},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Backend, RealBackend, VirtualBackend},
    invariants,
    monitors::Broken,
    perform::{Limits, perform},
    proof::unfired,
    steps::chain,
};

const BOOT_LIMIT: Duration = Duration::from_secs(60);
const BUDGET: Duration = Duration::from_secs(180);
/// The same in the virtual world, where a day is short.
const VIRTUAL_BUDGET: Duration = Duration::from_secs(24 * 3600);
/// How far durations may be off when calls take their time.
const SLACK: Duration = Duration::from_secs(10);
/// How much longer than all its budgets a scenario may take before its cluster is ended under it.
const BEYOND: Duration = Duration::from_secs(60);

/// How to play.
#[derive(Debug, Clone, Default)]
pub struct PlayOptions {
    /// Folder for logs and reports.
    pub out: PathBuf,
    /// Seed of every component's randomness; 0 takes one from the kernel.
    pub seed: u64,
    /// Ends the steps when cancelled; what comes after them is still done.
    pub interrupt: CancellationToken,
    /// On real containers: a trial that fails waits, with its cluster, until the file `PAUSED` beside its log is removed.
    pub pause: bool,
    /// Told how a load stands.
    pub look: Option<tokio::sync::watch::Sender<podlab_measure::Progress>>,
    /// A known-bad change to the components, to see that it is found.
    pub mutant: Option<Mutant>,
    /// On real containers: seams to record beside those that the scenario names; the tapes are in `tapes` beside its log.
    pub record: Vec<Seam>,
}

/// What came of it. The words are kept apart everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every demand was met.
    Passed,
    /// The system under test did not do what was demanded.
    Failed(Failure),
    /// The harness could not do its part.
    Broken(Failure),
    /// A fault did not fire as often as it must have.
    Invalid(String),
    /// It was not played: the place lacks what it needs.
    Skipped(String),
}

/// Where and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Part and number, e.g. `then[2]`.
    pub step: String,
    /// Expected against actual, or what broke.
    pub why: String,
    /// The Pods' events, statuses and logs at that moment.
    pub context: String,
}

/// One played scenario.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Path below the scenario folder, without extension.
    pub name: String,
    /// What holds when it passes.
    pub intent: String,
    /// What came of it.
    pub outcome: Outcome,
    /// From boot to verdict.
    pub duration: Duration,
    /// From boot to all nodes Ready.
    pub boot: Duration,
    /// When it began.
    pub start: Mono,
    /// Timelines by Pod.
    pub timelines: BTreeMap<PodKey, PodTimeline>,
    /// The run log.
    pub log: PathBuf,
    /// What was measured of a load; null when nothing was.
    pub measured: serde_json::Value,
    /// Normalised timelines to compare with what was recorded before; empty when the scenario keeps none.
    pub snapshot: String,
    /// What was recorded before, where that was looked for and found.
    pub recorded: Option<String>,
}

/// Plays one scenario on a cluster of its own, which is gone afterwards. Dropping the future ends the cluster too.
///
/// The outcome carries every trouble; nothing is returned as an error.
pub async fn play(zygote: &Zygote, name: &str, path: &Path, scenario: &Scenario, options: &PlayOptions) -> Trial {
    let clock = Clock::real();
    let start = clock.now();
    let log = options.out.join(name).join("run.jsonl");
    let mut trial = blank(name, scenario, start, log.clone());
    let (limits, longest) = limits(scenario, options, &trial);
    match clock.timeout(longest, on_cluster(zygote, path, scenario, options, &limits, &mut trial)).await {
        Some(outcome) => trial.outcome = outcome,
        None => trial.outcome = Outcome::Broken(failure("whole scenario", format!("not over within {longest:?}"))),
    }
    trial.duration = clock.now().since(start);
    let entries = read_log(&log).unwrap_or_default();
    conclude(&mut trial, scenario, &entries);
    trial
}

/// What ends the steps of a trial of the real world, and how long all of it may take.
fn limits(scenario: &Scenario, options: &PlayOptions, trial: &Trial) -> (Limits, Duration) {
    let budget = scenario.budget.map_or(BUDGET, |b| b.0);
    let pause = options.pause.then(|| options.out.join(&trial.name).join("PAUSED"));
    let limits = Limits {
        end: trial.start.after(budget),
        budget,
        interrupt: options.interrupt.clone(),
        seed: options.seed,
        look: options.look.clone(),
        pause,
    };
    let longest = if options.pause { Duration::MAX } else { budget + after_steps(scenario) + BEYOND };
    (limits, longest)
}

/// Plays a scenario of the real world on a backend, no longer than it may take.
pub(crate) async fn within_limits(
    backend: &dyn Backend,
    path: &Path,
    scenario: &Scenario,
    options: &PlayOptions,
    trial: &Trial,
) -> Outcome {
    let (limits, longest) = limits(scenario, options, trial);
    let played = backend.clock().timeout(longest, perform(backend, path, scenario, &limits)).await;
    played.unwrap_or_else(|| Outcome::Broken(failure("whole scenario", format!("not over within {longest:?}"))))
}

/// Makes the folder of a run log; an earlier log of the name goes.
pub(crate) fn prepare(log: &Path) -> Result<PathBuf, String> {
    let dir = log.parent().unwrap_or_else(|| Path::new("."));
    let prepared = std::fs::create_dir_all(dir).and_then(|()| match std::fs::remove_file(log) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => std::path::absolute(log),
    });
    prepared.map_err(|e| format!("{}: {e}", dir.display()))
}

/// What the parts after the steps may take together.
fn after_steps(scenario: &Scenario) -> Duration {
    scenario.budgets.catch.0 + scenario.budgets.finally.0 + scenario.budgets.cleanup.0
}

pub(crate) fn blank(name: &str, scenario: &Scenario, start: Mono, log: PathBuf) -> Trial {
    Trial {
        name: name.to_owned(),
        intent: scenario.intent.clone(),
        outcome: Outcome::Passed,
        duration: Duration::ZERO,
        boot: Duration::ZERO,
        start,
        timelines: BTreeMap::new(),
        log,
        measured: serde_json::Value::Null,
        snapshot: String::new(),
        recorded: None,
    }
}

/// What the run log says of a trial that is over.
pub(crate) fn conclude(trial: &mut Trial, scenario: &Scenario, entries: &[Entry]) {
    trial.timelines = fold(entries);
    let measured = |e: &Entry| match &e.event {
        Event::Run(v) => v.get("measured").cloned(),
        _ => None,
    };
    trial.measured = entries.iter().find_map(measured).unwrap_or_default();
    // A broken invariant says more than the step that failed because of it.
    if let Some(Broken { monitor, what }) = invariants::broken(entries) {
        trial.outcome = Outcome::Failed(failure(&format!("monitor {monitor}"), what));
    }
    if trial.outcome == Outcome::Passed
        && let Some(why) = unfired(&scenario.faults, entries)
    {
        trial.outcome = Outcome::Invalid(why);
    }
    if let Some(snapshot) = &scenario.snapshot {
        trial.snapshot = snapshot_of(&snapshot.timeline, &trial.timelines);
    }
}

/// A run in the virtual world with everything that can be known of it.
#[derive(Debug, Clone)]
pub struct Played {
    /// The verdict.
    pub trial: Trial,
    /// The run log.
    pub entries: Vec<Entry>,
    /// Every choice that was not the ordinary one.
    pub choices: BTreeMap<String, Choice>,
}

/// How to play in the virtual world.
#[derive(Debug, Clone, Default)]
pub struct VirtualOptions {
    /// Decides every choice.
    pub seed: u64,
    /// What the seed may disturb.
    pub disturbance: Disturbance,
    /// A known-bad change to the components, to see that it is found.
    pub mutant: Option<Mutant>,
    /// Ends the steps when cancelled.
    pub interrupt: CancellationToken,
}

/// Plays one scenario in a virtual world of its own, on the calling thread, which must not be inside an async runtime.
/// The log stays in memory.
pub fn play_virtual(name: &str, path: &Path, scenario: &Scenario, options: &VirtualOptions) -> Played {
    let real = Clock::real();
    let start = real.now();
    let mut played =
        Played { trial: blank(name, scenario, start, PathBuf::new()), entries: Vec::new(), choices: BTreeMap::new() };
    // A world lives on one thread, and so does what is wrong with it.
    let _on = podlab_mutant::on_thread(options.mutant);
    let done = world::run(|| in_world(path, scenario, options, &mut played));
    played.trial.outcome = done.unwrap_or_else(|e| Outcome::Broken(failure("boot", e.to_string())));
    played.trial.duration = real.now().since(start);
    let Played { trial, entries, .. } = &mut played;
    conclude(trial, scenario, entries);
    played
}

async fn in_world(path: &Path, scenario: &Scenario, options: &VirtualOptions, played: &mut Played) -> Outcome {
    let cluster = ClusterSpec {
        nodes: scenario.cluster.nodes,
        node_cpu_milli: scenario.cluster.node_cpu_milli,
        seed: options.seed,
        faults: scenario.faults.clone(),
        ..ClusterSpec::named("virtual")
    };
    // Calls that take their time add up; what they may add to a duration is not a failure of what is measured.
    let slack = if options.disturbance.latency { SLACK } else { Duration::ZERO };
    let (disturbance, nodes) = (options.disturbance.clone(), cluster.node_names());
    let booted = VirtualCluster::boot(WorldSpec { cluster, disturbance }).await;
    let cluster = match booted {
        Ok(cluster) => cluster,
        Err(e) => return Outcome::Broken(failure("boot", chain(&e))),
    };
    let backend = VirtualBackend { cluster, nodes, slack };
    let clock = backend.cluster.clock();
    let outcome = match backend.cluster.wait_ready(BOOT_LIMIT).await {
        Err(e) => Outcome::Broken(failure("boot", chain(&e))),
        Ok(()) => {
            played.trial.boot = clock.now().since(Mono(0));
            let budget = scenario.budget.map_or(VIRTUAL_BUDGET, |b| b.0);
            let interrupt = options.interrupt.clone();
            let limits =
                Limits { end: Mono(0).after(budget), budget, interrupt, seed: options.seed, look: None, pause: None };
            perform(&backend, path, scenario, &limits).await
        }
    };
    played.entries = backend.cluster.entries();
    played.choices = backend.cluster.choices().made();
    backend.cluster.end().await;
    outcome
}

pub(crate) fn failure(step: &str, why: String) -> Failure {
    Failure { step: step.to_owned(), why, context: String::new() }
}

fn snapshot_of(pods: &[String], timelines: &BTreeMap<PodKey, PodTimeline>) -> String {
    let nodes = (1..=10).map(|i| (format!("node-{i}"), "<node>".to_owned()));
    let names: Vec<(String, String)> = nodes.collect();
    let mut out = String::new();
    for pod in pods {
        // One name may be several Pods, one after the other.
        let mut of_name: Vec<&PodTimeline> =
            timelines.iter().filter(|(k, _)| k.name == *pod && !k.uid.is_empty()).map(|(_, t)| t).collect();
        of_name.sort_by_key(|t| t.place);
        for timeline in of_name {
            out.push_str(&format!("pod {pod}\n{}", timeline.normal_form(&names)));
        }
    }
    out
}

async fn on_cluster(
    zygote: &Zygote,
    path: &Path,
    scenario: &Scenario,
    options: &PlayOptions,
    limits: &Limits,
    trial: &mut Trial,
) -> Outcome {
    let broken = |step: &str, why: String| Outcome::Broken(failure(step, why));
    let clock = Clock::real();
    let dir = trial.log.parent().unwrap_or_else(|| Path::new(".")).to_owned();
    let log = match prepare(&trial.log) {
        Ok(log) => log,
        Err(why) => return broken("prepare", why),
    };
    let tapes = match tapes(scenario, options, &dir) {
        Ok(tapes) => tapes,
        Err(e) => return broken("prepare", format!("tapes: {e}")),
    };
    let spec = ClusterSpec {
        tapes,
        nodes: scenario.cluster.nodes,
        node_cpu_milli: scenario.cluster.node_cpu_milli,
        tied_to_runner: true,
        seed: options.seed,
        run_log: Some(log.clone()),
        mutant: options.mutant,
        faults: scenario.faults.clone(),
        ..ClusterSpec::named(&unique_name())
    };
    let cluster = match Cluster::boot(zygote, spec) {
        Ok(cluster) => cluster,
        Err(e) => return broken("boot", chain(&e)),
    };
    if let Err(e) = cluster.wait_ready(clock, BOOT_LIMIT).await {
        keep_logs(&cluster, &dir);
        return broken("boot", format!("{}\n{}", chain(&e), tail(&cluster, "plane")));
    }
    trial.boot = clock.now().since(trial.start);
    let outcome = match RealBackend::new(&cluster) {
        Ok(backend) => perform(&backend, path, scenario, limits).await,
        Err(why) => broken("prepare", why),
    };
    keep_logs(&cluster, &dir);
    // Ending it blocks for a few milliseconds; other trials run on other threads.
    drop(cluster);
    outcome
}

/// What to record, in a fresh folder beside the log.
fn tapes(scenario: &Scenario, options: &PlayOptions, dir: &Path) -> std::io::Result<Option<Tapes>> {
    let named = scenario.record.iter().map(|r| match r {
        RecordSeam::Cri => Seam::Cri,
        RecordSeam::Csi => Seam::Csi,
    });
    let mut seams: Vec<Seam> = named.collect();
    seams.extend(options.record.iter().filter(|s| !seams.contains(s)).copied().collect::<Vec<_>>());
    if seams.is_empty() {
        return Ok(None);
    }
    let dir = std::path::absolute(dir.join("tapes"))?;
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => std::fs::create_dir_all(&dir)?,
    }
    Ok(Some(Tapes { dir, seams }))
}

/// A name no other run has: pid and a counter.
fn unique_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn tail(cluster: &Cluster, component: &str) -> String {
    let text = std::fs::read_to_string(cluster.log_path(component)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn keep_logs(cluster: &Cluster, dir: &Path) {
    let nodes = cluster.spec().node_names();
    for component in ["capsule", "plane"].into_iter().chain(nodes.iter().map(String::as_str)) {
        // A missing log is no reason to lose the verdict.
        let _ = std::fs::copy(cluster.log_path(component), dir.join(format!("{component}.log")));
    }
}
