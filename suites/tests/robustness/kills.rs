//! SIGKILL of plane, agent and whole nodes at random moments.

use std::{collections::BTreeMap, time::Duration};

use libtest_mimic::Failed;
use podlab_api::{
    core::{ConfigMap, Pod},
    meta::ObjectMeta,
};
use podlab_client::{Client, http::HttpApi, kubeconfig};
use podlab_clock::{Clock, Rng};
use podlab_testbed::{AgentCommand, Cluster, ClusterSpec, Zygote};
use serde_json::json;

use crate::pods;

const LIMIT: Duration = Duration::from_secs(90);

pub fn run(zygote: &Zygote) -> Result<(), Failed> {
    let kills: u32 = std::env::var("PODLAB_KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(5);
    let seed: u64 = std::env::var("PODLAB_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    println!("{kills} kills, PODLAB_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let spec = ClusterSpec {
        nodes: 2,
        tied_to_runner: true,
        seed,
        ..ClusterSpec::named(&format!("kills-{}", std::process::id()))
    };
    let cluster = Cluster::boot(zygote, spec)?;
    runtime.block_on(play(&cluster, kills, &Rng::seeded(seed)))
}

async fn play(cluster: &Cluster, kills: u32, rng: &Rng) -> Result<(), Failed> {
    let clock = Clock::real();
    cluster.wait_ready(clock, LIMIT).await?;
    let client = cluster.client()?;
    let api = HttpApi::new(&kubeconfig::load(&cluster.kubeconfig())?)?;
    let stays = pods::make("stays", "Always", json!(["log", "--lines", "1000000", "--every", "0.02"]))?;
    client.namespaced("default").create(&stays).await?;
    let mut before = pods::identity(&pods::wait(&client, "stays", "Ready", LIMIT, pods::is_ready).await?);
    let home =
        client.namespaced::<Pod>("default").get("stays").await?.spec.and_then(|s| s.node_name).unwrap_or_default();
    let away = if home == "node-1" { "node-2" } else { "node-1" };
    let mut acknowledged = Vec::new();
    for n in 0..kills {
        // A short Pod in flight, writes going on, and somewhere in the middle of both the kill.
        let short = format!("short-{n}");
        client
            .namespaced("default")
            .create(&pods::make(&short, "Never", json!(["sh", "-c", "sleep 0.2; exit 7"]))?)
            .await?;
        let moment = Duration::from_millis(rng.below(400));
        let victim = n % 3;
        let mut crashed = None;
        let writes = write_until(&client, n, clock, moment);
        acknowledged.extend(writes.await);
        match victim {
            0 => {
                cluster.control("plane kill")?;
                cluster.control("plane start")?;
            }
            1 => {
                cluster.agent(&home, AgentCommand::Kill)?;
                cluster.agent(&home, AgentCommand::Start)?;
            }
            _ => {
                cluster.control(&format!("crash {away}"))?;
                crashed = Some(Crashed {
                    node: away,
                    recorded: cluster.recorded_exits(away),
                    reported: code(&client.namespaced("default").get(&short).await?),
                });
                cluster.control(&format!("boot {away}"))?;
            }
        }
        check_exit(&client, &short, crashed).await.map_err(|e| {
            Failed::from(format!(
                "kill {n} (of {}): {}",
                ["plane", "agent", "node"][victim as usize],
                e.message().unwrap_or_default()
            ))
        })?;
        let now = pods::identity(&pods::wait(&client, "stays", "Ready again", LIMIT, pods::is_ready).await?);
        if now != before {
            return Err(format!("kill {n}: the running container was {before:?} and is {now:?}").into());
        }
        before = now;
    }
    for name in &acknowledged {
        client
            .namespaced::<ConfigMap>("default")
            .get(name)
            .await
            .map_err(|e| format!("acknowledged write {name} is lost: {e}"))?;
    }
    println!("{} acknowledged writes, all there", acknowledged.len());
    lines_are_whole(&api).await
}

/// Creates ConfigMaps one after the other; returns those whose creation was acknowledged.
async fn write_until(client: &Client, round: u32, clock: Clock, moment: Duration) -> Vec<String> {
    let end = clock.now().after(moment);
    let mut done = Vec::new();
    for i in 0..10_000 {
        if clock.now() >= end {
            break;
        }
        let name = format!("w-{round}-{i}");
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        if client.namespaced("default").create(&ConfigMap { metadata, ..ConfigMap::default() }).await.is_ok() {
            done.push(name);
        }
    }
    done
}

/// What was known of exits at the moment a node had crashed.
struct Crashed<'a> {
    node: &'a str,
    /// By its init, of containers whose end the agent had not fetched.
    recorded: BTreeMap<String, i32>,
    /// By the API, of the short Pod.
    reported: Option<i32>,
}

/// Exit code of a Pod's container, once it has ended.
fn code(pod: &Pod) -> Option<i32> {
    Some(pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// The short Pod ends as Failed with its own code. Only a container that was killed together with its node has none: then
/// the runtime says 255 for what it finds on disk but not among the living, or the agent 137 for what it cannot find at
/// all. An end that init had recorded, or the API had shown, is not such a one.
async fn check_exit(client: &Client, name: &str, crashed: Option<Crashed<'_>>) -> Result<(), Failed> {
    let ended = |p: &Pod| matches!(p.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Failed" | "Succeeded"));
    let pod = pods::wait(client, name, "ended", LIMIT, ended).await?;
    let killed_with_its_node = crashed.is_some_and(|crashed| {
        let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).and_then(|c| c.first());
        let id = status.and_then(|s| s.container_id.as_deref()).and_then(|id| id.rsplit('/').next());
        let recorded = match id {
            Some(id) => crashed.recorded.contains_key(id),
            None => !crashed.recorded.is_empty(),
        };
        let there = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(crashed.node);
        there && !recorded && crashed.reported.is_none()
    });
    match code(&pod) {
        Some(7) => Ok(()),
        Some(137 | 255) if killed_with_its_node => Ok(()),
        other => Err(format!("{name} ended with {other:?}, not with its own code").into()),
    }
}

/// Numbered lines come without a gap, whoever read them at the time.
async fn lines_are_whole(api: &HttpApi) -> Result<(), Failed> {
    let path = "/api/v1/namespaces/default/pods/stays/log";
    let bytes = api.request("GET".parse().map_err(|_| "method")?, path, "application/json", Vec::new()).await?;
    let text = String::from_utf8_lossy(&bytes);
    let numbers: Vec<u64> = text.lines().filter_map(|l| l.strip_prefix("line ")?.parse().ok()).collect();
    let gap = numbers.windows(2).find(|w| w[1] != w[0] + 1);
    match gap {
        Some(w) => Err(format!("the log jumps from line {} to line {}", w[0], w[1]).into()),
        None if numbers.first() != Some(&0) => Err(format!("the log begins with {:?}", numbers.first()).into()),
        None => Ok(()),
    }
}
