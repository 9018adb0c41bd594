//! `parity`: one scenario in two places, and the difference of the two timelines.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use podlab_runner::{
    Outcome, PlayOptions, Trial, parity,
    place::{Place, virtual_capabilities},
    session::{self, SESSION_FILE, Session},
    suite::{Course, Ready, World, play_all},
};
use podlab_testbed::Zygote;

use super::{cluster::check_host, e2e, place};
use crate::{
    cli::{Backend, Parity, Side},
    out::{complain, say},
};

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Virtual => "virtual",
            Self::Container => "container",
            Self::Kubeconfig => "kubeconfig",
            Self::Kind => "kind",
        }
    }

    /// Whether calls inside the nodes are seen there.
    fn sees_calls(self) -> bool {
        !matches!(self, Self::Kubeconfig | Self::Kind)
    }

    fn backend(self) -> Backend {
        match self {
            Self::Embedded | Self::Virtual => Backend::Embedded,
            Self::Container => Backend::Container,
            Self::Kubeconfig => Backend::Kubeconfig,
            Self::Kind => Backend::Kind,
        }
    }
}

pub(crate) fn run(o: &Parity) -> Result<ExitCode> {
    if !o.from.is_empty() {
        return recorded(o);
    }
    let [a, b] = o.on[..] else { bail!("parity compares two places: give --on twice") };
    let wanted = o.scenario.clone().unwrap_or_default();
    let all = e2e::read(&o.scenarios, &wanted)?;
    let found: Vec<&Ready> = match all.iter().filter(|r| r.name == wanted).collect::<Vec<_>>() {
        exact if !exact.is_empty() => exact,
        _ => all.iter().collect(),
    };
    let [ready] = found[..] else {
        let names: Vec<&str> = found.iter().map(|r| r.name.as_str()).collect();
        bail!("{wanted:?} is the name of {} scenarios: {}", names.len(), names.join(", "));
    };
    let mut zygote = None;
    if o.on.contains(&Side::Embedded) {
        check_host()?;
        zygote = Some(Arc::new(Zygote::start().context("prepare to fork")?));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let api_only = o.api_only || !(a.sees_calls() && b.sees_calls());
    let mut texts = Vec::new();
    for (n, side) in [a, b].into_iter().enumerate() {
        // Both sides may be of one kind: two runs of one place must not share a folder.
        let out = o.out.join(format!("{}-{}", n + 1, side.name()));
        let trial = runtime.block_on(play(side, ready, &zygote, o, &out))?;
        if let Some(why) = trouble(&trial.outcome) {
            complain!("{} on {}: {why}", ready.name, side.name());
            return Ok(ExitCode::from(if matches!(trial.outcome, Outcome::Failed(_)) { 1 } else { 2 }));
        }
        let entries = session::entries(&trial.log).with_context(|| format!("read {}", trial.log.display()))?;
        let text = parity::timeline(&entries, api_only);
        let file = out.join("timeline.txt");
        std::fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
        texts.push(text);
    }
    let what = if api_only { "what a watcher of the API saw" } else { "the whole timelines" };
    match parity::diff(&texts[0], &texts[1]) {
        None => {
            say!("{}: {what} on {} and on {} is the same", ready.name, a.name(), b.name());
            Ok(ExitCode::SUCCESS)
        }
        Some(diff) => {
            say!("{}: {what} differs\n- {}\n+ {}\n\n{diff}", ready.name, a.name(), b.name());
            Ok(ExitCode::from(1))
        }
    }
}

/// Compares two runs that were played before.
fn recorded(o: &Parity) -> Result<ExitCode> {
    let [a, b] = &o.from[..] else { bail!("parity compares two runs: give --from twice") };
    let read = |dir: &PathBuf| {
        let log = dir.join(SESSION_FILE);
        session::read(&log).with_context(|| format!("read {}", log.display()))
    };
    let (first, second) = (read(a)?, read(b)?);
    let foreign = |s: &Session| s.environment.get("backend").is_some_and(|b| b == "kubeconfig" || b == "kind");
    let api_only = o.api_only || foreign(&first) || foreign(&second);
    let passed = |s: &Session| -> BTreeMap<String, PathBuf> {
        let wanted = |name: &str| o.scenario.as_ref().is_none_or(|part| name.contains(part.as_str()));
        let played = s.trials.iter().filter(|t| t.ended.verdict == "passed" && wanted(&t.trial));
        played.map(|t| (t.trial.clone(), t.log.clone())).collect()
    };
    let (first, second) = (passed(&first), passed(&second));
    let (mut same, mut different) = (0, 0);
    for (name, log) in &first {
        let Some(other) = second.get(name) else { continue };
        let text = |log: &PathBuf| -> Result<String> {
            let entries = session::entries(log).with_context(|| format!("read {}", log.display()))?;
            Ok(parity::timeline(&entries, api_only))
        };
        match parity::diff(&text(log)?, &text(other)?) {
            None => {
                same += 1;
                say!("same     {name}");
            }
            Some(diff) => {
                different += 1;
                say!("differs  {name}");
                diff.lines().for_each(|line| say!("    {line}"));
            }
        }
    }
    let both = same + different;
    if both == 0 {
        bail!("no scenario passed in both runs");
    }
    let what = if api_only { "what a watcher of the API saw" } else { "the whole timelines" };
    let (only_a, only_b) = (first.len() - both, second.len() - both);
    say!("{both} scenarios passed in both: {what} is the same in {same} and differs in {different}");
    say!("passed only in {}: {only_a}; only in {}: {only_b}", a.display(), b.display());
    Ok(ExitCode::from(u8::from(different > 0)))
}

async fn play(side: Side, ready: &Ready, zygote: &Option<Arc<Zygote>>, o: &Parity, out: &Path) -> Result<Trial> {
    let world = if side == Side::Virtual { World::Virtual } else { World::Real };
    let place = match side {
        Side::Virtual => {
            if let Some(why) = podlab_runner::place::lacking(&ready.scenario, &virtual_capabilities(), "virtual") {
                bail!("{}: {why}", ready.name);
            }
            Place::Embedded
        }
        _ => place::connect(side.backend(), &o.cluster, out).await?,
    };
    let options = PlayOptions { out: out.to_owned(), seed: o.seed, ..PlayOptions::default() };
    let course = Course { options, jobs: 1, place: place.clone(), ..Course::default() };
    let mut played = None;
    play_all(zygote.clone(), vec![(ready.clone(), world)], &course, |_, trial| {
        played = trial.cloned().or(played.take())
    })
    .await;
    place.end().await;
    played.context("it was not played")
}

fn trouble(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Passed => None,
        Outcome::Failed(f) => Some(format!("failed at {}: {}", f.step, f.why)),
        Outcome::Broken(f) => Some(format!("broken at {}: {}", f.step, f.why)),
        Outcome::Invalid(why) => Some(format!("invalid: {why}")),
        Outcome::Skipped(why) => Some(format!("skipped: {why}")),
    }
}
