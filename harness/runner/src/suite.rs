//! A folder of scenarios, several at a time.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use podlab_scenario::{LoadError, Scenario, discover, load};
use podlab_testbed::Zygote;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{PlayOptions, Trial, play};

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

/// Reads all scenarios of a folder whose name contains `filter`.
///
/// # Errors
/// Every file that cannot be used, not only the first.
pub fn read(root: &Path, filter: &str) -> Result<Vec<Ready>, Vec<LoadError>> {
    let found = discover(root).map_err(|e| vec![e])?;
    let (mut ready, mut errors) = (Vec::new(), Vec::new());
    for (name, path) in found.into_iter().filter(|(name, _)| name.contains(filter)) {
        match load(&path) {
            Ok(scenario) => ready.push(Ready { name, path, scenario }),
            Err(e) => errors.push(e),
        }
    }
    if errors.is_empty() { Ok(ready) } else { Err(errors) }
}

/// Plays scenarios, `jobs` at a time, and tells `done` about each as it ends. The trials come back in order of name.
pub async fn play_all(
    zygote: Arc<Zygote>,
    scenarios: Vec<Ready>,
    options: PlayOptions,
    jobs: usize,
    mut done: impl FnMut(&Trial),
) -> Vec<Trial> {
    let places = Arc::new(Semaphore::new(jobs.max(1)));
    let mut running = JoinSet::new();
    for ready in scenarios {
        let (zygote, options, places) = (zygote.clone(), options.clone(), places.clone());
        running.spawn(async move {
            // The semaphore lives as long as this function, so it is never closed.
            let _place = places.acquire_owned().await.ok();
            play(&zygote, &ready.name, &ready.path, &ready.scenario, &options).await
        });
    }
    let mut trials = Vec::new();
    while let Some(joined) = running.join_next().await {
        if let Ok(trial) = joined {
            done(&trial);
            trials.push(trial);
        }
    }
    trials.sort_by(|a, b| a.name.cmp(&b.name));
    trials
}
