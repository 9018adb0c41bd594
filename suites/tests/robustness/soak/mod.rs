//! A mixed load of short Pods while agents and plane are killed at random: all of them come to their end as if nothing had
//! happened, and leave nothing. Agent and CRI bridge are one process, so killing the one kills the other.
//!
//! `PODLAB_SOAK` is the number of Pods (50 when absent, 500 nightly); they come over 1.2 s each, so 500 are ten minutes.

mod kinds;
mod leaks;
mod life;
mod watcher;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use libtest_mimic::Failed;
use podlab_api::core::ConfigMap;
use podlab_client::Client;
use podlab_clock::{Clock, Rng};
use podlab_testbed::{AgentCommand, Cluster, ClusterSpec, Zygote};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::pods;

/// Kills of each node's agent so far.
#[derive(Debug, Default)]
pub(crate) struct Kills([AtomicUsize; 2]);

impl Kills {
    fn of(&self, node: &str) -> &AtomicUsize {
        &self.0[usize::from(node == "node-2")]
    }

    /// How many there were on a node.
    fn count(&self, node: &str) -> i32 {
        i32::try_from(self.of(node).load(Ordering::Relaxed)).unwrap_or(i32::MAX)
    }
}

/// Time between two Pods, on average.
const PACE: Duration = Duration::from_millis(1200);
/// How long a node may take to tidy up after the last Pod.
const TIDY: Duration = Duration::from_secs(90);

pub fn run(zygote: &Zygote) -> Result<(), Failed> {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (count, seed) = (number("PODLAB_SOAK", 50), number("PODLAB_SEED", 7));
    println!("{count} Pods, PODLAB_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let spec =
        ClusterSpec { nodes: 2, tied_to_runner: true, ..ClusterSpec::named(&format!("soak-{}", std::process::id())) };
    let cluster = Cluster::boot(zygote, spec)?;
    runtime.block_on(play(&cluster, usize::try_from(count).unwrap_or(usize::MAX), &Rng::seeded(seed)))
}

async fn play(cluster: &Cluster, count: usize, rng: &Rng) -> Result<(), Failed> {
    let clock = Clock::real();
    cluster.wait_ready(clock, Duration::from_secs(60)).await?;
    let client = cluster.client()?;
    let shared: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "shared"}, "data": {"key": "value"}}))?;
    client.namespaced("default").create(&shared).await?;

    leaks::sees(cluster, &client).await?;
    let (watching, running) = (CancellationToken::new(), CancellationToken::new());
    let mut watcher = JoinSet::new();
    watcher.spawn(watcher::run(client.clone(), clock, watching.clone()));
    let dice = rng.fork("kills");
    let counted = Arc::new(Kills::default());
    let load = load(&client, clock, count, rng, &running, &counted);
    let (failures, kills) = tokio::join!(load, kill(cluster, clock, &dice, &running, &counted));
    let (mut failures, kills) = (failures, kills?);
    println!("kills: {kills:?}");
    watching.cancel();
    while let Some(seen) = watcher.join_next().await {
        failures.extend(seen?);
    }
    cluster.wait_ready(clock, Duration::from_secs(60)).await?;
    if !failures.is_empty() {
        keep_logs(cluster);
    }
    if failures.is_empty() {
        failures = leaks::settle(cluster, &client, clock, TIDY).await?;
    } else {
        // A Pod that hangs holds its things; listing them helps, demanding them gone does not.
        failures.extend(leaks::find(cluster, &client).await?.into_iter().take(40).map(|l| format!("still there: {l}")));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Logs and the run log outlive the cluster when something went wrong.
fn keep_logs(cluster: &Cluster) {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/reports/soak");
    let _ = std::fs::create_dir_all(&to);
    let parts = ["plane".to_owned(), "capsule".to_owned()].into_iter().chain(cluster.spec().node_names());
    for part in parts {
        let _ = std::fs::copy(cluster.log_path(&part), to.join(format!("{part}.log")));
    }
    let _ = std::fs::copy(cluster.run_log(), to.join("run.jsonl"));
    println!("logs: {}", to.display());
}

/// Lets the Pods live, each at its moment; what went wrong.
async fn load(
    client: &Client,
    clock: Clock,
    count: usize,
    rng: &Rng,
    running: &CancellationToken,
    kills: &Arc<Kills>,
) -> Vec<String> {
    let mut lives = JoinSet::new();
    let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
    let start = clock.now();
    let done = Arc::new(AtomicUsize::new(0));
    for n in 0..count {
        let jitter = Duration::from_millis(rng.below(u64::try_from(PACE.as_millis()).unwrap_or(1000)));
        clock.sleep_until(start.after(PACE * u32::try_from(n).unwrap_or(u32::MAX) + jitter)).await;
        let plan = kinds::draw(n, &rng.fork(&format!("pod-{n}")));
        *kinds.entry(plan.kind).or_default() += 1;
        let (client, ended, kills) = (client.clone(), done.clone(), kills.clone());
        lives.spawn(async move {
            let lived = life::live(&client, clock, &plan, &kills).await;
            ended.fetch_add(1, Ordering::Relaxed);
            match lived {
                Ok(()) => Ok(()),
                Err(e) => {
                    Err(format!("{} ({}): {e}\n{}", plan.name, plan.kind, life::events(&client, &plan.name).await))
                }
            }
        });
        if n > 0 && n % 50 == 0 {
            println!("{n} Pods made, {} at their end", done.load(Ordering::Relaxed));
        }
    }
    let mut failures = Vec::new();
    while let Some(lived) = lives.join_next().await {
        match lived {
            Ok(Err(e)) => failures.push(e),
            Err(e) => failures.push(e.to_string()),
            Ok(Ok(())) => {}
        }
    }
    running.cancel();
    println!("kinds: {kinds:?}");
    failures
}

/// Kills somebody every few seconds while the load lasts, and starts it again after a moment. Returns who was killed how often.
async fn kill(
    cluster: &Cluster,
    clock: Clock,
    rng: &Rng,
    running: &CancellationToken,
    counted: &Kills,
) -> Result<BTreeMap<&'static str, u32>, Failed> {
    let mut kills = BTreeMap::new();
    loop {
        let pause = Duration::from_millis(2000 + rng.below(12_000));
        if running.run_until_cancelled(clock.sleep(pause)).await.is_none() {
            return Ok(kills);
        }
        let victim = ["plane", "node-1", "node-2"][usize::try_from(rng.below(3)).unwrap_or(0)];
        *kills.entry(victim).or_default() += 1;
        let away = Duration::from_millis(rng.below(2500));
        if victim == "plane" {
            cluster.control("plane kill")?;
            clock.sleep(away).await;
            cluster.control("plane start")?;
        } else {
            counted.of(victim).fetch_add(1, Ordering::Relaxed);
            cluster.agent(victim, AgentCommand::Kill)?;
            clock.sleep(away).await;
            cluster.agent(victim, AgentCommand::Start)?;
        }
    }
}

/// Repeats a call while the API server is away. A reply that was lost shows as the effect being there already.
async fn persist<T, F>(clock: Clock, mut call: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, podlab_api::ApiError>>,
{
    let end = clock.now().after(pods::PATIENCE);
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(e) if e.code < 500 || clock.now() > end => return Err(e.to_string()),
            Err(_) => clock.sleep(Duration::from_millis(100)).await,
        }
    }
}
