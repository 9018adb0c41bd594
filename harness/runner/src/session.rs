//! The log of a whole run of trials: one JSON line for each thing that happens, each one `write(2)` on an `O_APPEND` file, so
//! that a runner killed at any moment loses nothing it had said. Everything that is reported of a run is folded from it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use podlab_clock::{Clock, Mono};
use podlab_timeline::{PodKey, PodTimeline};
use serde::{Deserialize, Serialize};

use crate::{Outcome, Trial};

/// Name of the log in the folder of reports.
pub const SESSION_FILE: &str = "session.jsonl";
/// Version of its lines. A field added later must default when absent.
const VERSION: u8 = 1;

/// A trial that is to be played.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Its name.
    pub trial: String,
    /// What holds when it passes.
    pub intent: String,
    /// `real` or `virtual`; empty in logs of before that was written.
    #[serde(default)]
    pub world: String,
}

/// One moment on the clock of people and on that of the run logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Began {
    /// Nanoseconds since 1970 in UTC.
    pub unix_ns: u64,
    /// The same moment, monotonic.
    pub mono: Mono,
}

impl Began {
    /// Now.
    pub fn now(clock: Clock) -> Self {
        let unix_ns = u64::try_from(clock.wall().as_nanosecond()).unwrap_or_default();
        Self { unix_ns, mono: clock.now() }
    }
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// `passed`, `failed`, `broken`, `invalid` or `skipped`.
    pub verdict: String,
    /// Which step.
    #[serde(default)]
    pub step: String,
    /// Expected against actual, or what broke.
    #[serde(default)]
    pub why: String,
    /// Statuses, events and logs at that moment.
    #[serde(default)]
    pub context: String,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Said {
    /// The run begins.
    Begin {
        /// Version.
        v: u8,
        /// Name of the suite.
        suite: String,
        /// Kernel, cores and the like, by name.
        environment: BTreeMap<String, String>,
        /// Everything that is to be played.
        trials: Vec<Planned>,
        /// When, where that was written down.
        #[serde(default)]
        began: Option<Began>,
    },
    /// A trial begins.
    TrialBegin {
        /// Which.
        trial: String,
        /// Which time, from 1.
        attempt: u32,
    },
    /// A trial has ended.
    TrialEnd {
        /// Which.
        trial: String,
        /// Which time, from 1.
        attempt: u32,
        /// How.
        ended: Ended,
        /// Why its failure does not count, if so.
        #[serde(default)]
        quarantine: Option<String>,
        /// From boot to verdict.
        duration_us: u64,
        /// From boot to all nodes Ready.
        boot_us: u64,
        /// Its run log.
        log: PathBuf,
        /// Timelines of the Pods it keeps, in normal form; empty when it keeps none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        timeline: String,
        /// What was recorded of them before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recorded: Option<String>,
    },
    /// The run is over.
    End {
        /// Somebody ended it.
        interrupted: bool,
        /// From first to last.
        duration_us: u64,
    },
}

impl Said {
    /// The first line.
    pub fn begin(suite: &str, began: Began, environment: BTreeMap<String, String>, trials: Vec<Planned>) -> Self {
        Self::Begin { v: VERSION, suite: suite.to_owned(), environment, trials, began: Some(began) }
    }

    /// A played trial.
    pub fn end(trial: &Trial, attempt: u32, quarantine: Option<String>) -> Self {
        let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        let (verdict, failure) = match &trial.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Failed(f) => ("failed", Some(f.clone())),
            Outcome::Broken(f) => ("broken", Some(f.clone())),
            Outcome::Skipped(why) => {
                let f = crate::Failure { step: String::new(), why: why.clone(), context: String::new() };
                ("skipped", Some(f))
            }
            Outcome::Invalid(why) => {
                ("invalid", Some(crate::Failure { step: String::new(), why: why.clone(), context: String::new() }))
            }
        };
        let f = failure.unwrap_or(crate::Failure { step: String::new(), why: String::new(), context: String::new() });
        Self::TrialEnd {
            trial: trial.name.clone(),
            attempt,
            ended: Ended { verdict: verdict.to_owned(), step: f.step, why: f.why, context: f.context },
            quarantine,
            duration_us: micros(trial.duration),
            boot_us: micros(trial.boot),
            log: trial.log.clone(),
            timeline: trial.snapshot.clone(),
            recorded: trial.recorded.clone(),
        }
    }
}

/// The open log.
#[derive(Debug)]
pub struct SessionLog(File);

impl SessionLog {
    /// A new log in a folder, made when absent; what an earlier run left there is gone.
    ///
    /// # Errors
    /// The disk's.
    pub fn create(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join(SESSION_FILE);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The disk's.
    pub fn say(&self, said: &Said) -> io::Result<()> {
        let mut line = serde_json::to_vec(said)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

/// What a trial came to, over all its attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folded {
    /// Its name.
    pub trial: String,
    /// What holds when it passes.
    pub intent: String,
    /// `passed`, `failed`, `broken`, `invalid`, `flaky`, `quarantined` or `skipped`.
    pub ended: Ended,
    /// The last attempt, from boot to verdict, in microseconds.
    pub duration_us: u64,
    /// Its boot.
    pub boot_us: u64,
    /// Its run log; empty when it was not played to its end.
    pub log: PathBuf,
    /// `real` or `virtual`, where that is known.
    pub world: String,
    /// Timelines of the Pods it keeps, in normal form.
    pub timeline: String,
    /// What was recorded of them before.
    pub recorded: Option<String>,
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// Name of the suite.
    pub suite: String,
    /// When it began.
    pub began: Option<Began>,
    /// Where it was played.
    pub environment: BTreeMap<String, String>,
    /// Every trial that was to be played, in their order.
    pub trials: Vec<Folded>,
    /// From first to last, in microseconds; of a run that was killed, the sum of its trials.
    pub duration_us: u64,
    /// Whether it was played to its end.
    pub complete: bool,
    /// Whether somebody ended it.
    pub interrupted: bool,
}

impl Session {
    /// Names of the trials to play again: those that failed, were broken, invalid or flaky, or were cut off.
    pub fn unsettled(&self) -> impl Iterator<Item = &str> {
        let settled = ["passed", "skipped", "quarantined"];
        self.trials.iter().filter(move |t| !settled.contains(&t.ended.verdict.as_str())).map(|t| t.trial.as_str())
    }
}

/// Reads a log; a last line that was cut off is left out.
///
/// # Errors
/// The disk's, and a log without a first line.
pub fn read(path: &Path) -> io::Result<Session> {
    let text = std::fs::read_to_string(path)?;
    let said = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    fold(said).ok_or_else(|| io::Error::other(format!("{}: no run begins in it", path.display())))
}

/// The run log of a trial.
///
/// # Errors
/// The disk's.
pub fn entries(log: &Path) -> io::Result<Vec<podlab_timeline::Entry>> {
    podlab_timeline::fold::read_log(log).map_err(io::Error::other)
}

/// The timelines in it.
pub fn timelines(entries: &[podlab_timeline::Entry]) -> BTreeMap<PodKey, PodTimeline> {
    podlab_timeline::fold::fold(entries)
}

/// How an attempt ended, whether that is excused, its duration and boot, its run log, its timeline and the recorded one.
type Attempt = (Ended, Option<String>, u64, u64, PathBuf, (String, Option<String>));

/// Folds the lines of a run.
pub fn fold(said: impl IntoIterator<Item = Said>) -> Option<Session> {
    let mut session = None::<Session>;
    let mut begun: BTreeMap<String, u32> = BTreeMap::new();
    let mut ends: BTreeMap<String, Vec<Attempt>> = BTreeMap::new();
    let mut planned = Vec::new();
    for one in said {
        match one {
            Said::Begin { suite, environment, trials, began, .. } => {
                session = Some(Session { suite, environment, began, ..Session::default() });
                planned = trials;
            }
            Said::TrialBegin { trial, attempt } => drop(begun.insert(trial, attempt)),
            Said::TrialEnd { trial, ended, quarantine, duration_us, boot_us, log, timeline, recorded, .. } => {
                let of = (ended, quarantine, duration_us, boot_us, log, (timeline, recorded));
                ends.entry(trial).or_default().push(of);
            }
            Said::End { interrupted, duration_us } => {
                if let Some(s) = &mut session {
                    (s.complete, s.interrupted, s.duration_us) = (true, interrupted, duration_us);
                }
            }
        }
    }
    let mut session = session?;
    for Planned { trial, intent, world } in planned {
        let all = ends.remove(&trial).unwrap_or_default();
        let cut = usize::try_from(begun.get(&trial).copied().unwrap_or(0)).unwrap_or(0) > all.len();
        let failed = all.iter().map(|(e, ..)| e).find(|e| e.verdict != "passed").cloned();
        let mut folded = Folded { trial, intent, world, ..Folded::default() };
        let word = |verdict: &str, why: String| Ended { verdict: verdict.into(), why, ..Ended::default() };
        folded.ended = match (all.into_iter().next_back(), cut) {
            (_, true) => {
                Ended { step: "whole trial".into(), ..word("broken", "the run ended before this trial did".into()) }
            }
            (None, false) => word("skipped", "not played: the run ended before its turn".into()),
            (Some((ended, quarantine, duration, boot, log, (timeline, recorded))), false) => {
                (folded.duration_us, folded.boot_us, folded.log) = (duration, boot, log);
                (folded.timeline, folded.recorded) = (timeline, recorded);
                match (ended.verdict.as_str(), failed, quarantine) {
                    ("passed", Some(before), _) => {
                        let why = format!(
                            "it passed only when it was played again; before that, {}: {}",
                            before.step, before.why
                        );
                        Ended { verdict: "flaky".into(), step: before.step, why, context: before.context }
                    }
                    ("passed", ..) => ended,
                    ("skipped", ..) => ended,
                    (_, _, Some(text)) => Ended {
                        why: format!("{text}; {}: {}", ended.step, ended.why),
                        verdict: "quarantined".into(),
                        ..ended
                    },
                    _ => ended,
                }
            }
        };
        session.trials.push(folded);
    }
    if !session.complete {
        session.duration_us = session.trials.iter().map(|t| t.duration_us).sum();
    }
    Some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> Said {
        let plan = |t: &str| Planned { trial: t.into(), intent: "It holds.".into(), world: "virtual".into() };
        Said::begin("e2e", Began { unix_ns: 7, mono: Mono(3) }, BTreeMap::new(), vec![plan("a"), plan("b")])
    }

    fn starts(trial: &str, attempt: u32) -> Said {
        Said::TrialBegin { trial: trial.into(), attempt }
    }

    fn ends(trial: &str, attempt: u32, verdict: &str, quarantine: Option<&str>) -> Said {
        let ended = Ended { verdict: verdict.into(), step: "then[1]".into(), why: "no".into(), context: String::new() };
        let quarantine = quarantine.map(str::to_owned);
        let (timeline, recorded) = (String::new(), None);
        Said::TrialEnd {
            trial: trial.into(),
            attempt,
            ended,
            quarantine,
            duration_us: 5,
            boot_us: 1,
            log: "x".into(),
            timeline,
            recorded,
        }
    }

    fn words(said: &[Said]) -> Vec<String> {
        fold(said.to_vec()).unwrap().trials.into_iter().map(|t| t.ended.verdict).collect()
    }

    #[test]
    fn each_trial_has_one_verdict_over_all_its_attempts() {
        for (said, word) in [
            (vec![starts("a", 1), ends("a", 1, "passed", None)], "passed"),
            (vec![starts("a", 1), ends("a", 1, "failed", None)], "failed"),
            (vec![starts("a", 1), ends("a", 1, "failed", None), starts("a", 2), ends("a", 2, "passed", None)], "flaky"),
            (
                vec![starts("a", 1), ends("a", 1, "failed", None), starts("a", 2), ends("a", 2, "broken", None)],
                "broken",
            ),
            (vec![starts("a", 1), ends("a", 1, "failed", Some("q"))], "quarantined"),
            (vec![starts("a", 1), ends("a", 1, "passed", Some("q"))], "passed"),
            (vec![starts("a", 1), ends("a", 1, "skipped", None)], "skipped"),
            (vec![starts("a", 1), ends("a", 1, "skipped", Some("q"))], "skipped"),
            (vec![starts("a", 1)], "broken"),
            (vec![starts("a", 1), ends("a", 1, "failed", None), starts("a", 2)], "broken"),
            (vec![], "skipped"),
        ] {
            let all: Vec<Said> = std::iter::once(begin()).chain(said).collect();
            assert_eq!(words(&all), [word, "skipped"], "{all:?}");
        }
        assert_eq!(fold([starts("a", 1)]), None);
    }

    /// Whatever the line a runner is killed at, and wherever in it, every planned trial has a verdict, and those that had
    /// one keep it.
    #[test]
    fn a_log_that_was_cut_off_at_any_byte_still_tells_what_had_ended() {
        let all = [begin(), starts("a", 1), ends("a", 1, "failed", None), starts("b", 1), ends("b", 1, "passed", None)];
        let text: String = all.iter().map(|s| serde_json::to_string(s).unwrap() + "\n").collect();
        let dir = std::env::temp_dir().join(format!("podlab-session-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(SESSION_FILE);
        let first = text.find('\n').unwrap();
        for cut in 0..=text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let Ok(session) = read(&path) else {
                assert!(cut < first);
                continue;
            };
            assert_eq!(session.trials.len(), 2, "cut at {cut}");
            let ended = |trial: &str| {
                text[..cut].lines().any(|l| {
                    serde_json::from_str::<Said>(l)
                        .is_ok_and(|s| matches!(s, Said::TrialEnd { trial: t, .. } if t == trial))
                })
            };
            let is = |i: usize| session.trials[i].ended.verdict.as_str();
            assert_eq!((is(0) == "failed", is(1) == "passed"), (ended("a"), ended("b")), "cut at {cut}");
            assert!(!session.complete);
        }
        let whole = read(&path).unwrap();
        assert_eq!(whole.trials[0].ended.verdict, "failed");
        assert_eq!(whole.unsettled().collect::<Vec<_>>(), ["a"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
