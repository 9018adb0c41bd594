//! Mutants against scenarios: each known-bad change must turn the trials red that are named for it, and those trials must
//! be green without it. See `podlab_mutant` for the list.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use podlab_mutant::Mutant;
use podlab_testbed::Zygote;
use tokio::task::JoinSet;

use crate::{
    Outcome, PlayOptions,
    place::Place,
    suite::{self, Ready, World},
};

/// What a trial made of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It failed, at this step, as it must.
    Red {
        /// Part and number, or the monitor.
        step: String,
        /// Expected against actual.
        why: String,
    },
    /// It passed all the same: the scenario does not notice.
    Green,
    /// Neither: without the mutant it does not pass, or the harness broke, or a fault did not fire.
    Unclear(String),
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The change.
    pub mutant: Mutant,
    /// The trial that is to catch it.
    pub trial: String,
    /// What it made of it.
    pub verdict: Verdict,
}

/// Which mutants to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Every one.
    All,
    /// Every tenth.
    Tenth,
}

impl Share {
    /// The mutants of this share, in the order of the list.
    pub fn mutants(self) -> Vec<Mutant> {
        let step = if self == Self::All { 1 } else { 10 };
        // From the seventh on, so that one of them needs real containers.
        Mutant::ALL.iter().skip(if step == 1 { 0 } else { 6 }).step_by(step).copied().collect()
    }
}

/// A mutant's trial that does not exist, or cannot be played.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MutantError {
    /// This build has no mutants.
    #[error("this is a release build, which cannot be told to misbehave")]
    Release,
    /// The list names a trial that there is none of.
    #[error("mutant {mutant} is to be caught by {trial}, and there is no such trial")]
    NoTrial {
        /// Name of the mutant.
        mutant: &'static str,
        /// Name of the trial.
        trial: &'static str,
    },
}

/// Plays the trials of these mutants, without and with them, `jobs` at a time; `say` hears each row as it is known. The
/// rows come back in the order of the list. Without a zygote nothing can be played on real containers.
///
/// # Errors
/// [`MutantError`], before anything is played.
pub async fn judge(
    zygote: Option<Arc<Zygote>>,
    scenarios: &[Ready],
    mutants: &[Mutant],
    options: &PlayOptions,
    jobs: usize,
    mut say: impl FnMut(&Row),
) -> Result<Vec<Row>, MutantError> {
    let plan = plan(scenarios, mutants)?;
    let mut sound: BTreeMap<&'static str, (Ready, World)> =
        plan.iter().map(|(_, trial, ready, world)| (*trial, (ready.clone(), *world))).collect();
    let mut waiting: Vec<(Option<usize>, &'static str, Ready, World)> = Vec::new();
    for (i, (_, trial, ready, world)) in plan.iter().enumerate().rev() {
        waiting.push((Some(i), trial, ready.clone(), *world));
    }
    // Popped from the end: first whether they pass as things are.
    while let Some((trial, (ready, world))) = sound.pop_last() {
        waiting.push((None, trial, ready, world));
    }
    let mut running = JoinSet::new();
    let mut healthy: BTreeMap<&'static str, Outcome> = BTreeMap::new();
    let mut rows: BTreeMap<usize, Row> = BTreeMap::new();
    loop {
        while running.len() < jobs.max(1)
            && let Some((which, trial, ready, world)) = waiting.pop()
        {
            let mutant = which.and_then(|i| plan.get(i)).map(|(m, ..)| *m);
            let out = options.out.join(mutant.map_or("sound", Mutant::name));
            let options = PlayOptions { out, mutant, ..options.clone() };
            let zygote = zygote.clone();
            running.spawn(
                async move { (which, trial, suite::one(zygote, Place::default(), &ready, world, options).await) },
            );
        }
        let Some(joined) = running.join_next().await else { break };
        // What may panic runs in a task of its own, inside.
        let Ok((which, trial, played)) = joined else { continue };
        match which.and_then(|i| Some((i, plan.get(i)?.0))) {
            None => {
                healthy.insert(trial, played.outcome);
            }
            Some((i, mutant)) => {
                let row = Row { mutant, trial: trial.to_owned(), verdict: verdict(played.outcome) };
                say(&row);
                rows.insert(i, row);
            }
        }
    }
    let rows = rows.into_values().map(|mut row| {
        let as_is = healthy.get(row.trial.as_str());
        if let Some(outcome) = as_is.filter(|o| **o != Outcome::Passed) {
            row.verdict = Verdict::Unclear(format!("without the mutant: {}", words(outcome)));
        }
        row
    });
    Ok(rows.collect())
}

type Planned = (Mutant, &'static str, Ready, World);

fn plan(scenarios: &[Ready], mutants: &[Mutant]) -> Result<Vec<Planned>, MutantError> {
    if !podlab_mutant::carried() {
        return Err(MutantError::Release);
    }
    let trials = |r: &Ready| r.worlds(None).into_iter().map(|w| (r.trial_name(w), w)).collect::<Vec<_>>();
    let known: BTreeMap<String, (&Ready, World)> =
        scenarios.iter().flat_map(|r| trials(r).into_iter().map(move |(name, w)| (name, (r, w)))).collect();
    let mut out = Vec::new();
    for mutant in mutants {
        for trial in mutant.caught_by() {
            let missing = MutantError::NoTrial { mutant: mutant.name(), trial };
            let (ready, world) = known.get(*trial).ok_or(missing)?;
            out.push((*mutant, *trial, (*ready).clone(), *world));
        }
    }
    Ok(out)
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Passed => Verdict::Green,
        Outcome::Failed(f) => Verdict::Red { step: f.step, why: f.why },
        Outcome::Broken(_) | Outcome::Invalid(_) | Outcome::Skipped(_) => Verdict::Unclear(words(&outcome)),
    }
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Failed(f) => format!("failed at {}: {}", f.step, f.why),
        Outcome::Broken(f) => format!("broken at {}: {}", f.step, f.why),
        Outcome::Invalid(why) => format!("invalid: {why}"),
        Outcome::Skipped(why) => format!("skipped: {why}"),
    }
}

/// The table in Markdown: who is changed, how, which trial catches it.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(HEAD);
    for row in rows {
        let verdict = match &row.verdict {
            Verdict::Red { .. } => "red",
            Verdict::Green => "GREEN",
            Verdict::Unclear(_) => "UNCLEAR",
        };
        let (m, trial) = (row.mutant, &row.trial);
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| `{}` | {} | {} | `{trial}` | {verdict} |", m.name(), m.component().as_str(), m.wrong());
    }
    out
}

const HEAD: &str = "# Mutants

Known-bad changes to the components, and the trials that turn red because of them; without the mutant each of these trials
is green. `cargo xtask mutants` plays all of them and writes this table; CI plays a tenth.

| mutant | component | what is wrong with it | trial | with the mutant |
|---|---|---|---|---|
";

/// The rows of the whole list as they must be.
pub fn expected() -> Vec<Row> {
    let red = || Verdict::Red { step: String::new(), why: String::new() };
    let of = |m: &Mutant| {
        m.caught_by().iter().map(|t| Row { mutant: *m, trial: (*t).to_owned(), verdict: red() }).collect::<Vec<_>>()
    };
    Mutant::ALL.iter().flat_map(of).collect()
}
