//! A folder of scenarios, several at a time.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_scenario::{LoadError, Scenario, discover, load_all};
use podlab_testbed::Zygote;
use podlab_timeline::Entry;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{Outcome, PlayOptions, Trial, VirtualOptions, play, play_virtual};

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
        let how = VirtualOptions { seed, interrupt, ..VirtualOptions::default() };
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

/// Plays scenarios in the worlds given, `jobs` at a time, and tells `done` about each as it ends. The trials come back in
/// order of name. Without a zygote nothing is played on real containers.
pub async fn play_all(
    zygote: Option<Arc<Zygote>>,
    scenarios: Vec<(Ready, World)>,
    options: PlayOptions,
    jobs: usize,
    mut done: impl FnMut(&Trial),
) -> Vec<Trial> {
    let places = Arc::new(Semaphore::new(jobs.max(1)));
    let mut running = JoinSet::new();
    for (ready, world) in scenarios {
        let (zygote, options, places) = (zygote.clone(), options.clone(), places.clone());
        running.spawn(async move {
            // The semaphore lives as long as this function, so it is never closed.
            let _place = places.acquire_owned().await.ok();
            match (world, zygote) {
                // A world of its own needs a thread of its own; nobody cancels it, it ends by itself.
                (World::Virtual, _) => tokio::task::spawn_blocking(move || ready.play_virtual(&options)).await.ok(),
                (World::Real, Some(z)) => Some(play(&z, &ready.name, &ready.path, &ready.scenario, &options).await),
                (World::Real, None) => None,
            }
        });
    }
    let mut trials = Vec::new();
    while let Some(joined) = running.join_next().await {
        if let Ok(Some(trial)) = joined {
            done(&trial);
            trials.push(trial);
        }
    }
    trials.sort_by(|a, b| a.name.cmp(&b.name));
    trials
}
