//! Two figures: from nothing to the first Pod Ready, and create to Ready of one more Pod on a warm cluster, serial, through
//! API, scheduler, CRI socket and a real network. Criterion keeps the baselines; percentiles and phases come from the run
//! log, because criterion forgets single samples.

use std::{collections::BTreeMap, time::Duration};

use criterion::{Criterion, SamplingMode};
use futures::StreamExt;
use podlab_api::{core::Pod, meta::ObjectMeta};
use podlab_client::{Client, DeleteOptions, WatchOptions, WatchType};
use podlab_clock::Clock;
use podlab_stats::Samples;
use podlab_testbed::{Cluster, ClusterSpec, Zygote};
use podlab_timeline::{
    Event, Lane, PodKey, Recorder, Stage,
    fold::{fold, read_log},
};
use serde_json::json;
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(30);

fn pod(name: &str) -> Pod {
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "c", "image": "registry.test/testimage:1", "command": ["pause"], "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]});
    Pod {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        spec: serde_json::from_value(spec).ok(),
        status: None,
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Creates a Pod and waits, by watch, until it is Ready; then deletes it and waits until it is gone, off the clock.
async fn one(client: &Client, recorder: &Recorder, clock: Clock, name: &str) -> Duration {
    let pods = client.namespaced::<Pod>("default");
    let list = pods.list(&podlab_client::ListOptions::default()).await.expect("the API answers");
    let options = WatchOptions { resource_version: Some(list.1), ..WatchOptions::default() };
    let mut watch = pods.watch(&options).await.expect("the API answers").boxed();
    let start = clock.now();
    pods.create(&pod(name)).await.expect("the Pod is accepted");
    let ready = async {
        while let Some(Ok(event)) = watch.next().await {
            if event.object.metadata.name.as_deref() == Some(name) && is_ready(&event.object) {
                let uid = event.object.metadata.uid.unwrap_or_default();
                recorder.record(
                    Some(PodKey { namespace: "default".into(), name: name.into(), uid }),
                    Event::Stage(Stage::Seen),
                );
                return;
            }
        }
    };
    if clock.timeout(LIMIT, ready).await.is_none() {
        let pod = pods.get(name).await.map(|p| serde_json::to_string(&p.status).unwrap_or_default());
        panic!("{name} is not Ready within {LIMIT:?}: {pod:?}");
    }
    let took = clock.now().since(start);
    // An orderly deletion: one by force is gone from the API while its containers are still being taken down, and that
    // work would run beside the next Pod's start.
    pods.delete(name, &DeleteOptions::default()).await.expect("the Pod can be deleted");
    let gone = async {
        while let Some(Ok(event)) = watch.next().await {
            if event.kind == WatchType::Deleted && event.object.metadata.name.as_deref() == Some(name) {
                return;
            }
        }
    };
    clock.timeout(LIMIT, gone).await.expect("the Pod goes");
    took
}

fn boot(zygote: &Zygote, runtime: &Runtime, n: u64) -> (Cluster, Client, Recorder) {
    let spec = ClusterSpec { tied_to_runner: true, ..ClusterSpec::named(&format!("bench-{}-{n}", std::process::id())) };
    let cluster = Cluster::boot(zygote, spec).expect("a cluster boots");
    runtime.block_on(cluster.wait_ready(Clock::real(), LIMIT)).expect("the cluster becomes ready");
    let client = cluster.client().expect("a kubeconfig was written");
    let recorder = Recorder::to_file(&cluster.run_log(), Clock::real()).expect("the log opens").lane(Lane::Watch);
    (cluster, client, recorder)
}

fn say(what: &str, samples: Vec<Duration>) {
    let s = Samples::new(samples);
    let ms = |d: Option<Duration>| d.map_or_else(|| "-".to_owned(), |d| format!("{:.2} ms", d.as_secs_f64() * 1000.0));
    println!(
        "{what}: n {} min {} lower-half mean {} p50 {} p90 {} p99 {} max {}",
        s.len(),
        ms(s.min()),
        ms(s.lower_half_mean()),
        ms(s.percentile(50.0)),
        ms(s.quotable(90.0)),
        ms(s.quotable(99.0)),
        ms(s.max())
    );
}

/// Median of each phase over all Pods of a log, and how much of the total they explain.
fn say_phases(cluster: &Cluster) {
    let entries = read_log(&cluster.run_log()).expect("the log is whole");
    let mut phases: BTreeMap<usize, (&'static str, Vec<Duration>)> = BTreeMap::new();
    let (mut total, mut unattributed) = (Vec::new(), Vec::new());
    for timeline in fold(&entries).values() {
        let Some(p) = timeline.phases().filter(|p| p.complete) else { continue };
        for (i, phase) in p.phases.iter().enumerate() {
            phases.entry(i).or_insert_with(|| (phase.name, Vec::new())).1.push(phase.duration);
        }
        total.push(p.total);
        unattributed.push(p.unattributed);
    }
    let sum = |d: &[Duration]| d.iter().sum::<Duration>().as_secs_f64();
    let explained = 100.0 * (1.0 - sum(&unattributed) / sum(&total).max(1e-9));
    for (name, samples) in phases.into_values() {
        say(&format!("  phase {name:<10}"), samples);
    }
    println!("  phases explain {explained:.1} % of create to Ready");
}

fn main() {
    let zygote = podlab_testbed::early_main().expect("the zygote starts");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio starts");
    let clock = Clock::real();
    let mut criterion = Criterion::default().configure_from_args();

    let mut group = criterion.benchmark_group("pod_startup");
    group.sampling_mode(SamplingMode::Flat).sample_size(10).measurement_time(Duration::from_secs(10));
    let mut boots = Vec::new();
    let mut n = 0;
    group.bench_function("boot_to_first_ready", |b| {
        b.iter_custom(|iterations| {
            let mut sum = Duration::ZERO;
            for _ in 0..iterations {
                n += 1;
                let start = clock.now();
                let (cluster, client, recorder) = boot(&zygote, &runtime, n);
                let booted = clock.now().since(start);
                // Boot ends when every node is Ready; the Pod's own way is measured inside, its deletion is not.
                let took = booted + runtime.block_on(one(&client, &recorder, clock, "first"));
                boots.push(took);
                sum += took;
                drop(cluster);
            }
            sum
        });
    });
    let (cluster, client, recorder) = boot(&zygote, &runtime, 0);
    runtime.block_on(one(&client, &recorder, clock, "warm-up"));
    let mut warm = Vec::new();
    // Long enough for the three hundred Pods without which no p99 is quoted.
    group.sample_size(50).measurement_time(Duration::from_secs(30)).bench_function("create_to_ready_warm", |b| {
        b.iter_custom(|iterations| {
            let mut sum = Duration::ZERO;
            for _ in 0..iterations {
                n += 1;
                let took = runtime.block_on(one(&client, &recorder, clock, &format!("p{n}")));
                warm.push(took);
                sum += took;
            }
            sum
        });
    });
    group.finish();
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default().trim().to_owned();
    println!(
        "kernel {} rcu_expedited {} load {}; overlay upper on tmpfs, no netns pool, durable batch",
        read("/proc/sys/kernel/osrelease"),
        read("/sys/kernel/rcu_expedited"),
        read("/proc/loadavg")
    );
    say("boot to first Ready ", boots);
    say("create to Ready, warm, serial", warm);
    say_phases(&cluster);
    criterion.final_summary();
}
