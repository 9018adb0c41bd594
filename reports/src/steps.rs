//! The steps of a trial as its run log tells them: what each did, from when to when, and how it ended.

use podlab_clock::Mono;
use podlab_timeline::{Entry, Event};
use serde_json::Value;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepState {
    /// Its demand was met.
    Done,
    /// It was not, or it could not be done.
    Failed,
    /// It was being done when the log ended, or was cut off.
    CutOff,
}

/// One time a step was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRun {
    /// Path, e.g. `then[2].retry.steps[1]`.
    pub at: String,
    /// What it does, in a sentence; empty in logs of before that was written.
    pub what: String,
    /// From.
    pub start: Mono,
    /// To; the end of the log for one that was cut off.
    pub end: Mono,
    /// How it ended.
    pub state: StepState,
    /// What was said of it in between: an attempt that failed, say.
    pub notes: Vec<String>,
}

impl StepRun {
    /// How many steps it is inside of.
    pub fn depth(&self) -> usize {
        self.at.matches('[').count().saturating_sub(1)
    }
}

/// Folds a log; in order of their beginning.
pub fn steps(entries: &[Entry]) -> Vec<StepRun> {
    let mut out: Vec<StepRun> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let last = entries.iter().map(|e| e.t).max().unwrap_or(Mono(0));
    for (t, run) in entries.iter().filter_map(|e| if let Event::Run(v) = &e.event { Some((e.t, v)) } else { None }) {
        let text = |key: &str| run.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (at, state) = (text("step"), text("state"));
        let begun = open.iter().rposition(|i| out[*i].at == at);
        match (state.as_str(), begun) {
            ("begins", _) => {
                open.push(out.len());
                out.push(StepRun {
                    at,
                    what: text("what"),
                    start: t,
                    end: last,
                    state: StepState::CutOff,
                    notes: vec![],
                });
            }
            ("done" | "failed", Some(i)) => {
                let step = &mut out[open.remove(i)];
                step.end = t;
                step.state = if state == "done" { StepState::Done } else { StepState::Failed };
            }
            // A state of a newer writer is told as it is.
            (_, Some(i)) => out[open[i]].notes.push(format!("{state}: {}", text("why"))),
            (_, None) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use podlab_timeline::{Lane, SCHEMA_VERSION};
    use serde_json::json;

    use super::*;

    fn log(lines: &[(u64, Value)]) -> Vec<Entry> {
        let entry = |(t, v): &(u64, Value)| Entry {
            v: SCHEMA_VERSION,
            t: Mono(*t),
            lane: Lane::Run,
            pod: None,
            node: None,
            event: Event::Run(v.clone()),
        };
        lines.iter().map(entry).collect()
    }

    #[test]
    fn a_step_done_twice_is_told_twice_and_one_that_was_cut_off_says_so() {
        let told = steps(&log(&[
            (1, json!({"step": "when[1]", "state": "begins", "what": "Repeat."})),
            (2, json!({"step": "when[1].repeat.steps[1]", "state": "begins"})),
            (3, json!({"step": "when[1].repeat.steps[1]", "state": "failed"})),
            (4, json!({"step": "when[1]", "state": "again", "why": "no"})),
            (5, json!({"step": "when[1].repeat.steps[1]", "state": "begins"})),
            (6, json!({"step": "when[1].repeat.steps[1]", "state": "done"})),
            (7, json!({"faultFired": "x"})),
        ]));
        let short: Vec<_> = told.iter().map(|s| (s.depth(), s.start.0, s.end.0, s.state)).collect();
        assert_eq!(short, [(0, 1, 7, StepState::CutOff), (1, 2, 3, StepState::Failed), (1, 5, 6, StepState::Done)]);
        assert_eq!((told[0].what.as_str(), told[0].notes.as_slice()), ("Repeat.", &["again: no".to_owned()][..]));
    }
}
