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

    /// 0 when everything passed or was skipped, 1 when something failed, 2 when something could not be judged.
    pub fn exit_code(&self) -> u8 {
        if self.count("failed") > 0 {
            1
        } else if self.count("broken") + self.count("invalid") > 0 {
            2
        } else {
            0
        }
    }
}
