//! `bench`: two builds measured start by start on clusters side by side, and a verdict. Exit codes: 0 not slower, 1 slower, 2
//! could not be measured.

mod pair;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::{out::say, verbs::cluster};

/// The words of `podlab bench`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Bench {
    /// The build to compare with: a podlab program.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) against: PathBuf,
    /// The build that is judged; this very program when absent.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) subject: Option<PathBuf>,
    /// Seconds of measuring, boots and builds apart.
    #[arg(long, default_value_t = 18.0)]
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

/// Measures and judges.
pub(crate) fn run(o: &Bench) -> Result<ExitCode> {
    cluster::check_host()?;
    let own = std::env::current_exe().context("find this program")?;
    let subject = o.subject.clone().unwrap_or(own);
    let sides = [
        pair::Side { program: o.against.clone(), up: o.up_a.clone() },
        pair::Side { program: subject, up: o.up_b.clone() },
    ];
    let runtime = cluster::runtime()?;
    let mut rounds = Vec::new();
    for n in 0..o.boots.max(1) {
        let plan = podlab_measure::Plan {
            seed: o.seed.wrapping_mul(1000).wrapping_add(u64::from(n)),
            warmup: o.warmup,
            block: o.block,
            budget: Duration::from_secs_f64(o.time / f64::from(o.boots.max(1))),
            blocks: usize::MAX,
        };
        rounds.push(pair::measure(&runtime, &sides, &plan, n)?);
    }
    std::fs::create_dir_all(&o.out).with_context(|| format!("{}", o.out.display()))?;
    keep(&o.out.join("samples.json"), &rounds)?;
    let pairs: usize = rounds.iter().flat_map(|r| &r.blocks).map(Vec::len).sum();
    let took: Duration = rounds.iter().map(|r| r.took).sum();
    say!("{pairs} pairs in {:.1} s of measuring", took.as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Writes the raw samples, in microseconds.
fn keep(path: &Path, rounds: &[pair::Round]) -> Result<()> {
    let micros = |d: &Duration| json!(d.as_nanos() as f64 / 1000.0);
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
