//! A folder of scenarios, several at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_clock::Clock;
use podlab_scenario::{LoadError, Scenario, discover, load_all};
use podlab_testbed::Zygote;
use podlab_timeline::Entry;
use tokio::task::JoinSet;

use crate::{Outcome, PlayOptions, Trial, VirtualOptions, place::Place, play, play_virtual, recorded, session::Said};

/// Where a trial is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// On real containers.
    Real,
    /// In the virtual world.
    Virtual,
}

/// A scenario ready to play.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Path below the folder, without extension.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub scenario: Scenario,
}

impl Ready {
    /// The worlds it names, or of them only `only`.
    pub fn worlds(&self, only: Option<World>) -> Vec<World> {
        let clock = self.scenario.clock;
        let named = [(World::Real, clock.real()), (World::Virtual, clock.virtual_too())];
        named.into_iter().filter(|(w, yes)| *yes && only.is_none_or(|o| o == *w)).map(|(w, _)| w).collect()
    }

    /// Name of its trial in a world: its own, and with `@virtual` where it is played in both.
    pub fn trial_name(&self, world: World) -> String {
        let both = self.scenario.clock.real() && self.scenario.clock.virtual_too();
        if both && world == World::Virtual { format!("{}@virtual", self.name) } else { self.name.clone() }
    }

    /// Plays it in the virtual world on the calling thread and keeps the log beside the reports.
    pub fn play_virtual(&self, options: &PlayOptions) -> Trial {
        // A run that nobody gave a seed must still be one that can be repeated.
        let (seed, interrupt) = (options.seed.max(1), options.interrupt.clone());
        let how = VirtualOptions { seed, interrupt, mutant: options.mutant, ..VirtualOptions::default() };
        let name = self.trial_name(World::Virtual);
        let played = play_virtual(&name, &self.path, &self.scenario, &how);
        let mut trial = played.trial;
        trial.log = options.out.join(&name).join("run.jsonl");
        if let Err(e) = keep(&trial.log, &played.entries) {
            let why = format!("{}: {e}", trial.log.display());
            trial.outcome =
                Outcome::Broken(crate::Failure { step: "keep the log".into(), why, context: String::new() });
        }
        trial
    }
}

/// A run log as bytes, one JSON line an entry.
pub fn log_bytes(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        // An entry is made of strings and numbers; it always has a JSON form.
        if serde_json::to_writer(&mut out, entry).is_ok() {
            out.push(b'\n');
        }
    }
    out
}

fn keep(log: &Path, entries: &[Entry]) -> std::io::Result<()> {
    if let Some(dir) = log.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(log, log_bytes(entries))
}

/// Reads all scenarios of a folder whose name contains `filter`: every combination of a matrix is one of them.
///
/// # Errors
/// Every file that cannot be used, not only the first.
pub fn read(root: &Path, filter: &str) -> Result<Vec<Ready>, Vec<LoadError>> {
    read_with(root, filter, &BTreeMap::new())
}

/// The same with values for parameters, as they were written.
///
/// # Errors
/// As [`read`].
pub fn read_with(root: &Path, filter: &str, params: &BTreeMap<String, String>) -> Result<Vec<Ready>, Vec<LoadError>> {
    let found = discover(root).map_err(|e| vec![e])?;
    let (mut ready, mut errors) = (Vec::new(), Vec::new());
    // A filter may name one combination of a matrix; the file is named without it.
    let file = filter.split('[').next().unwrap_or_default();
    for (name, path) in found.into_iter().filter(|(name, _)| name.contains(file)) {
        match load_all(&path, params) {
            Ok(all) => {
                let one = |(suffix, scenario)| Ready { name: format!("{name}{suffix}"), path: path.clone(), scenario };
                ready.extend(all.into_iter().map(one).filter(|r| r.name.contains(filter)));
            }
            Err(e) => errors.push(e),
        }
    }
    if errors.is_empty() { Ok(ready) } else { Err(errors) }
}

/// How a run of trials is played.
#[derive(Debug, Clone, Default)]
pub struct Course {
    /// How each is played. Cancelling its `interrupt` ends the steps of those that are being played, and no other begins.
    pub options: PlayOptions,
    /// How many at a time.
    pub jobs: usize,
    /// How often one that did not pass is played again.
    pub retries: u32,
    /// No other begins after one that did not pass.
    pub fail_fast: bool,
    /// Whose failures do not count, by name of the scenario, and why.
    pub excused: BTreeMap<String, String>,
    /// Where trials of the real world are played.
    pub place: Place,
    /// Folder of recorded timelines. A trial that keeps one fails when it is not the recorded one.
    pub snapshots: Option<PathBuf>,
}

/// Plays trials and tells `say` of each thing that happens, in order. Without a zygote nothing can be played on real
/// containers: such a trial is broken. Says nothing of trials that never begin.
pub async fn play_all(
    zygote: Option<Arc<Zygote>>,
    trials: Vec<(Ready, World)>,
    course: &Course,
    mut say: impl FnMut(&Said, Option<&Trial>),
) {
    let mut waiting: VecDeque<(Ready, World, u32)> = trials.into_iter().map(|(r, w)| (r, w, 1)).collect();
    let mut running = JoinSet::new();
    let mut stop = false;
    loop {
        while !stop && !course.options.interrupt.is_cancelled() && running.len() < course.jobs.max(1) {
            let Some((ready, world, attempt)) = waiting.pop_front() else { break };
            say(&Said::TrialBegin { trial: ready.trial_name(world), attempt }, None);
            if let (World::Real, Some(why)) = (world, course.place.lacks(&ready.scenario)) {
                let trial = Trial { outcome: Outcome::Skipped(why), ..unplayed(&ready, world) };
                say(&Said::end(&trial, attempt, None), Some(&trial));
                continue;
            }
            let (zygote, mut options, place) = (zygote.clone(), course.options.clone(), course.place.clone());
            if attempt > 1 {
                // What an earlier attempt left to look at stays.
                options.out = options.out.join(format!("attempt-{attempt}"));
            }
            running.spawn(async move { (one(zygote, place, &ready, world, options).await, ready, world, attempt) });
        }
        let Some(joined) = running.join_next().await else { break };
        // A task is not cancelled and does not panic: what may panic runs in another, below.
        let Ok((mut trial, ready, world, attempt)) = joined else { continue };
        if let Some(folder) = &course.snapshots {
            recorded::compare(&mut trial, folder, &ready.name);
        }
        say(&Said::end(&trial, attempt, course.excused.get(&ready.name).cloned()), Some(&trial));
        if trial.outcome == Outcome::Passed {
            continue;
        }
        if attempt <= course.retries && !course.options.interrupt.is_cancelled() {
            waiting.push_front((ready, world, attempt + 1));
        } else if course.fail_fast && !course.excused.contains_key(&ready.name) {
            stop = true;
        }
    }
}

/// A trial of which nothing has happened.
fn unplayed(ready: &Ready, world: World) -> Trial {
    crate::play::blank(&ready.trial_name(world), &ready.scenario, Clock::real().now(), PathBuf::new())
}

/// Plays one trial. One that panics is broken; none is ever lost.
pub(crate) async fn one(
    zygote: Option<Arc<Zygote>>,
    place: Place,
    ready: &Ready,
    world: World,
    options: PlayOptions,
) -> Trial {
    let broken = |why: String| Trial {
        outcome: Outcome::Broken(crate::Failure { step: "whole trial".into(), why, context: String::new() }),
        ..unplayed(ready, world)
    };
    let mut alone = JoinSet::new();
    match (world, zygote) {
        // A world of its own needs a thread of its own; nobody cancels it, it ends by itself.
        (World::Virtual, _) => {
            let ready = ready.clone();
            alone.spawn_blocking(move || ready.play_virtual(&options));
        }
        (World::Real, _) if !place.boots() => {
            let ready = ready.clone();
            alone.spawn(async move {
                let played = place.play(&ready.name, &ready.path, &ready.scenario, &options).await;
                played.unwrap_or_else(|| unplayed(&ready, World::Real))
            });
        }
        (World::Real, Some(zygote)) => {
            let ready = ready.clone();
            alone.spawn(async move { play(&zygote, &ready.name, &ready.path, &ready.scenario, &options).await });
        }
        (World::Real, None) => return broken("there is nothing to boot a cluster with".into()),
    }
    match alone.join_next().await {
        Some(Ok(trial)) => trial,
        Some(Err(e)) => broken(format!("the harness panicked: {e}")),
        None => broken("it was never begun".into()),
    }
}
