//! What is measured, in the text format Prometheus reads. Source: k/k pkg/kubelet/server/server.go,
//! pkg/kubelet/metrics/collectors/{resource_metrics,cri_metrics}.go, pkg/kubelet/metrics/metrics.go.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::spec;

use crate::{
    agent::Agent,
    labels,
    metrics::{Gauge, Metrics, gauge, head, quoted},
    usage,
};

/// Nanoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn value(v: Option<&v1::UInt64Value>) -> u64 {
    v.map_or(0, |v| v.value)
}

/// `/metrics`.
pub(super) async fn own(agent: &Agent) -> String {
    agent.metrics.render(|name| !Metrics::is_probe(name), &gauges(agent).await)
}

/// `/metrics/probes`.
pub(super) fn probes(agent: &Agent) -> String {
    agent.metrics.render(Metrics::is_probe, &[])
}

async fn gauges(agent: &Agent) -> Vec<Gauge> {
    let pods = agent.workers.pods();
    let of_static = |wanted: bool| pods.iter().filter(|p| spec::is_static(p) == wanted).count();
    let ending = |p: &&Arc<Pod>| agent.workers.is_ending(p.metadata.uid.as_deref().unwrap_or_default());
    let mut out = vec![
        gauge("kubelet_node_name", &[("node", &agent.config.node_name)], 1),
        gauge(
            "kubelet_active_pods",
            &[("static", "")],
            agent.workers.active().iter().filter(|p| !spec::is_static(p)).count(),
        ),
        gauge(
            "kubelet_active_pods",
            &[("static", "true")],
            agent.workers.active().iter().filter(|p| spec::is_static(p)).count(),
        ),
        gauge("kubelet_desired_pods", &[("static", "")], of_static(false)),
        gauge("kubelet_desired_pods", &[("static", "true")], of_static(true)),
        gauge("kubelet_mirror_pods", &[], agent.statics.count()),
    ];
    for (is_static, word) in [(false, ""), (true, "true")] {
        let mine = || pods.iter().filter(move |p| spec::is_static(p) == is_static);
        let stopping = mine().filter(ending).count();
        for (lifecycle, n) in [("sync", mine().count() - stopping), ("terminating", stopping)] {
            let of = [("config", "desired"), ("lifecycle", lifecycle), ("static", word)];
            out.push(gauge("kubelet_working_pods", &of, n));
        }
    }
    let ready = v1::PodSandboxFilter {
        state: Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() }),
        ..Default::default()
    };
    if let Ok(sandboxes) = agent.runtime.list_pod_sandbox(ready).await {
        out.push(gauge("kubelet_running_pods", &[], sandboxes.len()));
    }
    if let Ok(containers) = agent.runtime.list_containers(v1::ContainerFilter::default()).await {
        for (state, word) in [
            (v1::ContainerState::ContainerCreated, "created"),
            (v1::ContainerState::ContainerRunning, "running"),
            (v1::ContainerState::ContainerExited, "exited"),
            (v1::ContainerState::ContainerUnknown, "unknown"),
        ] {
            let n = containers.iter().filter(|c| c.state() == state).count();
            out.push(gauge("kubelet_running_containers", &[("container_state", word)], n));
        }
    }
    out
}

/// One series of `/metrics/resource`.
struct Series {
    labels: String,
    text: String,
    /// Milliseconds.
    at: i64,
}

fn write(out: &mut String, name: &str, help: &str, kind: &str, series: &[Series]) {
    if series.is_empty() {
        return;
    }
    head(out, name, help, kind);
    for s in series {
        let _ = writeln!(out, "{name}{} {} {}", s.labels, s.text, s.at);
    }
}

/// `/metrics/resource`.
pub(super) async fn resource(agent: &Arc<Agent>) -> String {
    let now = agent.clock.wall().as_millisecond();
    let stats = usage::sandboxes(agent).await;
    let node = usage::of_node(agent).await;
    let mut of: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    let mut add = |name: &'static str, labels: String, text: String, at: i64| {
        of.entry(name).or_default().push(Series { labels, text, at });
    };
    for s in stats.values() {
        let meta = s.attributes.as_ref().and_then(|a| a.metadata.clone()).unwrap_or_default();
        let Some(linux) = &s.linux else { continue };
        let pod = format!("{{namespace=\"{}\",pod=\"{}\"}}", quoted(&meta.namespace), quoted(&meta.name));
        if let Some(cpu) = &linux.cpu {
            let used = seconds(value(cpu.usage_core_nano_seconds.as_ref())).to_string();
            add("pod_cpu_usage_seconds_total", pod.clone(), used, cpu.timestamp / 1_000_000);
        }
        if let Some(memory) = &linux.memory {
            let used = value(memory.working_set_bytes.as_ref()).to_string();
            add("pod_memory_working_set_bytes", pod.clone(), used, memory.timestamp / 1_000_000);
        }
        let mut swap = 0;
        for c in &linux.containers {
            let name = c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned();
            let labels = format!(
                "{{container=\"{}\",namespace=\"{}\",pod=\"{}\"}}",
                quoted(&name.clone().unwrap_or_default()),
                quoted(&meta.namespace),
                quoted(&meta.name)
            );
            if let Some(cpu) = &c.cpu {
                let used = seconds(value(cpu.usage_core_nano_seconds.as_ref())).to_string();
                add("container_cpu_usage_seconds_total", labels.clone(), used, cpu.timestamp / 1_000_000);
            }
            if let Some(memory) = &c.memory {
                let used = value(memory.working_set_bytes.as_ref()).to_string();
                add("container_memory_working_set_bytes", labels.clone(), used, memory.timestamp / 1_000_000);
            }
            let used = c.swap.as_ref().map_or(0, |s| value(s.swap_usage_bytes.as_ref()));
            swap += used;
            add("container_swap_usage_bytes", labels.clone(), used.to_string(), now);
            let started = started_at(agent, &meta.uid, name.as_deref().unwrap_or_default());
            if let Some(t) = started {
                add("container_start_time_seconds", labels, t.to_string(), now);
            }
        }
        add("pod_swap_usage_bytes", pod, swap.to_string(), now);
    }
    let nothing = Vec::new();
    let mut out = String::new();
    let mut emit = |name: &str, help: &str, kind: &str| {
        write(&mut out, name, help, kind, of.get(name).unwrap_or(&nothing));
    };
    emit(
        "container_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        "counter",
    );
    emit("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes", "gauge");
    emit("container_start_time_seconds", "[STABLE] Start time of the container since unix epoch in seconds", "gauge");
    emit(
        "container_swap_usage_bytes",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        "gauge",
    );
    emit("pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", "counter");
    emit("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", "gauge");
    emit(
        "pod_swap_usage_bytes",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
        "gauge",
    );
    let one = |text: String| [Series { labels: String::new(), text, at: now }];
    write(
        &mut out,
        "node_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        "counter",
        &one(seconds(node.all.cpu_ns).to_string()),
    );
    write(
        &mut out,
        "node_memory_working_set_bytes",
        "[STABLE] Current working set of the node in bytes",
        "gauge",
        &one(node.all.working_set.to_string()),
    );
    head(
        &mut out,
        "resource_scrape_error",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        "gauge",
    );
    out.push_str("resource_scrape_error 0\n");
    out
}

/// When a container was started, in seconds since the epoch, by its status.
fn started_at(agent: &Agent, uid: &str, container: &str) -> Option<i64> {
    let status = agent.status.get(uid)?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|s| s.name == container)?;
    Some(found.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0.as_second())
}

/// `/metrics/cadvisor`: what the runtime measures, under cAdvisor's names, and the machine.
pub(super) async fn cadvisor(agent: &Arc<Agent>) -> String {
    let (descriptors, all) =
        tokio::join!(agent.runtime.list_metric_descriptors(), agent.runtime.list_pod_sandbox_metrics());
    let (descriptors, all) = (descriptors.unwrap_or_default(), all.unwrap_or_default());
    let mut by_name: BTreeMap<String, Vec<v1::Metric>> = BTreeMap::new();
    let each = all.into_iter().flat_map(|p| {
        p.metrics.into_iter().chain(p.container_metrics.into_iter().flat_map(|c| c.metrics)).collect::<Vec<_>>()
    });
    for m in each {
        by_name.entry(m.name.clone()).or_default().push(m);
    }
    let mut out = String::new();
    for d in &descriptors {
        let Some(series) = by_name.get(&d.name) else { continue };
        let counter = series.first().is_some_and(|m| m.metric_type() == v1::MetricType::Counter);
        head(&mut out, &d.name, &d.help, if counter { "counter" } else { "gauge" });
        for m in series {
            let pairs: Vec<String> =
                d.label_keys.iter().zip(&m.label_values).map(|(k, v)| format!("{k}=\"{}\"", quoted(v))).collect();
            let at = m.timestamp / 1_000_000;
            let _ = writeln!(out, "{}{{{}}} {} {at}", d.name, pairs.join(","), value(m.value.as_ref()));
        }
    }
    for (name, help, n) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", agent.capacity.cpu_milli / 1000),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", agent.capacity.memory),
    ] {
        head(&mut out, name, help, "gauge");
        let m = &agent.machine;
        let labels = format!(
            "boot_id=\"{}\",machine_id=\"{}\",system_uuid=\"{}\"",
            quoted(&m.boot_id),
            quoted(&m.machine_id),
            quoted(&m.system_uuid)
        );
        let _ = writeln!(out, "{name}{{{labels}}} {n}");
    }
    out
}
