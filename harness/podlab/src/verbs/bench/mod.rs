//! `bench`: two builds measured start by start on clusters side by side, and a verdict. Exit codes: 0 not slower, 1 slower, 2
//! could not be measured.

mod check;
mod judge;
mod machine;
mod pair;
mod revision;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use podlab_stats::{Comparison, Design, Verdict, confirmed};
use serde_json::json;

use crate::{out::say, verbs::cluster};

/// The words of `podlab bench`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Bench {
    /// What to compare with: a podlab program, or a revision of the repository we are in, which is built for it.
    #[arg(long, value_name = "REV|PROGRAM", required_unless_present = "self_check")]
    pub(crate) against: Option<String>,
    /// The build that is judged: a program or a revision; this very program when absent.
    #[arg(long, value_name = "REV|PROGRAM")]
    pub(crate) subject: Option<String>,
    /// Seconds of measuring, boots and builds apart. A change that is found is measured again for as long.
    #[arg(long, default_value_t = 9.5)]
    pub(crate) time: f64,
    /// How many pairs of fresh clusters the time is spread over.
    #[arg(long, default_value_t = 4)]
    pub(crate) boots: u32,
    /// Pairs of starts whose Pods are deleted together.
    #[arg(long, default_value_t = 5)]
    pub(crate) block: usize,
    /// Pairs of starts left out after each boot.
    #[arg(long, default_value_t = 20)]
    pub(crate) warmup: usize,
    /// Decides the order of the two in each pair.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Changes of the total below this many percent do not matter.
    #[arg(long, default_value_t = 1.5)]
    pub(crate) min_effect: f64,
    /// Check the gate itself on this machine: so many comparisons of this program with itself, which may raise one alarm for
    /// every forty, and half as many with a delay of 3 % of the total in one phase, which must all be found and named.
    #[arg(long, value_name = "N", conflicts_with_all = ["against", "subject"])]
    pub(crate) self_check: Option<u32>,
    /// Folder for samples and report.
    #[arg(long, default_value = "target/reports/bench")]
    pub(crate) out: PathBuf,
    /// More words for `up` of the build compared with; may be repeated.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) up_a: Vec<String>,
    /// More words for `up` of the judged build; may be repeated.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) up_b: Vec<String>,
}

/// What a comparison came to, the repetition of an alarm included.
pub(crate) struct Outcome {
    first: Comparison,
    again: Option<Comparison>,
    verdict: Verdict,
    took: Duration,
}

/// Measures and judges.
pub(crate) fn run(o: &Bench) -> Result<ExitCode> {
    cluster::check_host()?;
    std::fs::create_dir_all(&o.out).with_context(|| format!("{}", o.out.display()))?;
    let own = std::env::current_exe().context("find this program")?;
    if let Some(n) = o.self_check {
        return check::run(o, &own, n);
    }
    let against = o.against.as_deref().context("--against says what to compare with")?;
    let subject = o.subject.as_ref().map_or(Ok(own), |s| revision::program(s))?;
    let sides = [
        pair::Side { program: revision::program(against)?, up: o.up_a.clone() },
        pair::Side { program: subject, up: o.up_b.clone() },
    ];
    let design = o.design();
    let (load, stolen) = machine::load();
    let done = measure(o, &sides, &design)?;
    say!("{}", judge::table(&done.first));
    if let Some(again) = &done.again {
        say!("{}; measured again:\n", judge::sentence(&done.first.verdict, &design));
        say!("{}", judge::table(again));
    }
    let (load_after, stolen_after) = machine::load();
    let facts = machine::facts();
    let words: Vec<String> = facts.iter().map(|(k, v)| format!("{k} {v}")).collect();
    say!("{}; load {load} → {load_after}, stolen {} ticks", words.join(", "), stolen_after.saturating_sub(stolen));
    let (pairs, seconds) = (done.first.pairs, done.took.as_secs_f64());
    say!("{pairs} pairs in {seconds:.1} s of measuring: {}", judge::sentence(&done.verdict, &design));
    let finds = done.first.total.finds(design.min_effect, &design);
    say!("a change of the total of {:.1} % or more would have been found nineteen times in twenty", finds * 100.0);
    let report = json!({
        "version": 1, "finds": finds, "against": against, "subject": o.subject, "seed": o.seed, "minEffect": design.min_effect,
        "machine": facts, "machineClass": machine::class(), "load": [load, load_after], "seconds": seconds,
        "first": judge::to_json(&done.first), "again": done.again.as_ref().map(judge::to_json),
        "slower": done.verdict != Verdict::NotSlower, "phase": done.verdict.phase(),
    });
    let path = o.out.join("comparison.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&report)?).with_context(|| format!("{}", path.display()))?;
    judge::export(&o.out, &done.first)?;
    Ok(if done.verdict == Verdict::NotSlower { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Bench {
    fn design(&self) -> Design {
        Design { seed: self.seed, min_effect: self.min_effect / 100.0, ..Design::default() }
    }
}

/// Measures, and when that raises an alarm, measures again with another seed.
pub(crate) fn measure(o: &Bench, sides: &[pair::Side; 2], design: &Design) -> Result<Outcome> {
    let (first, mut took) = once(o, sides, design, 0)?;
    if first.verdict == Verdict::NotSlower {
        return Ok(Outcome { first, again: None, verdict: Verdict::NotSlower, took });
    }
    let (again, more) = once(o, sides, design, 1)?;
    took += more;
    let verdict = confirmed(&first, &again);
    Ok(Outcome { first, again: Some(again), verdict, took })
}

/// One measurement on fresh clusters, and how long it took.
fn once(o: &Bench, sides: &[pair::Side; 2], design: &Design, attempt: u64) -> Result<(Comparison, Duration)> {
    let runtime = cluster::runtime()?;
    let boots = o.boots.max(1);
    let mut rounds = Vec::new();
    for n in 0..boots {
        let plan = podlab_measure::Plan {
            seed: o.seed.wrapping_mul(1000).wrapping_add(attempt * 100 + u64::from(n)),
            warmup: o.warmup,
            block: o.block,
            budget: Duration::from_secs_f64((o.time / f64::from(boots)).max(0.0)),
            blocks: usize::MAX,
        };
        rounds.push(pair::measure(&runtime, sides, &plan, n)?);
    }
    keep(&o.out.join(format!("samples-{}.json", attempt + 1)), &rounds)?;
    let design = Design { seed: design.seed.wrapping_add(attempt), ..design.clone() };
    let comparison = judge::judge(&rounds, &design).context("nothing was measured; give it more --time")?;
    Ok((comparison, rounds.iter().map(|r| r.took).sum()))
}

/// Writes the raw samples, in microseconds.
fn keep(path: &Path, rounds: &[pair::Round]) -> Result<()> {
    let micros = |d: &Duration| json!((d.as_secs_f64() * 1e7).round() / 10.0);
    let one = |a: &podlab_measure::Attribution| {
        let phases: Vec<_> = a.phases.iter().map(|(name, d)| json!([name, micros(d)])).collect();
        json!({"total": micros(&a.total), "phases": phases})
    };
    let block = |b: &Vec<(podlab_measure::Attribution, podlab_measure::Attribution)>| {
        b.iter().map(|(a, b)| json!([one(a), one(b)])).collect::<Vec<_>>()
    };
    let all: Vec<_> = rounds.iter().map(|r| r.blocks.iter().map(block).collect::<Vec<_>>()).collect();
    std::fs::write(path, serde_json::to_vec(&all)?).with_context(|| format!("{}", path.display()))
}
