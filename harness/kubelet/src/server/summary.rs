//! `/stats/summary`. Source: k/k staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go,
//! pkg/kubelet/server/stats/summary.go.

use std::sync::Arc;

use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::{eviction::Files, spec};
use serde_json::{Map, Value, json};

use super::route::by_name;
use crate::{
    agent::Agent,
    host::{CgroupStats, DiskStats},
    labels, usage,
};

fn number(v: Option<&v1::UInt64Value>) -> Value {
    v.map_or(Value::Null, |v| v.value.into())
}

/// An object without what is not known.
fn known(pairs: Vec<(&str, Value)>) -> Value {
    Value::Object(pairs.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.to_owned(), v)).collect())
}

fn cpu(now: &str, c: Option<&v1::CpuUsage>) -> Value {
    c.map_or(Value::Null, |c| {
        known(vec![
            ("time", now.into()),
            ("usageNanoCores", number(c.usage_nano_cores.as_ref())),
            ("usageCoreNanoSeconds", number(c.usage_core_nano_seconds.as_ref())),
        ])
    })
}

fn memory(now: &str, m: Option<&v1::MemoryUsage>) -> Value {
    m.map_or(Value::Null, |m| {
        let some = m.available_bytes.as_ref().filter(|v| v.value > 0);
        known(vec![
            ("time", now.into()),
            ("availableBytes", number(some)),
            ("usageBytes", number(m.usage_bytes.as_ref())),
            ("workingSetBytes", number(m.working_set_bytes.as_ref())),
            ("rssBytes", number(m.rss_bytes.as_ref())),
            ("pageFaults", number(m.page_faults.as_ref())),
            ("majorPageFaults", number(m.major_page_faults.as_ref())),
        ])
    })
}

fn of_cgroup(now: &str, c: &CgroupStats, capacity: u64) -> (Value, Value) {
    let cpu = json!({"time": now, "usageCoreNanoSeconds": c.cpu_ns});
    let memory = json!({
        "time": now, "availableBytes": capacity.saturating_sub(c.working_set), "usageBytes": c.memory_usage,
        "workingSetBytes": c.working_set,
    });
    (cpu, memory)
}

fn disk(now: &str, d: &DiskStats) -> Value {
    json!({
        "time": now, "capacityBytes": d.capacity, "availableBytes": d.available, "usedBytes": d.used,
        "inodes": d.inodes, "inodesFree": d.inodes_free, "inodesUsed": d.inodes.saturating_sub(d.inodes_free),
    })
}

/// Files on a file system.
fn files(now: &str, d: &DiskStats, f: Files) -> Value {
    json!({
        "time": now, "capacityBytes": d.capacity, "availableBytes": d.available, "usedBytes": f.bytes,
        "inodes": d.inodes, "inodesFree": d.inodes_free, "inodesUsed": f.inodes,
    })
}

fn interface(i: &v1::NetworkInterfaceUsage) -> Value {
    known(vec![
        ("name", i.name.clone().into()),
        ("rxBytes", number(i.rx_bytes.as_ref())),
        ("rxErrors", number(i.rx_errors.as_ref())),
        ("txBytes", number(i.tx_bytes.as_ref())),
        ("txErrors", number(i.tx_errors.as_ref())),
    ])
}

fn network(now: &str, n: Option<&v1::NetworkUsage>) -> Value {
    let Some(n) = n else { return Value::Null };
    let mut out = match n.default_interface.as_ref().map(interface) {
        Some(Value::Object(m)) => m,
        Some(_) | None => Map::new(),
    };
    out.insert("time".to_owned(), now.into());
    let all: Vec<Value> = n.default_interface.iter().chain(&n.interfaces).map(interface).collect();
    out.insert("interfaces".to_owned(), all.into());
    Value::Object(out)
}

/// The whole answer; only CPU and memory with `only_cpu_and_memory`.
pub(super) async fn summary(agent: &Arc<Agent>, only_cpu_and_memory: bool) -> Value {
    let now = agent.clock.wall_secs().to_string();
    let node = usage::of_node(agent).await;
    let stats = usage::sandboxes(agent).await;
    let capacity = u64::try_from(agent.capacity.memory).unwrap_or(0);
    let (node_cpu, node_memory) = of_cgroup(&now, &node.all, capacity);
    let (pods_cpu, pods_memory) = of_cgroup(&now, &node.pods, u64::try_from(agent.allocatable.memory).unwrap_or(0));
    let pods: Vec<Value> = by_name(&agent.workers.active())
        .values()
        .map(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            one_pod(agent, pod, stats.get(uid), &node.nodefs, &node.imagefs, &now, only_cpu_and_memory)
        })
        .collect();
    let began = agent.node.lock().metadata.creation_timestamp.clone();
    let mut of_node = vec![
        ("nodeName", agent.config.node_name.clone().into()),
        ("startTime", began.map_or_else(|| now.clone().into(), |t| json!(t))),
        ("cpu", node_cpu),
        ("memory", node_memory),
        ("systemContainers", json!([{"name": "pods", "startTime": now, "cpu": pods_cpu, "memory": pods_memory}])),
    ];
    if !only_cpu_and_memory {
        of_node.push(("fs", disk(&now, &node.nodefs)));
        let images = disk(&now, &node.imagefs);
        of_node.push(("runtime", json!({"imageFs": images, "containerFs": images})));
        if let Some((most, used)) = node.pids {
            of_node.push(("rlimit", json!({"time": now, "maxpid": most, "curproc": used})));
        }
    }
    json!({"node": known(of_node), "pods": pods})
}

fn one_pod(
    agent: &Agent,
    pod: &Pod,
    stats: Option<&v1::PodSandboxStats>,
    nodefs: &DiskStats,
    imagefs: &DiskStats,
    now: &str,
    only_cpu_and_memory: bool,
) -> Value {
    let linux = stats.and_then(|s| s.linux.as_ref());
    let status = agent.status.get(pod.metadata.uid.as_deref().unwrap_or_default()).unwrap_or_default();
    let mut total = Files::default();
    let mut add = |f: Files| total = Files { bytes: total.bytes + f.bytes, inodes: total.inodes + f.inodes };
    let mut containers = Vec::new();
    for c in linux.iter().flat_map(|l| &l.containers) {
        let name =
            c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned().unwrap_or_default();
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let found = lists.into_iter().flatten().flatten().find(|s| s.name == name);
        let started = found.and_then(|s| s.state.as_ref()?.running.as_ref()?.started_at.clone());
        let mut out = vec![
            ("name", name.clone().into()),
            ("startTime", started.map_or_else(|| now.into(), |t| json!(t))),
            ("cpu", cpu(now, c.cpu.as_ref())),
            ("memory", memory(now, c.memory.as_ref())),
        ];
        if let Some(s) = &c.swap {
            out.push(("swap", json!({"time": now, "swapUsageBytes": number(s.swap_usage_bytes.as_ref())})));
        }
        if !only_cpu_and_memory {
            let layer = c.writable_layer.as_ref();
            let of = |v: Option<&v1::UInt64Value>| v.map_or(0, |v| v.value);
            let rootfs = Files {
                bytes: of(layer.and_then(|l| l.used_bytes.as_ref())),
                inodes: of(layer.and_then(|l| l.inodes_used.as_ref())),
            };
            let logs = usage::logs(agent, pod, &name);
            add(rootfs);
            add(logs);
            out.push(("rootfs", files(now, imagefs, rootfs)));
            out.push(("logs", files(now, nodefs, logs)));
        }
        containers.push(known(out));
    }
    let m = &pod.metadata;
    let mut out = vec![
        ("podRef", json!({"name": m.name, "namespace": m.namespace, "uid": m.uid})),
        ("startTime", status.start_time.map_or(Value::Null, |t| json!(t))),
        ("containers", containers.into()),
        ("cpu", cpu(now, linux.and_then(|l| l.cpu.as_ref()))),
        ("memory", memory(now, linux.and_then(|l| l.memory.as_ref()))),
    ];
    if !only_cpu_and_memory {
        let mut volumes = Vec::new();
        for (name, local, f) in usage::volumes(agent, pod) {
            if local {
                add(f);
            }
            let mut v = files(now, nodefs, f);
            v["name"] = name.into();
            volumes.push(v);
        }
        if !spec::host_network(pod) {
            out.push(("network", network(now, linux.and_then(|l| l.network.as_ref()))));
        }
        if !volumes.is_empty() {
            out.push(("volume", volumes.into()));
        }
        out.push(("ephemeral-storage", files(now, nodefs, total)));
        let count = linux.and_then(|l| l.process.as_ref()).map_or(Value::Null, |p| number(p.process_count.as_ref()));
        out.push(("process_stats", json!({"process_count": count})));
    }
    known(out)
}
