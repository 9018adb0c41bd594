//! What a Pod's life takes beyond its plain start: with a cold image, a claim, init containers; ten and fifty at once; its
//! end; a restart of its container; one replaced among others.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use podlab_api::Object;
use podlab_benches::{IMAGE, Lab, is_ready, pod};
use podlab_testbed::Zygote;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A case: its name, what is set over a Pod's spec, and when the Pod is where it should be.
type Case = (&'static str, Value, fn(&Object) -> bool);

/// Sums what is measured once for each iteration; `i` counts on over all of them.
fn sum(iterations: u64, count: &mut u64, mut one: impl FnMut(u64) -> Duration) -> Duration {
    (0..iterations)
        .map(|_| {
            *count += 1;
            one(*count)
        })
        .sum()
}

fn restarted(pod: &Object) -> bool {
    let statuses = pod.at(&["status", "containerStatuses"]).and_then(Value::as_array);
    let again = statuses.into_iter().flatten().any(|s| s.get("restartCount").and_then(Value::as_u64) == Some(1));
    again && is_ready(pod)
}

fn cold(criterion: &mut Criterion, zygote: &Zygote, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("create_to_ready");
    group.sampling_mode(SamplingMode::Flat).sample_size(10).measurement_time(Duration::from_secs(5));
    let mut n = 0;
    group.bench_function("cold_image", |b| {
        b.iter_custom(|iterations| {
            sum(iterations, &mut n, |i| {
                // A node that has just booted holds no image; its boot is not on the clock.
                let mut lab = Lab::new(zygote, runtime, &format!("bench-cold-{i}"));
                runtime.block_on(lab.create(vec![pod("cold", json!({}))], is_ready))
            })
        });
    });
    group.finish();
}

fn starts(criterion: &mut Criterion, lab: &mut Lab, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("create_to_ready");
    group.sampling_mode(SamplingMode::Flat).sample_size(20).measurement_time(Duration::from_secs(5));
    let init = |name: &str| json!({"name": name, "image": IMAGE, "command": ["true"]});
    let twice = json!({"containers": [{"name": "c", "image": IMAGE, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "command": ["sh", "-c", "test -f /v/again && exec sleep 1000; touch /v/again"]}], "volumes": [{"name": "v", "emptyDir": {}}]});
    let cases: [Case; 2] = [
        ("with_two_init_containers", json!({"initContainers": [init("one"), init("two")]}), is_ready),
        ("after_one_restart", twice, restarted),
    ];
    let mut n = 0;
    for (case, spec, done) in cases {
        group.bench_function(case, |b| {
            b.iter_custom(|iterations| {
                sum(iterations, &mut n, |i| {
                    let name = format!("s{i}");
                    let took = runtime.block_on(lab.create(vec![pod(&name, spec.clone())], done));
                    runtime.block_on(lab.delete(&[name]));
                    took
                })
            });
        });
    }
    group.bench_function("with_a_claim", |b| {
        b.iter_custom(|iterations| {
            sum(iterations, &mut n, |i| {
                let name = format!("s{i}");
                let spec = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
                    "containers": [{"name": "c", "image": IMAGE, "command": ["pause"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]});
                let begin = lab.clock.now();
                runtime.block_on(lab.claim(&name)).expect("the claim is accepted");
                runtime.block_on(lab.create(vec![pod(&name, spec)], is_ready));
                let took = lab.clock.now().since(begin);
                runtime.block_on(lab.delete(&[name]));
                took
            })
        });
    });
    group.finish();
}

fn batches(criterion: &mut Criterion, lab: &mut Lab, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("at_once");
    group.sampling_mode(SamplingMode::Flat).sample_size(10).measurement_time(Duration::from_secs(8));
    let mut n = 0;
    for size in [1u64, 10, 50] {
        group.throughput(Throughput::Elements(size));
        let names = |i: u64| (0..size).map(|k| format!("b{i}-{k}")).collect::<Vec<_>>();
        let pods = |names: &[String]| names.iter().map(|name| pod(name, json!({}))).collect::<Vec<_>>();
        group.bench_function(BenchmarkId::new("create_to_ready", size), |b| {
            b.iter_custom(|iterations| {
                sum(iterations, &mut n, |i| {
                    let all = names(i);
                    let took = runtime.block_on(lab.create(pods(&all), is_ready));
                    runtime.block_on(lab.delete(&all));
                    took
                })
            });
        });
        group.bench_function(BenchmarkId::new("delete_to_gone", size), |b| {
            b.iter_custom(|iterations| {
                sum(iterations, &mut n, |i| {
                    let all = names(i);
                    runtime.block_on(lab.create(pods(&all), is_ready));
                    runtime.block_on(lab.delete(&all))
                })
            });
        });
    }
    group.finish();
}

/// One of twenty Pods goes and another comes.
fn churn(criterion: &mut Criterion, lab: &mut Lab, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("churn");
    group.sampling_mode(SamplingMode::Flat).sample_size(20).measurement_time(Duration::from_secs(5));
    let mut standing: std::collections::VecDeque<String> = (0..20).map(|k| format!("c-{k}")).collect();
    runtime.block_on(lab.create(standing.iter().map(|name| pod(name, json!({}))).collect(), is_ready));
    let mut n = 0;
    group.bench_function("replace_one_of_20", |b| {
        b.iter_custom(|iterations| {
            sum(iterations, &mut n, |i| {
                let old = standing.pop_front().expect("twenty stand");
                let new = format!("c{i}");
                let gone = runtime.block_on(lab.delete(&[old]));
                let come = runtime.block_on(lab.create(vec![pod(&new, json!({}))], is_ready));
                standing.push_back(new);
                gone + come
            })
        });
    });
    group.finish();
    runtime.block_on(lab.delete(standing.make_contiguous()));
}

fn main() {
    let zygote = podlab_testbed::early_main().expect("the zygote starts");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio starts");
    let mut criterion = Criterion::default().configure_from_args();
    cold(&mut criterion, &zygote, &runtime);
    let mut lab = Lab::new(&zygote, &runtime, "bench-life");
    runtime.block_on(lab.create(vec![pod("warm-up", json!({}))], is_ready));
    starts(&mut criterion, &mut lab, &runtime);
    batches(&mut criterion, &mut lab, &runtime);
    churn(&mut criterion, &mut lab, &runtime);
    criterion.final_summary();
}
