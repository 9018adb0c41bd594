//! From samples to words: comparison, table, JSON, and the formats other tools read.

use std::path::Path;

use anyhow::{Context, Result};
use podlab_measure::Attribution;
use podlab_stats::{Comparison, Design, Effect, Moved, Pair, Sample, Verdict, compare};
use serde_json::{Value, json};

use super::pair::Round;

/// Compares what was measured. `None` without pairs.
pub(crate) fn judge(rounds: &[Round], design: &Design) -> Option<Comparison> {
    let all = || rounds.iter().flat_map(|r| r.blocks.iter().flatten());
    let mut names: Vec<&'static str> = Vec::new();
    for (a, b) in all() {
        // Phases are compared when both sides have them; a side without a run log has none.
        let common = a.phases.iter().filter(|(n, _)| b.phases.iter().any(|(m, _)| n == m));
        for (name, _) in common {
            if !names.contains(name) {
                names.push(name);
            }
        }
    }
    let sample = |a: &Attribution| {
        let of = |name: &&str| a.phases.iter().find(|(n, _)| n == name).map_or(0.0, |(_, d)| d.as_secs_f64() * 1e3);
        Sample { total: a.total.as_secs_f64() * 1e3, phases: names.iter().map(of).collect() }
    };
    let pairs = |block: &Vec<(Attribution, Attribution)>| {
        block.iter().map(|(a, b)| Pair { a: sample(a), b: sample(b) }).collect::<Vec<_>>()
    };
    let rounds: Vec<Vec<Vec<Pair>>> = rounds.iter().map(|r| r.blocks.iter().map(pairs).collect()).collect();
    compare(&names, &rounds, design)
}

/// The comparison as a table.
pub(crate) fn table(c: &Comparison) -> String {
    let mut out = format!("{:<12} {:>9} {:>9} {:>8}  {:<19}\n", "", "A ms", "B ms", "change", "99 % interval");
    let mut row = |e: &Effect| {
        let percent = |x: f64| format!("{:+.2} %", x * 100.0);
        let interval = format!("{} … {}", percent(e.low), percent(e.high));
        out.push_str(&format!("{:<12} {:>9.3} {:>9.3} {:>8}  {interval}\n", e.of, e.a, e.b, percent(e.change)));
    };
    row(&c.total);
    c.tails.iter().for_each(&mut row);
    c.phases.iter().for_each(&mut row);
    out.push_str(
        "changes of phases are shares of A's total; figures are means of the lower half, p90 and p99 nearest rank\n",
    );
    out
}

/// The verdict as a sentence.
pub(crate) fn sentence(verdict: &Verdict, design: &Design) -> String {
    match verdict {
        Verdict::NotSlower => {
            format!("not slower by more than {:.1} %, as far as can be seen", design.min_effect * 100.0)
        }
        Verdict::Slower(moved) => {
            let one = |m: &Moved| format!("{} {:+.2} %", m.of, m.change * 100.0);
            let phase = verdict.phase().map(|p| format!(", in {p}")).unwrap_or_default();
            format!("slower{phase}: {}", moved.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A comparison as JSON; times in milliseconds, changes as shares.
pub(crate) fn to_json(c: &Comparison) -> Value {
    let one = |e: &Effect| json!({"of": e.of, "aMs": e.a, "bMs": e.b, "change": e.change, "low": e.low, "high": e.high, "error": e.error});
    let moved = match &c.verdict {
        Verdict::NotSlower => json!([]),
        Verdict::Slower(m) => m.iter().map(|m| json!({"of": m.of, "change": m.change})).collect(),
    };
    json!({
        "pairs": c.pairs, "total": one(&c.total), "tails": c.tails.iter().map(one).collect::<Vec<_>>(),
        "phases": c.phases.iter().map(one).collect::<Vec<_>>(), "moved": moved,
    })
}

/// What other tools read: Bencher's metric format, github-action-benchmark's list, and ClusterLoader2's PerfData.
pub(crate) fn export(dir: &Path, c: &Comparison) -> Result<()> {
    let all = || std::iter::once(&c.total).chain(&c.tails).chain(&c.phases);
    let bmf: serde_json::Map<String, Value> = all()
        .map(|e| {
            let ns = |ms: f64| ms * 1e6;
            (format!("pod-startup/{}", e.of), json!({"latency": {"value": ns(e.b)}}))
        })
        .collect();
    let list: Vec<Value> = all()
        .map(|e| json!({"name": format!("pod-startup/{}", e.of), "unit": "ms", "value": e.b, "extra": format!("against {:.3} ms", e.a)}))
        .collect();
    let tail = |of: &str| c.tails.iter().find(|t| t.of == of).map(|t| t.b);
    let mut data = serde_json::Map::new();
    data.insert("LowerHalfMean".into(), json!(c.total.b));
    for (key, of) in [("Perc90", "p90"), ("Perc99", "p99")] {
        if let Some(v) = tail(of) {
            data.insert(key.into(), json!(v));
        }
    }
    let perf =
        json!({"version": "1.0", "dataItems": [{"data": data, "unit": "ms", "labels": {"Metric": "pod_startup"}}]});
    for (name, value) in [
        ("bencher.json", Value::Object(bmf)),
        ("github-action-benchmark.json", Value::Array(list)),
        ("perfdata.json", perf),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, serde_json::to_vec_pretty(&value)?).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}
