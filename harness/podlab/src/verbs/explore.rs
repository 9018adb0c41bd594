//! `explore`: many seeds of one scenario, in parallel, until one fails.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use podlab_clock::Clock;
use podlab_mutant::Mutant;
use podlab_runner::{
    explore::{Found, Subject},
    suite,
};

use crate::out::{complain, say};

/// What to search.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) scenario: String,
    pub(crate) scenarios: PathBuf,
    pub(crate) runs: u64,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    pub(crate) out: PathBuf,
    pub(crate) mutant: bool,
}

pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    let ready = match suite::read(&o.scenarios, &o.scenario) {
        Ok(ready) => ready,
        Err(errors) => {
            errors.iter().for_each(|e| complain!("{e}"));
            bail!("a scenario file cannot be used");
        }
    };
    let Some(ready) = ready.iter().find(|r| r.name == o.scenario).or(ready.first()) else {
        bail!("there is no scenario {:?} in {}", o.scenario, o.scenarios.display());
    };
    if ready.worlds(Some(suite::World::Virtual)).is_empty() {
        bail!("{} is not played in the virtual world; it needs `clock: virtual` or `clock: both`", ready.name);
    }
    let mutant = o.mutant.then_some(Mutant::ForgetsWhatRuns);
    let subject = Subject { name: &ready.name, path: &ready.path, scenario: &ready.scenario, mutant };
    let clock = Clock::real();
    let start = clock.now();
    let (next, found) = (AtomicU64::new(0), Mutex::new(None::<Found>));
    let search = || {
        while found.lock().is_none() {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= o.runs {
                return;
            }
            if let Some(f) = subject.try_seed(o.seed.saturating_add(n)) {
                let mut slot = found.lock();
                // The first seed wins, so that a search says the same each time as far as it can.
                if slot.as_ref().is_none_or(|other| f.seed < other.seed) {
                    *slot = Some(f);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..o.jobs.max(1) {
            scope.spawn(search);
        }
    });
    let took = clock.now().since(start);
    let runs = next.load(Ordering::Relaxed).min(o.runs);
    match found.into_inner() {
        None => {
            say!("{}: {runs} seeds from {} in {took:.1?}, nothing found", ready.name, o.seed);
            Ok(ExitCode::SUCCESS)
        }
        Some(f) => {
            show(ready, &f, o)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn show(ready: &suite::Ready, f: &Found, o: &Options) -> Result<()> {
    say!("{}: seed {} fails at {}: {}", ready.name, f.seed, f.step, f.why);
    say!("of its {} choices these {} are enough:", f.of, f.choices.len());
    for (name, choice) in &f.choices {
        say!("  {name}: {choice}");
    }
    let dir = o.out.join(&ready.name);
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let log = dir.join(format!("seed-{}.jsonl", f.seed));
    std::fs::write(&log, suite::log_bytes(&f.played.entries)).with_context(|| format!("write {}", log.display()))?;
    say!("log: {}", log.display());
    Ok(())
}
