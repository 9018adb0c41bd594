//! `bench`: two builds measured start by start on clusters side by side, and a verdict. Exit codes: 0 not slower, 1 slower, 2
//! could not be measured.

mod check;
mod history;
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
use podlab_stats::{Comparison, Design, Effect, Verdict, confirmed, hints};
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
    /// Seconds of measuring, boots and builds apart. What hints at a change is measured again for as long.
    #[arg(long, default_value_t = 9.0)]
    pub(crate) time: f64,
    /// How many pairs of fresh clusters the time is spread over.
    #[arg(long, default_value_t = 6)]
    pub(crate) boots: u32,
    /// Pairs of starts that are drawn together when the interval is made.
    #[arg(long, default_value_t = 5)]
    pub(crate) block: usize,
    /// Pairs of starts left out after each boot.
    #[arg(long, default_value_t = 10)]
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
    /// With `--self-check`: how many comparisons with a delay, half of N when absent.
    #[arg(long, value_name = "N", requires = "self_check")]
    pub(crate) planted: Option<u32>,
    /// Folder for samples and report.
    #[arg(long, default_value = "target/reports/bench")]
    pub(crate) out: PathBuf,
    /// Add the judged side's figures to the history of this machine's class in this folder, and say where they changed.
    #[arg(long, value_name = "DIR", conflicts_with = "self_check")]
    pub(crate) history: Option<PathBuf>,
    /// More words for `up` of the build compared with; may be repeated.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) up_a: Vec<String>,
    /// More words for `up` of the judged build; may be repeated.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub(crate) up_b: Vec<String>,
}

/// Pods that stand on each cluster before they are deleted: fewer than the 110 a node takes.
const STANDING: usize = 100;

/// What a comparison came to.
pub(crate) struct Outcome {
    /// The first look.
    first: Comparison,
    /// Both looks together, when the first hinted at a change.
    both: Option<Comparison>,
    verdict: Verdict,
    took: Duration,
}

impl Outcome {
    /// All that was measured, judged together.
    fn all(&self) -> &Comparison {
        self.both.as_ref().unwrap_or(&self.first)
    }
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
    if done.both.is_some() {
        say!("looks slower in {}; measured again, both looks together:\n", hints(&done.first, &design).join(", "));
    }
    say!("{}", judge::table(done.all()));
    let (load_after, stolen_after) = machine::load();
    let facts = machine::facts();
    let words: Vec<String> = facts.iter().map(|(k, v)| format!("{k} {v}")).collect();
    say!("{}; load {load} → {load_after}, stolen {} ticks", words.join(", "), stolen_after.saturating_sub(stolen));
    let (pairs, seconds) = (done.all().pairs, done.took.as_secs_f64());
    say!("{pairs} pairs in {seconds:.1} s of measuring: {}", judge::sentence(&done.verdict, &design));
    let finds = finds(&done, &design);
    if finds.0.is_infinite() || finds.1.is_infinite() {
        say!("too little was measured to say which change would have been found; give it more --time");
    } else {
        say!(
            "found nineteen times in twenty: a change of {:.1} % of the total within one phase, or one of {:.1} % spread over many",
            finds.0 * 100.0,
            finds.1 * 100.0
        );
    }
    let report = json!({
        "version": 2, "finds": {"inOnePhase": finds.0, "inTheTotal": finds.1}, "against": against, "subject": o.subject, "seed": o.seed, "minEffect": design.min_effect,
        "machine": facts, "machineClass": machine::class(), "load": [load, load_after], "seconds": seconds,
        "first": judge::to_json(&done.first), "both": done.both.as_ref().map(judge::to_json),
        "slower": done.verdict != Verdict::NotSlower, "phase": done.verdict.phase(),
    });
    let path = o.out.join("comparison.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&report)?).with_context(|| format!("{}", path.display()))?;
    judge::export(&o.out, done.all())?;
    if let Some(dir) = &o.history {
        history::keep(dir, o.subject.as_deref(), done.all(), design.min_effect)?;
    }
    Ok(if done.verdict == Verdict::NotSlower { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Bench {
    fn design(&self) -> Design {
        Design { seed: self.seed, min_effect: self.min_effect / 100.0, ..Design::default() }
    }
}

/// The smallest changes that would be found: within the worst of the phases, and of the total. When the first look was
/// enough, as both together would have found them.
fn finds(done: &Outcome, design: &Design) -> (f64, f64) {
    let c = done.all();
    let halves = if done.both.is_some() { 1.0 } else { 2.0 };
    let one = |e: &Effect| {
        Effect { error: e.error / f64::sqrt(halves), ..e.clone() }.finds(design.min_effect, c.phases.len() + 1, design)
    };
    (c.phases.iter().map(one).reduce(f64::max).unwrap_or_else(|| one(&c.total)), one(&c.total))
}

/// Measures, and when that hints at a change, measures again with another seed.
pub(crate) fn measure(o: &Bench, sides: &[pair::Side; 2], design: &Design) -> Result<Outcome> {
    const NOTHING: &str = "nothing was measured; give it more --time";
    let mut rounds = once(o, sides, 0)?;
    let first = judge::judge(&rounds, design).context(NOTHING)?;
    let took = |rounds: &[pair::Round]| rounds.iter().map(|r| r.took).sum();
    if hints(&first, design).is_empty() {
        return Ok(Outcome { first, both: None, verdict: Verdict::NotSlower, took: took(&rounds) });
    }
    let more = once(o, sides, 1)?;
    let again =
        judge::judge(&more, &Design { seed: design.seed.wrapping_add(1), ..design.clone() }).context(NOTHING)?;
    rounds.extend(more);
    let both = judge::judge(&rounds, design).context(NOTHING)?;
    let verdict = confirmed(&again, &both, design);
    Ok(Outcome { first, both: Some(both), verdict, took: took(&rounds) })
}

/// One look, on fresh clusters.
fn once(o: &Bench, sides: &[pair::Side; 2], attempt: u64) -> Result<Vec<pair::Round>> {
    let runtime = cluster::runtime()?;
    let boots = o.boots.max(1);
    let mut rounds = Vec::new();
    for n in 0..boots {
        let plan = podlab_measure::Plan {
            seed: o.seed.wrapping_mul(1000).wrapping_add(attempt * 100 + u64::from(n)),
            warmup: o.warmup,
            block: o.block,
            standing: STANDING,
            budget: Duration::from_secs_f64((o.time / f64::from(boots)).max(0.0)),
            blocks: usize::MAX,
        };
        rounds.push(pair::measure(&runtime, sides, &plan, n)?);
    }
    keep(&o.out.join(format!("samples-{}.json", attempt + 1)), &rounds)?;
    Ok(rounds)
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
