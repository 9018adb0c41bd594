//! Statistics and metrics: what upstream's names ask for, as far as the runtime measures it.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use podlab_cri::v1;
use serde_json::{Value, json};

use super::route::by_name;
use crate::{agent::Agent, labels};

/// Usage of a container by namespace, Pod and name.
type Usage = BTreeMap<(String, String, String), v1::ContainerStats>;

async fn usage(agent: &Agent) -> Usage {
    let stats = agent.runtime.list_container_stats(v1::ContainerStatsFilter::default()).await.unwrap_or_default();
    stats
        .into_iter()
        .filter_map(|s| {
            let l = &s.attributes.as_ref()?.labels;
            let text = |k: &str| l.get(k).cloned().unwrap_or_default();
            Some(((text(labels::POD_NAMESPACE), text(labels::POD_NAME), text(labels::CONTAINER_NAME)), s.clone()))
        })
        .collect()
}

fn cpu(s: &v1::ContainerStats) -> (i64, u64) {
    let c = s.cpu.as_ref();
    (c.map_or(0, |c| c.timestamp), c.and_then(|c| c.usage_core_nano_seconds.as_ref()).map_or(0, |v| v.value))
}

fn memory(s: &v1::ContainerStats) -> u64 {
    s.memory.as_ref().and_then(|m| m.working_set_bytes.as_ref()).map_or(0, |v| v.value)
}

/// `/stats/summary`.
pub(super) async fn summary(agent: &Arc<Agent>) -> Value {
    let now = agent.clock.wall_secs().to_string();
    let usage = usage(agent).await;
    let total = agent.host.cgroup_stats("/kubepods").unwrap_or_default();
    let disk = agent.host.disk(&agent.config.root_dir).unwrap_or_default();
    let fs = json!({
        "time": now, "capacityBytes": disk.capacity, "availableBytes": disk.available, "usedBytes": disk.used,
        "inodes": disk.inodes, "inodesFree": disk.inodes_free, "inodesUsed": disk.inodes.saturating_sub(disk.inodes_free),
    });
    let pods: Vec<Value> = by_name(&agent.workers.pods())
        .iter()
        .map(|((namespace, name), pod)| {
            let mine = usage.iter().filter(|((n, p, _), _)| n == namespace && p == name);
            let containers: Vec<Value> = mine
                .map(|((_, _, container), s)| {
                    json!({
                        "name": container, "startTime": now,
                        "cpu": {"time": now, "usageCoreNanoSeconds": cpu(s).1},
                        "memory": {"time": now, "workingSetBytes": memory(s)},
                    })
                })
                .collect();
            json!({"podRef": {"name": name, "namespace": namespace, "uid": pod.metadata.uid}, "startTime": pod.status.as_ref().and_then(|s| s.start_time.clone()), "containers": containers})
        })
        .collect();
    json!({
        "node": {
            "nodeName": agent.config.node_name, "startTime": now,
            "cpu": {"time": now, "usageCoreNanoSeconds": total.cpu_ns},
            "memory": {"time": now, "workingSetBytes": total.working_set, "usageBytes": total.memory_usage, "availableBytes": u64::try_from(agent.machine.memory).unwrap_or(0).saturating_sub(total.working_set)},
            "fs": fs, "runtime": {"imageFs": fs},
        },
        "pods": pods,
    })
}

/// `/metrics/resource`.
pub(super) async fn resource(agent: &Arc<Agent>) -> String {
    let mut out = String::new();
    let usage = usage(agent).await;
    head(
        &mut out,
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed by the container in core-seconds",
        "counter",
    );
    for ((namespace, pod, container), s) in &usage {
        let (ts, ns) = cpu(s);
        #[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
        let seconds = ns as f64 / 1e9;
        let _ = writeln!(
            out,
            "container_cpu_usage_seconds_total{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"}} {seconds} {}",
            ts / 1_000_000
        );
    }
    head(&mut out, "container_memory_working_set_bytes", "Current working set of the container in bytes", "gauge");
    for ((namespace, pod, container), s) in &usage {
        let (ts, _) = cpu(s);
        let _ = writeln!(
            out,
            "container_memory_working_set_bytes{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"}} {} {}",
            memory(s),
            ts / 1_000_000
        );
    }
    let total = agent.host.cgroup_stats("/kubepods").unwrap_or_default();
    head(&mut out, "node_memory_working_set_bytes", "Current working set of the node in bytes", "gauge");
    let _ = writeln!(out, "node_memory_working_set_bytes {}", total.working_set);
    out
}

/// `/metrics`.
pub(super) fn own(agent: &Agent) -> String {
    let mut out = String::new();
    let node = &agent.config.node_name;
    head(&mut out, "kubelet_node_name", "The node's name. The count is always 1.", "gauge");
    let _ = writeln!(out, "kubelet_node_name{{node=\"{node}\"}} 1");
    head(&mut out, "kubelet_running_pods", "Number of pods that have a running pod sandbox", "gauge");
    let _ = writeln!(out, "kubelet_running_pods {}", agent.workers.active().len());
    out
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
