//! The parts of a scenario on a booted cluster: the steps within the budget, then what is done whatever came of them, each
//! part with a budget of its own. Nothing that goes wrong before keeps `finally` and `cleanup` from being done.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::Duration,
};

use podlab_api::{ResourceRef, core::Node};
use podlab_client::{Collection, ListOptions};
use podlab_clock::{Clock, Mono};
use podlab_scenario::{Scenario, Step};
use podlab_timeline::Event;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    Failure, Outcome,
    backend::Backend,
    load, monitors,
    overcommit::Overcommit,
    owed,
    play::failure,
    player::{Player, Stopped, Waits},
    scope::{Always, constants},
    steps::{Stage, StepError, chain},
    watch::Watcher,
};

/// Namespace scenarios are played in; each has a cluster of its own.
const NAMESPACE: &str = "default";
/// Longest wait for events that the last status foretells.
const OWED: Duration = Duration::from_secs(5);

/// What ends the steps before their last one.
pub(crate) struct Limits {
    /// When the budget is used up.
    pub(crate) end: Mono,
    /// The budget, for the message.
    pub(crate) budget: Duration,
    /// Somebody wants it to end.
    pub(crate) interrupt: CancellationToken,
    /// Decides when the Pods of a load arrive; 0 takes one from the kernel.
    pub(crate) seed: u64,
    /// Who looks on at a load.
    pub(crate) look: Option<tokio::sync::watch::Sender<podlab_measure::Progress>>,
    /// The file whose removal ends the pause after a failure.
    pub(crate) pause: Option<PathBuf>,
}

/// Plays a scenario on a booted cluster, whichever world it is in.
pub(crate) async fn perform(backend: &dyn Backend, path: &Path, scenario: &Scenario, limits: &Limits) -> Outcome {
    let (clock, client, recorder) = (backend.clock(), backend.client(), backend.recorder());
    let watcher = Watcher::new(&recorder);
    let vars = constants(scenario, backend.world());
    let always = Always::default();
    let broken = always.watch(&watcher, scenario, &vars);
    let stage = Stage {
        backend,
        client: client.clone(),
        watcher: watcher.clone(),
        clock,
        namespace: NAMESPACE.to_owned(),
        dir: path.parent().unwrap_or_else(|| Path::new(".")),
        remembered: BTreeMap::new(),
        vars: vars.clone(),
        down: Arc::default(),
        overcommit: Overcommit::default(),
    };
    let collection = Collection { resource: ResourceRef::of::<Node>(), namespace: None };
    match client.raw().list(&collection, &ListOptions::default()).await {
        Ok(nodes) => stage.overcommit.watch(&watcher, &nodes.items),
        Err(e) => return Outcome::Broken(failure("prepare", chain(&e))),
    }
    let mut player = Player { stage, scenario, recorder, waits: Waits::default() };
    let whole = async {
        let verdict = tokio::select! {
            biased;
            () = limits.interrupt.cancelled() => stopped("interrupt", StepError::Broken("somebody ended the run".into())),
            // The sender goes when the watch does, which has its own word.
            Ok(()) = broken => Err(violated(&always)),
            result = async {
                watcher.opened().await;
                steps(&mut player, backend, limits).await
            } => result,
            () = clock.sleep_until(limits.end) => {
                let waits = player.waits.dump(clock.now());
                let why = format!("not done within its budget of {:?}", limits.budget);
                stopped("whole scenario", StepError::Failed(format!("{why}\n{waits}")))
            }
        };
        let verdict = verdict.and_then(|()| match always.verdict(scenario) {
            Some((at, why)) => stopped(&at, StepError::Failed(why)),
            None => Ok(()),
        });
        let outcome = match verdict {
            Ok(()) => Outcome::Passed,
            Err(stopped) => judged(stopped, context(&player.stage).await),
        };
        if let (Some(file), Outcome::Failed(f)) = (&limits.pause, &outcome) {
            pause(backend, file, f, limits).await;
        }
        let outcome = afterwards(&mut player, outcome, clock).await;
        monitored(&player, outcome).await
    };
    tokio::select! {
        biased;
        outcome = whole => outcome,
        () = watcher.clone().run(client, NAMESPACE.to_owned(), clock, CancellationToken::new()) => {
            Outcome::Broken(failure("watch", "the watch ended".to_owned()))
        }
    }
}

/// Keeps the cluster as it is until somebody has looked at it.
async fn pause(backend: &dyn Backend, file: &Path, failure: &Failure, limits: &Limits) {
    let text = format!("{}: {}\n\n{}\n", failure.step, failure.why, backend.how_to_look());
    if std::fs::write(file, &text).is_err() {
        return;
    }
    // Whoever does not read it finds the same in the file.
    let _ = writeln!(std::io::stderr(), "{text}remove {} to go on", file.display());
    while file.exists() && !limits.interrupt.is_cancelled() {
        // A file has no watch that works on every file system.
        backend.clock().sleep(Duration::from_millis(200)).await;
    }
    // It is gone, or nobody waits for it any more.
    let _ = std::fs::remove_file(file);
}

/// What the monitors say at the end of a run that passed. One that failed has been cut off, with Pods on their way.
async fn monitored(player: &Player<'_>, outcome: Outcome) -> Outcome {
    if outcome != Outcome::Passed {
        return outcome;
    }
    let stage = &player.stage;
    if let Some(what) = stage.overcommit.said() {
        return Outcome::Failed(failure("monitor overcommit", what));
    }
    let down = stage.down.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match monitors::at_end(stage.backend, &stage.client, &down).await {
        Err(e) => Outcome::Broken(failure("monitors", e.to_string())),
        Ok(found) => match found.first() {
            None => Outcome::Passed,
            Some(first) => {
                let all: Vec<String> = found.iter().map(|b| format!("{}: {}", b.monitor, b.what)).collect();
                let context = format!("{}\n{}", all.join("\n"), context(stage).await);
                let (step, why) = (format!("monitor {}", first.monitor), first.what.clone());
                Outcome::Failed(Failure { step, why, context })
            }
        },
    }
}

fn stopped(at: &str, error: StepError) -> Result<(), Stopped> {
    Err(Stopped { at: at.to_owned(), error })
}

fn violated(always: &Always) -> Stopped {
    let (at, why) = always.broken().unwrap_or_default();
    Stopped { at, error: StepError::Failed(why) }
}

fn judged(stopped: Stopped, context: String) -> Outcome {
    match stopped.error {
        StepError::Failed(why) | StepError::Answered { text: why, .. } => {
            Outcome::Failed(Failure { step: stopped.at, why, context })
        }
        StepError::Broken(why) => Outcome::Broken(Failure { step: stopped.at, why, context }),
    }
}

/// `given`, `when` and `then`, and the time in which what they set in motion comes to rest.
async fn steps(player: &mut Player<'_>, backend: &dyn Backend, limits: &Limits) -> Result<(), Stopped> {
    let scenario = player.scenario;
    player.list("given".to_owned(), &scenario.given).await?;
    player.list("when".to_owned(), &scenario.when).await?;
    load::play(player, limits.seed, limits.look.as_ref()).await?;
    player.list("then".to_owned(), &scenario.then).await?;
    let clock = player.stage.clock;
    if let Some(snapshot) = &scenario.snapshot {
        let pods = snapshot.timeline.clone();
        // An event that never comes shows in the comparison.
        let _ = clock.timeout(OWED, player.stage.watcher.first(move |seen| owed::all_told(seen, &pods))).await;
    }
    clock.sleep(backend.settle()).await;
    Ok(())
}

/// `catch`, `finally` and `cleanup`.
async fn afterwards(player: &mut Player<'_>, mut outcome: Outcome, clock: Clock) -> Outcome {
    let scenario = player.scenario;
    let budgets = &scenario.budgets;
    if outcome != Outcome::Passed {
        // It may say more of the failure; it is not another one.
        if let Err(s) = part(player, "catch", &scenario.catch, budgets.catch.0, clock).await {
            player
                .recorder
                .record(None, Event::Run(json!({"step": s.at, "state": "ignored", "why": s.error.to_string()})));
        }
    }
    if let Err(s) = part(player, "finally", &scenario.finally, budgets.finally.0, clock).await
        && outcome == Outcome::Passed
    {
        outcome = judged(s, context(&player.stage).await);
    }
    if let Err(s) = part(player, "cleanup", &scenario.cleanup, budgets.cleanup.0, clock).await
        && outcome == Outcome::Passed
    {
        let context = context(&player.stage).await;
        outcome = Outcome::Broken(Failure { step: s.at, why: s.error.to_string(), context });
    }
    outcome
}

/// One part within its own budget. Every step of it is tried, also after one that failed; the first failure counts.
async fn part(
    player: &mut Player<'_>,
    name: &str,
    steps: &[Step],
    budget: Duration,
    clock: Clock,
) -> Result<(), Stopped> {
    let mut first = Ok(());
    let all = async {
        for (i, step) in steps.iter().enumerate() {
            let done = player.one(format!("{name}[{}]", i + 1), step).await;
            if first.is_ok() {
                first = done;
            }
        }
    };
    if clock.timeout(budget, all).await.is_none() {
        let waits = player.waits.dump(clock.now());
        return stopped(name, StepError::Failed(format!("not done within its budget of {budget:?}\n{waits}")));
    }
    first
}

/// What one wants to see when a step failed: every Pod's fields, its events, and the end of its logs.
async fn context(stage: &Stage<'_>) -> String {
    let mut out = String::new();
    let (pods, events) = {
        let seen = stage.watcher.look();
        (seen.pods.values().cloned().collect::<Vec<_>>(), seen.events.values().cloned().collect::<Vec<_>>())
    };
    for pod in &pods {
        out.push_str(&format!("Pod {}\n", pod.name()));
        for (name, value) in crate::summary::fields(pod) {
            out.push_str(&format!("  {name}: {value}\n"));
        }
        for e in events.iter().filter(|e| e.str_at(&["involvedObject", "name"]) == Some(pod.name())) {
            let text = |key: &str| e.str_at(&[key]).unwrap_or_default();
            let (kind, reason, n) = (text("type"), text("reason"), crate::watch::count(e));
            out.push_str(&format!("  event {kind} {reason} ×{n}: {}\n", text("message")));
        }
        for status in crate::summary::container_statuses(pod) {
            let name = status.get("name").and_then(|n| n.as_str()).unwrap_or_default();
            if let Ok(text) = stage.backend.logs(&stage.namespace, pod.name(), Some(name), false).await {
                let lines: Vec<&str> = text.lines().collect();
                for line in &lines[lines.len().saturating_sub(10)..] {
                    out.push_str(&format!("  log {name}: {line}\n"));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
