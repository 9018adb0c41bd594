//! Searching the runs of a scenario: one seed after the other, with calls that take their time and agents that crash, the
//! invariants on; and a failing run shrunk to the fewest choices that still make it fail.

use std::{collections::BTreeSet, path::Path};

use podlab_mutant::Mutant;
use podlab_scenario::Scenario;
use podlab_testbed::world::{Choice, Disturbance};

use crate::{Outcome, Played, VirtualOptions, play_virtual};

/// Most crashes of agents in one run.
const CRASHES: u32 = 2;
/// Most runs spent on shrinking one failure.
const SHRINK_RUNS: usize = 600;

/// A failing run, shrunk.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed it came from.
    pub seed: u64,
    /// Where and why it failed, with all choices.
    pub step: String,
    /// See `step`.
    pub why: String,
    /// How many choices that run made.
    pub of: usize,
    /// The choices that are enough.
    pub choices: Vec<(String, Choice)>,
    /// The run with only those.
    pub played: Played,
}

/// A scenario to search.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its file.
    pub path: &'a Path,
    /// Its content.
    pub scenario: &'a Scenario,
    /// A known-bad change to the components.
    pub mutant: Option<Mutant>,
}

impl Subject<'_> {
    /// Plays one seed with everything disturbed, or only some choices.
    pub fn play(&self, seed: u64, only: Option<BTreeSet<String>>) -> Played {
        let disturbance = Disturbance { latency: true, crashes: CRASHES, only };
        let how = VirtualOptions { seed, disturbance, mutant: self.mutant, ..VirtualOptions::default() };
        play_virtual(self.name, self.path, self.scenario, &how)
    }

    /// Plays one seed; a failing run is shrunk.
    pub fn try_seed(&self, seed: u64) -> Option<Found> {
        let first = self.play(seed, None);
        let (step, why) = failing(&first)?;
        let of = first.choices.len();
        let (choices, played) = self.shrink(seed, first);
        Some(Found { seed, step, why, of, choices, played })
    }

    /// Fewest choices that still fail: delta debugging over the set. Any failure counts: that fewer choices fail in
    /// another way is a finding too.
    fn shrink(&self, seed: u64, first: Played) -> (Vec<(String, Choice)>, Played) {
        let mut best = first;
        let mut parts = 2;
        for _ in 0..SHRINK_RUNS {
            let all: Vec<String> = best.choices.keys().cloned().collect();
            if all.is_empty() {
                break;
            }
            let size = all.len().div_ceil(parts);
            let smaller = (0..parts).find_map(|i| {
                let (begin, end) = ((i * size).min(all.len()), ((i + 1) * size).min(all.len()));
                if begin == end {
                    return None;
                }
                let kept = all[..begin].iter().chain(&all[end..]).cloned().collect();
                let played = self.play(seed, Some(kept));
                (failing(&played).is_some() && played.choices.len() < all.len()).then_some(played)
            });
            match smaller {
                Some(played) => {
                    best = played;
                    parts = parts.saturating_sub(1).max(2);
                }
                None if parts >= all.len() => break,
                None => parts = (parts * 2).min(all.len()),
            }
        }
        (best.choices.iter().map(|(k, c)| (k.clone(), *c)).collect(), best)
    }
}

/// Where and why a run failed; a fault that did not fire because another came first does not count.
fn failing(played: &Played) -> Option<(String, String)> {
    match &played.trial.outcome {
        Outcome::Passed | Outcome::Invalid(_) | Outcome::Skipped(_) => None,
        Outcome::Failed(f) | Outcome::Broken(f) => Some((f.step.clone(), f.why.clone())),
    }
}
