//! The report as JSON, version 1: everything the page shows, for programs.

use serde_json::{Value, json};

use crate::{Run, Trial, Verdict};

fn micros(d: std::time::Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

fn trial(t: &Trial) -> Value {
    let pods = t.timelines.iter().filter(|(k, _)| !k.uid.is_empty()).map(|(key, timeline)| {
        let phases = timeline.phases().map(|p| {
            let each: Vec<Value> = p.phases.iter().map(|x| json!({"name": x.name, "us": micros(x.duration)})).collect();
            json!({"totalUs": micros(p.total), "unattributedUs": micros(p.unattributed), "complete": p.complete, "phases": each})
        });
        let events: Vec<Value> = timeline.events.iter().map(|e| json!({"type": e.kind, "reason": e.reason, "message": e.message, "source": e.source, "count": e.count})).collect();
        json!({"namespace": key.namespace, "name": key.name, "uid": key.uid, "startup": phases, "events": events})
    });
    let (step, why) = match &t.verdict {
        Verdict::Failed { step, why, .. } | Verdict::Broken { step, why } => (Some(step), Some(why)),
        Verdict::Invalid(why) | Verdict::Skipped(why) | Verdict::Flaky(why) | Verdict::Quarantined(why) => {
            (None, Some(why))
        }
        Verdict::Passed => (None, None),
    };
    json!({
        "name": t.name, "intent": t.intent, "verdict": t.verdict.word(), "step": step, "why": why,
        "durationUs": micros(t.duration), "bootUs": micros(t.boot), "pods": pods.collect::<Vec<_>>(),
    })
}

/// Renders a run.
pub(crate) fn render(run: &Run) -> Result<String, serde_json::Error> {
    let trials: Vec<Value> = run.trials.iter().map(trial).collect();
    let tree = json!({
        "version": 1, "suite": run.suite, "durationUs": micros(run.duration), "environment": run.environment,
        "passed": run.count("passed"), "failed": run.count("failed"), "broken": run.count("broken"),
        "invalid": run.count("invalid"), "skipped": run.count("skipped"), "flaky": run.count("flaky"), "quarantined": run.count("quarantined"), "trials": trials,
    });
    serde_json::to_string_pretty(&tree)
}
