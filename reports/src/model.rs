//! What a report is made of.

use std::{collections::BTreeMap, time::Duration};

use podlab_timeline::{PodKey, PodTimeline};

/// How a trial ended. Kept apart everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every demand was met.
    Passed,
    /// The system under test did something else.
    Failed {
        /// Which step.
        step: String,
        /// Expected against actual.
        why: String,
        /// Statuses, events and logs at that moment.
        context: String,
    },
    /// The harness could not do its part.
    Broken {
        /// Which step.
        step: String,
        /// What broke.
        why: String,
    },
    /// A fault did not do its work; the run says nothing.
    Invalid(String),
    /// Not played, for want of this.
    Skipped(String),
    /// Passed, but only when it was played again.
    Flaky(String),
    /// Did not pass, and its failure does not count for a while.
    Quarantined(String),
}

impl Verdict {
    /// One word for people and machines.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "failed",
            Self::Broken { .. } => "broken",
            Self::Invalid(_) => "invalid",
            Self::Skipped(_) => "skipped",
            Self::Flaky(_) => "flaky",
            Self::Quarantined(_) => "quarantined",
        }
    }
}

/// One trial.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Name: the scenario's path.
    pub name: String,
    /// What holds when it passes.
    pub intent: String,
    /// How it ended.
    pub verdict: Verdict,
    /// From boot to verdict.
    pub duration: Duration,
    /// From boot to all nodes Ready.
    pub boot: Duration,
    /// Timelines by Pod.
    pub timelines: BTreeMap<PodKey, PodTimeline>,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Name of the suite.
    pub suite: String,
    /// From first to last.
    pub duration: Duration,
    /// Kernel, cores and the like, by name.
    pub environment: BTreeMap<String, String>,
    /// The trials.
    pub trials: Vec<Trial>,
}

impl Run {
    /// How many trials ended with a word.
    pub fn count(&self, word: &str) -> usize {
        self.trials.iter().filter(|t| t.verdict.word() == word).count()
    }

    /// What a program that judges exits with: 1 when something failed, else 2 when the harness broke, else 3 when a run was
    /// invalid, else 4 when something was flaky and that `flaky_fails`, else 5 when nothing was judged at all, else 0.
    pub fn exit_code(&self, flaky_fails: bool) -> u8 {
        let any = |word| self.count(word) > 0;
        match () {
            () if any("failed") => 1,
            () if any("broken") => 2,
            () if any("invalid") => 3,
            () if any("flaky") && flaky_fails => 4,
            () if !any("passed") && !any("flaky") => 5,
            () => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of outcomes, against the rule said in another way: the worst one decides.
    #[test]
    fn the_exit_code_is_that_of_the_worst_outcome_in_every_combination() {
        let text = String::new;
        let each = [
            (1, Verdict::Failed { step: text(), why: text(), context: text() }),
            (2, Verdict::Broken { step: text(), why: text() }),
            (3, Verdict::Invalid(text())),
            (4, Verdict::Flaky(text())),
            (0, Verdict::Passed),
            (5, Verdict::Skipped(text())),
            (5, Verdict::Quarantined(text())),
        ];
        for set in 0..1u32 << each.len() {
            for flaky_fails in [false, true] {
                let of = |(i, (_, v)): (usize, &(u8, Verdict))| (set >> i & 1 == 1).then(|| v.clone());
                let trial = |verdict| Trial {
                    name: text(),
                    intent: text(),
                    verdict,
                    duration: Duration::ZERO,
                    boot: Duration::ZERO,
                    timelines: BTreeMap::new(),
                };
                let trials: Vec<Trial> = each.iter().enumerate().filter_map(of).map(trial).collect();
                let code = |i: usize| if i == 3 && !flaky_fails { 0 } else { each[i].0 };
                // In this order the first that is there decides; with none at all nothing was judged.
                let worst = (0..each.len()).find(|i| set >> i & 1 == 1 && code(*i) != 5 && (code(*i) != 0 || *i >= 3));
                let expected = worst.map_or(5, code);
                let run = Run { suite: text(), duration: Duration::ZERO, environment: BTreeMap::new(), trials };
                assert_eq!(run.exit_code(flaky_fails), expected, "{set:07b} {flaky_fails}");
            }
        }
    }
}
