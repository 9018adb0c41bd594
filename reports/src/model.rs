//! What a report is made of.

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;
use podlab_timeline::{Entry, PodKey, PodTimeline, fold::Phases};

/// How a trial ended. Kept apart everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Every demand was met.
    #[default]
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

    /// Where and why, where there is something to say; the step may be empty.
    pub fn why(&self) -> Option<(&str, &str)> {
        match self {
            Self::Passed => None,
            Self::Failed { step, why, .. } | Self::Broken { step, why } => Some((step, why)),
            Self::Invalid(why) | Self::Skipped(why) | Self::Flaky(why) | Self::Quarantined(why) => Some(("", why)),
        }
    }
}

/// The end of one component's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogTail {
    /// Which component: `capsule`, `plane`, a node.
    pub component: String,
    /// Its last lines.
    pub text: String,
}

/// One trial.
#[derive(Debug, Clone, Default)]
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
    /// `real` or `virtual`, where that is known.
    pub world: String,
    /// Timelines by Pod.
    pub timelines: BTreeMap<PodKey, PodTimeline>,
    /// Its run log, which the timelines are folded from; empty where only they are known.
    pub entries: Vec<Entry>,
    /// The timelines of the Pods the scenario keeps, in normal form; empty when it keeps none.
    pub timeline: String,
    /// What was recorded of them before, if anything.
    pub recorded: Option<String>,
    /// Ends of the components' logs, of a trial that did not pass.
    pub logs: Vec<LogTail>,
}

impl Trial {
    /// The startup of the Pod that began first among those that became Ready.
    pub fn startup(&self) -> Option<(&PodKey, Phases)> {
        let ready = self.timelines.iter().filter_map(|(k, t)| Some((k, t.phases().filter(|p| p.complete)?)));
        ready.min_by_key(|(_, p)| p.phases.first().map(|p| p.start))
    }
}

/// When a run began, on the clock of people and on that of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Began {
    /// Nanoseconds since 1970 in UTC.
    pub unix_ns: u64,
    /// The same moment on the monotonic clock, which trials on real containers are stamped with.
    pub mono: Mono,
}

/// A whole run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Name of the suite.
    pub suite: String,
    /// From first to last.
    pub duration: Duration,
    /// When it began, where that was written down.
    pub began: Option<Began>,
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
                let trial = |verdict| Trial { verdict, ..Trial::default() };
                let trials: Vec<Trial> = each.iter().enumerate().filter_map(of).map(trial).collect();
                let code = |i: usize| if i == 3 && !flaky_fails { 0 } else { each[i].0 };
                // In this order the first that is there decides; with none at all nothing was judged.
                let worst = (0..each.len()).find(|i| set >> i & 1 == 1 && code(*i) != 5 && (code(*i) != 0 || *i >= 3));
                let expected = worst.map_or(5, code);
                let run = Run { trials, ..Run::default() };
                assert_eq!(run.exit_code(flaky_fails), expected, "{set:07b} {flaky_fails}");
            }
        }
    }
}
