//! A trace in the JSON format that ui.perfetto.dev and chrome://tracing open: a process for each trial, a row for its steps,
//! and rows for each Pod's phases, calls by lane, milestones, events and what a watcher saw.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Span, axis, begin, end, instants, spans};
use crate::{Run, Trial};

/// Renders a run.
pub(crate) fn render(run: &Run) -> Result<String, serde_json::Error> {
    let mut events = Vec::new();
    for (i, trial) in run.trials.iter().enumerate().filter(|(_, t)| !t.entries.is_empty()) {
        of_trial(&mut events, run, i + 1, trial);
    }
    let tree = json!({"displayTimeUnit": "ms", "otherData": {"suite": run.suite}, "traceEvents": events});
    serde_json::to_string(&tree)
}

/// Nanoseconds as the format's microseconds. Relative to the run: a double keeps nanoseconds for months then.
fn micros(ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 nanoseconds, a hundred days")]
    let ns = ns as f64;
    ns / 1000.0
}

fn of_trial(events: &mut Vec<Value>, run: &Run, pid: usize, trial: &Trial) {
    let at = axis(run, trial);
    let zero = run.began.map_or(0, |b| b.unix_ns);
    let ts = |t| micros(at(t).saturating_sub(zero));
    events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": trial.name}}));
    events.push(json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}));
    let mut rows = Rows::default();
    let whole =
        json!({"intent": trial.intent, "verdict": trial.verdict.word(), "why": trial.verdict.why().map(|w| w.1)});
    let tid = rows.tid("trial", 0);
    events.push(json!({"ph": "X", "cat": "trial", "name": trial.name, "pid": pid, "tid": tid, "ts": ts(begin(trial)),
        "dur": ts(end(trial)) - ts(begin(trial)), "args": whole}));
    let mut all = spans(trial);
    all.sort_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
    for span in &all {
        let tid = rows.place(span);
        let mut args: Map<String, Value> =
            span.more.iter().map(|(k, v)| ((*k).to_owned(), v.as_str().into())).collect();
        if let Some(why) = &span.error {
            args.insert("error".into(), why.as_str().into());
        }
        if let Some(pod) = &span.pod {
            args.insert("pod".into(), format!("{}/{}", pod.namespace, pod.name).into());
        }
        let cat = if span.error.is_some() { "error" } else { "ok" };
        events.push(json!({"ph": "X", "cat": cat, "name": span.name, "pid": pid, "tid": tid, "ts": ts(span.start),
            "dur": ts(span.end) - ts(span.start), "args": args}));
    }
    for i in instants(trial) {
        let args: Map<String, Value> = i.more.iter().map(|(k, v)| ((*k).to_owned(), v.as_str().into())).collect();
        let tid = rows.tid(&i.row, 0);
        events.push(json!({"ph": "i", "s": "t", "cat": "instant", "name": i.name, "pid": pid, "tid": tid, "ts": ts(i.at), "args": args}));
    }
    for ((row, n), tid) in &rows.tids {
        let name = if *n == 0 { row.clone() } else { format!("{row} ({})", n + 1) };
        events.push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}));
        events
            .push(json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}));
    }
}

/// Rows of a process. Spans of one row must lie inside or beside each other, or they are not drawn: one that crosses another
/// goes to the next row of that name.
#[derive(Default)]
struct Rows {
    tids: BTreeMap<(String, usize), usize>,
    /// Ends of the spans that are open in a row, the innermost last.
    open: BTreeMap<(String, usize), Vec<podlab_clock::Mono>>,
}

impl Rows {
    fn tid(&mut self, row: &str, n: usize) -> usize {
        let next = self.tids.len() + 1;
        *self.tids.entry((row.to_owned(), n)).or_insert(next)
    }

    /// The row of a span; they come in order of their beginning, the longest first.
    fn place(&mut self, span: &Span) -> usize {
        for n in 0.. {
            let open = self.open.entry((span.row.clone(), n)).or_default();
            while open.last().is_some_and(|e| *e <= span.start) {
                open.pop();
            }
            if open.last().is_none_or(|e| span.end <= *e) {
                open.push(span.end);
                return self.tid(&span.row, n);
            }
        }
        0
    }
}
