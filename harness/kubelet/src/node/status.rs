//! The node's status: what it has, how it is.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use podlab_api::{
    ApiError,
    core::{
        ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
        NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSystemInfo,
    },
    k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    meta::Time,
    parse_milli,
};
use podlab_client::PatchKind;
use podlab_clock::Mono;
use podlab_lifecycle::eviction::{Pressure, Signal};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, HandlerFeatures, RuntimeHealth},
    config::KubeletConfig,
    container::downward::Allocatable,
};

/// How much later than its period a look may come. Source: k/k pkg/kubelet/kubelet.go Run.
const JITTER: f64 = 0.04;

/// Builds the status as it is now, keeping transition times of what did not change.
pub(crate) async fn build(agent: &Agent, old: &NodeStatus) -> NodeStatus {
    let config = &agent.config;
    let machine = &agent.machine;
    let runtime = agent.runtime_name.lock().clone();
    let health = agent.health.borrow().clone();
    let mut addresses: Vec<NodeAddress> =
        config.node_ips.iter().map(|ip| NodeAddress { address: ip.clone(), type_: "InternalIP".to_owned() }).collect();
    addresses.push(NodeAddress { address: config.hostname.clone(), type_: "Hostname".to_owned() });
    let port = config.advertise_port.or_else(|| config.server.as_ref().map(|s| s.listen.port()));
    let info = NodeSystemInfo {
        architecture: machine.architecture.clone(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: format!("{}://{}", runtime.0, runtime.1),
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: config.version.clone(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        system_uuid: machine.system_uuid.clone(),
        ..NodeSystemInfo::default()
    };
    NodeStatus {
        addresses: Some(addresses),
        allocatable: Some(resources(agent, &agent.allocatable)),
        capacity: Some(resources(agent, &agent.capacity)),
        conditions: Some(conditions(agent, &health, old)),
        daemon_endpoints: port
            .map(|p| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(p) }) }),
        images: Some(images(agent).await),
        node_info: Some(info),
        runtime_handlers: handlers(&health),
        features: health.groups_policy.then_some(NodeFeatures { supplemental_groups_policy: Some(true) }),
        volumes_attached: old.volumes_attached.clone(),
        volumes_in_use: Some(agent.volumes.in_use()).filter(|v| !v.is_empty()),
        ..NodeStatus::default()
    }
}

/// What the runtime's handlers can do. Source: k/k pkg/kubelet/kubelet_node_status.go runtimeHandlers.
fn handlers(health: &RuntimeHealth) -> Option<Vec<NodeRuntimeHandler>> {
    let one = |(name, f): (&String, &HandlerFeatures)| NodeRuntimeHandler {
        name: Some(name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(f.recursive_read_only_mounts),
            user_namespaces: Some(f.user_namespaces),
        }),
    };
    let all: Vec<NodeRuntimeHandler> = health.handlers.iter().map(one).collect();
    (!all.is_empty()).then_some(all)
}

/// What Pods may have: the capacity less what is reserved and what hard eviction thresholds keep free.
/// Source: k/k pkg/kubelet/cm/node_container_manager_linux.go GetNodeAllocatableReservation.
pub(crate) fn allocatable(config: &KubeletConfig, capacity: Allocatable) -> Allocatable {
    let reserved = |key: &str| config.reserved.get(key).copied().unwrap_or(0);
    let kept = |signal: Signal, capacity: i64| {
        let hard = config.eviction.thresholds.iter().find(|t| t.signal == signal && t.is_hard());
        hard.map_or(0, |t| t.value.of(capacity))
    };
    let less = |capacity: i64, key: &str, kept: i64| (capacity - reserved(key) - kept).max(0);
    Allocatable {
        cpu_milli: less(capacity.cpu_milli, "cpu", 0),
        memory: less(capacity.memory, "memory", kept(Signal::MemoryAvailable, capacity.memory)),
        ephemeral_storage: less(
            capacity.ephemeral_storage,
            "ephemeral-storage",
            kept(Signal::NodefsAvailable, capacity.ephemeral_storage),
        ),
    }
}

fn resources(agent: &Agent, a: &Allocatable) -> BTreeMap<String, Quantity> {
    let cpu = if a.cpu_milli % 1000 == 0 { (a.cpu_milli / 1000).to_string() } else { format!("{}m", a.cpu_milli) };
    let mut out: BTreeMap<String, Quantity> = [
        ("cpu", cpu),
        ("memory", format!("{}Ki", a.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", a.ephemeral_storage / 1024)),
        ("pods", agent.config.pod_capacity(agent.capacity.cpu_milli).to_string()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), Quantity(v)))
    .collect();
    for (size, bytes) in &agent.machine.hugepages {
        out.insert(format!("hugepages-{size}"), Quantity(bytes.to_string()));
    }
    out
}

fn conditions(agent: &Agent, health: &RuntimeHealth, old: &NodeStatus) -> Vec<NodeCondition> {
    let now = Time(agent.clock.wall_secs());
    let leaving = agent.leaving.load(Ordering::Acquire).then(|| "node is shutting down".to_owned());
    let problems: Vec<String> =
        [&health.runtime_problem, &health.network_problem, &leaving].into_iter().flatten().cloned().collect();
    let ready = health.known && problems.is_empty();
    let not_ready = if problems.is_empty() {
        "container runtime status check may not have completed yet".to_owned()
    } else {
        problems.join(", ")
    };
    let pressure = agent.pressure.borrow().clone();
    let of = |p: Pressure, yes: [&'static str; 2], no: [&'static str; 2]| {
        let on = pressure.contains(&p);
        let [reason, message] = if on { yes } else { no };
        (p.as_str(), on, reason, message.to_owned())
    };
    let wanted = [
        of(
            Pressure::Memory,
            ["KubeletHasInsufficientMemory", "kubelet has insufficient memory available"],
            ["KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
        ),
        of(
            Pressure::Disk,
            ["KubeletHasDiskPressure", "kubelet has disk pressure"],
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
        ),
        of(
            Pressure::Pid,
            ["KubeletHasInsufficientPID", "kubelet has insufficient PID available"],
            ["KubeletHasSufficientPID", "kubelet has sufficient PID available"],
        ),
        if ready {
            ("Ready", true, "KubeletReady", "kubelet is posting ready status".to_owned())
        } else {
            ("Ready", false, "KubeletNotReady", not_ready)
        },
    ];
    let previous = old.conditions.as_deref().unwrap_or_default();
    let foreign = previous.iter().filter(|c| !wanted.iter().any(|w| w.0 == c.type_)).cloned();
    let own = wanted.iter().map(|(kind, on, reason, message)| {
        let status = if *on { "True" } else { "False" };
        let same = previous.iter().find(|c| c.type_ == *kind && c.status == status);
        NodeCondition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            reason: Some((*reason).to_owned()),
            message: Some(message.clone()),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: same.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(now.clone())),
        }
    });
    foreign.chain(own).collect()
}

async fn images(agent: &Agent) -> Vec<ContainerImage> {
    let mut all = agent.image_service.list_images().await.unwrap_or_default();
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    all.truncate(agent.config.node_status_max_images);
    all.into_iter()
        .map(|i| ContainerImage {
            names: Some(i.repo_digests.into_iter().chain(i.repo_tags).take(5).collect()),
            size_bytes: i64::try_from(i.size).ok(),
        })
        .collect()
}

/// Writes the status whenever it changes, and now and then when it does not, until the agent stops.
pub(crate) async fn report(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown.run_until_cancelled(keep_reporting(&agent)).await;
}

async fn keep_reporting(agent: &Arc<Agent>) {
    let mut health = agent.health.subscribe();
    let mut pressure = agent.pressure.subscribe();
    let mut in_use = agent.volumes.subscribe_in_use();
    let mut written: Option<Mono> = None;
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let report = agent.config.node_report_period;
    let mut wait = report;
    loop {
        let old = agent.node.lock().status.clone().unwrap_or_default();
        let next = build(agent, &old).await;
        let due = written.is_none_or(|t| agent.clock.now().since(t) >= wait);
        let changed = comparable(&next) != comparable(&old);
        if due || changed {
            // After a change, and at first, the next report is somewhere around a period away, so that nodes that change
            // together do not report together. Source: k/k pkg/kubelet/kubelet_node_status.go calculateDelay.
            let first = written.is_none();
            match write(agent, &next).await {
                Ok(node) => {
                    wait = if changed || first { report.mul_f64(0.5 + agent.rng.unit()) } else { report };
                    written = Some(agent.clock.now());
                    *agent.node.lock() = node;
                    say_changes(agent, &next, &mut said);
                }
                Err(error) => tracing::warn!(%error, "node status not written"),
            }
        }
        tokio::select! {
            biased;
            changed = health.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            changed = pressure.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            changed = in_use.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = agent.clock.sleep(agent.config.node_status_period.mul_f64(1.0 + JITTER * agent.rng.unit())) => {}
        }
    }
}

/// A status without its heartbeats, in one spelling.
fn comparable(s: &NodeStatus) -> NodeStatus {
    let mut s = s.clone();
    for c in s.conditions.iter_mut().flatten() {
        c.last_heartbeat_time = None;
    }
    s.volumes_attached = None;
    // The API spells quantities its own way and leaves empty lists out.
    s.images = s.images.filter(|i| !i.is_empty());
    for q in [&mut s.allocatable, &mut s.capacity].into_iter().flatten().flat_map(|m| m.values_mut()) {
        if let Ok(n) = parse_milli(&q.0) {
            q.0 = n.to_string();
        }
    }
    s
}

async fn write(agent: &Agent, status: &NodeStatus) -> Result<Node, ApiError> {
    let nodes = agent.client.all::<Node>();
    let mut body = serde_json::to_value(status).map_err(|e| ApiError::internal(e.to_string()))?;
    if let Some(map) = body.as_object_mut() {
        // Written by the attach-detach controller alone.
        map.remove("volumesAttached");
        map.entry("volumesInUse").or_insert(Value::Null);
    }
    nodes.patch_status(&agent.config.node_name, &PatchKind::Strategic, &json!({"status": body})).await
}

/// Says what changed about the node's conditions.
fn say_changes(agent: &Agent, status: &NodeStatus, said: &mut BTreeMap<String, String>) {
    for c in status.conditions.iter().flatten() {
        let event = match (c.type_.as_str(), c.status.as_str()) {
            ("MemoryPressure", "False") => "NodeHasSufficientMemory",
            ("MemoryPressure", _) => "NodeHasInsufficientMemory",
            ("DiskPressure", "False") => "NodeHasNoDiskPressure",
            ("DiskPressure", _) => "NodeHasDiskPressure",
            ("PIDPressure", "False") => "NodeHasSufficientPID",
            ("PIDPressure", _) => "NodeHasInsufficientPID",
            ("Ready", "True") => "NodeReady",
            ("Ready", _) => "NodeNotReady",
            _ => continue,
        };
        if said.insert(c.type_.clone(), c.status.clone()).as_deref() != Some(c.status.as_str()) {
            agent.say.node_status(event);
        }
    }
}
