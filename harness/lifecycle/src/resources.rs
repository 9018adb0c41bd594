//! Resource arithmetic: sums over a Pod, CPU shares and quota, out-of-memory scores.
//!
//! Source: k/k pkg/kubelet/cm/helpers_linux.go, pkg/kubelet/qos/policy.go, staging/src/k8s.io/component-helpers/resource.

use std::collections::BTreeMap;

use podlab_api::{
    core::{Container, Pod, ResourceRequirements},
    k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    parse_milli, parse_quantity,
};

use crate::{
    qos::{self, QosClass},
    spec,
};

/// CFS period, µs.
pub const CPU_PERIOD: i64 = 100_000;
/// Smallest CFS quota, µs.
pub const MIN_QUOTA: i64 = 1_000;
/// Bounds of CPU shares.
pub const SHARES: (i64, i64) = (2, 262_144);

/// Priority from which a Pod is critical to the system. Source: k/k pkg/apis/scheduling/types.go.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Priority of `system-node-critical`.
pub const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Requests or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `resources.requests`.
    Requests,
    /// `resources.limits`.
    Limits,
}

/// One quantity of a container: thousandths for `cpu`, units otherwise.
pub fn amount(r: Option<&ResourceRequirements>, side: Side, key: &str) -> Option<i64> {
    let map = match side {
        Side::Requests => r?.requests.as_ref(),
        Side::Limits => r?.limits.as_ref(),
    };
    map?.get(key).map(|q| quantity(key, q))
}

/// A quantity in thousandths for `cpu`, in units otherwise; what does not parse is 0.
pub fn quantity(key: &str, q: &Quantity) -> i64 {
    let parsed = if key == "cpu" { parse_milli(&q.0) } else { parse_quantity(&q.0) };
    i64::try_from(parsed.unwrap_or(0)).unwrap_or(i64::MAX)
}

/// What a Pod asks of a node: max of the regular sum (with sidecars) and each init container on top of the sidecars
/// declared before it, plus overhead. Pod-level requests win where they are set.
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, i64> {
    pod_total(pod, Side::Requests)
}

/// The limits of a Pod by the same rule; only keys that some container limits.
pub fn pod_limits(pod: &Pod) -> BTreeMap<String, i64> {
    pod_total(pod, Side::Limits)
}

fn pod_total(pod: &Pod, side: Side) -> BTreeMap<String, i64> {
    let of = |c: &Container| -> BTreeMap<String, i64> {
        let r = c.resources.as_ref();
        let map = match side {
            Side::Requests => r.and_then(|r| r.requests.as_ref()),
            Side::Limits => r.and_then(|r| r.limits.as_ref()),
        };
        map.into_iter().flatten().map(|(k, q)| (k.clone(), quantity(k, q))).collect()
    };
    let mut total = BTreeMap::new();
    for c in spec::containers(pod) {
        add(&mut total, &of(c));
    }
    let mut sidecars = BTreeMap::new();
    let mut peak: BTreeMap<String, i64> = BTreeMap::new();
    for c in spec::init_containers(pod) {
        let mut here = of(c);
        if spec::is_sidecar(c) {
            add(&mut total, &here);
            add(&mut sidecars, &here);
            here = sidecars.clone();
        } else {
            add(&mut here, &sidecars);
        }
        for (k, v) in here {
            let slot = peak.entry(k).or_insert(0);
            *slot = (*slot).max(v);
        }
    }
    for (k, v) in peak {
        let slot = total.entry(k).or_insert(0);
        *slot = (*slot).max(v);
    }
    if let Some(level) = &spec::pod_spec(pod).resources {
        let map = match side {
            Side::Requests => &level.requests,
            Side::Limits => &level.limits,
        };
        for (k, q) in map.iter().flatten() {
            total.insert(k.clone(), quantity(k, q));
        }
    }
    for (k, q) in spec::pod_spec(pod).overhead.iter().flatten() {
        if side == Side::Requests || total.contains_key(k) {
            *total.entry(k.clone()).or_insert(0) += quantity(k, q);
        }
    }
    total
}

fn add(to: &mut BTreeMap<String, i64>, from: &BTreeMap<String, i64>) {
    for (k, v) in from {
        *to.entry(k.clone()).or_insert(0) += v;
    }
}

/// CPU shares of a request in thousandths. Source: MilliCPUToShares.
pub fn shares(milli: i64) -> i64 {
    if milli == 0 { SHARES.0 } else { (milli.saturating_mul(1024) / 1000).clamp(SHARES.0, SHARES.1) }
}

/// CFS quota of a limit in thousandths; 0 means no limit. Source: MilliCPUToQuota.
pub fn quota(milli: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(CPU_PERIOD) / 1000).max(MIN_QUOTA) }
}

/// cgroup v2 weight of CPU shares, as the kubelet maps them for Pod and QoS cgroups.
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(SHARES.0, SHARES.1) - 2) * 9999 / 262_142
}

/// The request that decides a container's CPU shares: its own, or its limit when it has only that.
pub fn cpu_request(c: &Container) -> i64 {
    let r = c.resources.as_ref();
    amount(r, Side::Requests, "cpu").or_else(|| amount(r, Side::Limits, "cpu")).unwrap_or(0)
}

/// The memory a container asks for, bytes: its request, or its limit when it has only that.
pub fn memory_request(c: &Container) -> i64 {
    let r = c.resources.as_ref();
    amount(r, Side::Requests, "memory").or_else(|| amount(r, Side::Limits, "memory")).unwrap_or(0)
}

/// `oom_score_adj` of a container on a node with `capacity` bytes of memory. Source: GetContainerOOMScoreAdjust.
pub fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    let priority = spec::pod_spec(pod).priority.unwrap_or(0);
    if priority >= NODE_CRITICAL_PRIORITY {
        return -997;
    }
    match qos::of(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let own = burstable_score(container, capacity);
            let sidecar = spec::init_containers(pod).iter().any(|c| c.name == container.name && spec::is_sidecar(c));
            let lowest = spec::containers(pod).iter().map(|c| burstable_score(c, capacity)).min();
            if sidecar { lowest.map_or(own, |l| own.min(l)) } else { own }
        }
    }
}

fn burstable_score(c: &Container, capacity: i64) -> i64 {
    let request = amount(c.resources.as_ref(), Side::Requests, "memory").unwrap_or(0);
    let raw = if capacity > 0 { 1000 - request.saturating_mul(1000) / capacity } else { 999 };
    raw.clamp(3, 999)
}

/// What a Pod's own cgroup allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodCgroupLimits {
    /// CPU shares.
    pub cpu_shares: i64,
    /// CFS quota, set only when every container limits CPU.
    pub cpu_quota: Option<i64>,
    /// Bytes, set only when every container limits memory.
    pub memory: Option<i64>,
    /// Most processes, as the node is configured.
    pub pids: Option<i64>,
}

/// Limits of a Pod's cgroup. Source: ResourceConfigForPod.
pub fn pod_cgroup(pod: &Pod) -> PodCgroupLimits {
    let requests = pod_requests(pod);
    let limits = pod_limits(pod);
    let all = |key: &str| {
        spec::pod_spec(pod).resources.as_ref().and_then(|r| amount(Some(r), Side::Limits, key)).is_some()
            || spec::containers(pod)
                .iter()
                .chain(spec::init_containers(pod))
                .all(|c| amount(c.resources.as_ref(), Side::Limits, key).is_some_and(|v| v != 0))
    };
    let cpu = requests.get("cpu").copied().filter(|v| *v != 0).or_else(|| limits.get("cpu").copied()).unwrap_or(0);
    let cpu_shares = if qos::of(pod) == QosClass::BestEffort { SHARES.0 } else { shares(cpu) };
    PodCgroupLimits {
        cpu_shares,
        cpu_quota: all("cpu").then(|| quota(limits.get("cpu").copied().unwrap_or(0))).filter(|q| *q != 0),
        memory: all("memory").then(|| limits.get("memory").copied().unwrap_or(0)).filter(|m| *m != 0),
        pids: None,
    }
}
