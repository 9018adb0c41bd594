//! `mutants`: plays known-bad changes against the trials that are to notice them, and keeps the table.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, bail};
use podlab_mutant::Mutant;
use podlab_runner::{
    PlayOptions,
    mutants::{self, Row, Share, Verdict},
};
use podlab_testbed::Zygote;

use super::{cluster::check_host, e2e};
use crate::out::say;

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    pub(crate) tenth: bool,
    pub(crate) scenarios: PathBuf,
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
    pub(crate) out: PathBuf,
    pub(crate) keep: Option<PathBuf>,
}

pub(crate) fn run(o: &Options) -> Result<ExitCode> {
    let chosen = choose(o)?;
    let scenarios = e2e::read(&o.scenarios, "")?;
    check_host()?;
    let zygote = Some(Arc::new(Zygote::start().context("prepare to fork")?));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let options = PlayOptions { out: o.out.clone(), seed: o.seed, ..PlayOptions::default() };
    let rows =
        runtime.block_on(mutants::judge(zygote, &scenarios, &chosen, &options, o.jobs, |row| say!("{}", line(row))))?;
    let table = mutants::table(&rows);
    std::fs::create_dir_all(&o.out).with_context(|| format!("make {}", o.out.display()))?;
    let kept = std::iter::once(o.out.join("mutants.md")).chain(o.keep.clone());
    for path in kept {
        std::fs::write(&path, &table).with_context(|| format!("write {}", path.display()))?;
    }
    let wrong: Vec<&Row> = rows.iter().filter(|r| !matches!(r.verdict, Verdict::Red { .. })).collect();
    say!("{} mutants, {} trials, {} did not turn red", chosen.len(), rows.len(), wrong.len());
    for row in &wrong {
        say!("{}", line(row));
    }
    say!("table: {}", o.out.join("mutants.md").display());
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

fn choose(o: &Options) -> Result<Vec<Mutant>> {
    if o.names.is_empty() {
        return Ok(if o.tenth { Share::Tenth } else { Share::All }.mutants());
    }
    let all: Vec<&str> = Mutant::ALL.iter().map(|m| m.name()).collect();
    let one = |n: &String| Mutant::of(n);
    match o.names.iter().find(|n| one(n).is_none()) {
        Some(unknown) => bail!("there is no mutant {unknown:?}; there are {}", all.join(", ")),
        None => Ok(o.names.iter().filter_map(one).collect()),
    }
}

fn line(row: &Row) -> String {
    let what = match &row.verdict {
        Verdict::Red { step, why } => format!("red: {step}: {}", why.lines().next().unwrap_or_default()),
        Verdict::Green => "GREEN: nothing noticed it".to_owned(),
        Verdict::Unclear(why) => format!("UNCLEAR: {}", why.lines().next().unwrap_or_default()),
    };
    format!("{}  {}  {what}", row.mutant.name(), row.trial)
}
