//! In-place resize: which running containers must get other limits, and what the status says of it.
//!
//! ```text
//! spec changed ──fits──► InProgress ──applied──► done (condition gone)
//!      │                     └──refused──► InProgress, reason Error
//!      ├──fits the node, not now──► Pending, reason Deferred
//!      └──can never fit──────────► Pending, reason Infeasible
//! ```
//! Source: k/k pkg/kubelet/allocation/allocation_manager.go, pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodResizeAction.

use std::collections::BTreeMap;

use podlab_api::core::{Container, ContainerStatus, Pod, PodCondition, ResourceRequirements};

use crate::{
    conditions::condition_of,
    resources::{self, Side, amount},
    runtime::{ContainerRecord, RuntimePod, RuntimeState},
    spec,
    words::condition,
};

/// Where a resize of a Pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeState {
    /// Being applied.
    InProgress,
    /// Could not be applied; the text is the condition's message.
    Failed(String),
    /// Fits the node, but not beside what is there now.
    Deferred(String),
    /// Can never fit.
    Infeasible(String),
}

impl ResizeState {
    /// The condition that shows it.
    pub fn condition(&self, generation: Option<i64>) -> PodCondition {
        let (kind, reason, message) = match self {
            Self::InProgress => (condition::RESIZE_IN_PROGRESS, None, None),
            Self::Failed(m) => (condition::RESIZE_IN_PROGRESS, Some("Error"), Some(m.clone())),
            Self::Deferred(m) => (condition::RESIZE_PENDING, Some("Deferred"), Some(m.clone())),
            Self::Infeasible(m) => (condition::RESIZE_PENDING, Some("Infeasible"), Some(m.clone())),
        };
        PodCondition { observed_generation: generation, ..condition_of(kind, true, reason, message) }
    }
}

/// How a container gets its new limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// While it runs.
    InPlace,
    /// By a restart, because its resize policy says so.
    Restart,
}

/// A container whose limits in force are not those of its spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerResize {
    /// Name.
    pub name: String,
    /// The runtime's id.
    pub id: String,
    /// How.
    pub method: Method,
}

/// Running containers whose limits must change. Containers of which the runtime does not say what is in force stay.
/// `requested` holds the memory requests, bytes, that running containers were given, by container id, as far as known.
pub fn plan(pod: &Pod, runtime: &RuntimePod, requested: &BTreeMap<String, i64>) -> Vec<ContainerResize> {
    let sidecars = spec::init_containers(pod).iter().filter(|c| spec::is_sidecar(c));
    spec::containers(pod)
        .iter()
        .chain(sidecars)
        .filter_map(|c| {
            let record = runtime.container(&c.name).filter(|r| r.state == RuntimeState::Running)?;
            let (cpu, limit) = differs(c, record, pod.metadata.generation != Some(1))?;
            let memory = limit || requested.get(&record.id).is_some_and(|was| *was != resources::memory_request(c));
            let restarts = |key: &str, changed: bool| {
                let policy = c.resize_policy.iter().flatten().find(|p| p.resource_name == key);
                changed && policy.is_some_and(|p| p.restart_policy == "RestartContainer")
            };
            let method =
                if restarts("cpu", cpu) || restarts("memory", memory) { Method::Restart } else { Method::InPlace };
            (cpu || memory).then(|| ContainerResize { name: c.name.clone(), id: record.id.clone(), method })
        })
        .collect()
}

/// Whether CPU and memory in force are not those of the spec.
fn differs(c: &Container, record: &ContainerRecord, ever_changed: bool) -> Option<(bool, bool)> {
    let now = record.resources?;
    let r = c.resources.as_ref();
    let quota = resources::quota(amount(r, Side::Limits, "cpu").unwrap_or(0));
    let shares = resources::shares(resources::cpu_request(c));
    let memory = amount(r, Side::Limits, "memory").unwrap_or(0);
    // A runtime that computes shares back from a weight of v2 is off by a few: no change in a spec that never changed.
    let shares_differ = ever_changed && now.cpu_shares > 0 && now.cpu_shares != shares;
    let cpu = now.cpu_quota.max(0) != quota || shares_differ;
    Some((cpu, now.memory_limit.max(0) != memory))
}

/// Fills `resources` and `allocatedResources` of a container's status: what its spec allocates, as far as the container
/// runs with it; the limits in force where they differ.
pub fn show(c: &Container, record: Option<&ContainerRecord>, status: &mut ContainerStatus) {
    let Some(spec) = c.resources.as_ref().filter(|r| r.requests.is_some() || r.limits.is_some()) else {
        status.resources = record.map(|_| ResourceRequirements::default());
        return;
    };
    status.allocated_resources.clone_from(&spec.requests);
    let mut shown = ResourceRequirements { claims: None, ..spec.clone() };
    if let Some(now) = record.filter(|r| r.state == RuntimeState::Running).and_then(|r| r.resources)
        && let Some(limits) = &mut shown.limits
    {
        let quantity = podlab_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
        if limits.contains_key("cpu") && now.cpu_quota > 0 && now.cpu_period > 0 {
            let milli = now.cpu_quota * 1000 / now.cpu_period;
            let asked = amount(Some(spec), Side::Limits, "cpu").unwrap_or(0);
            // The kernel takes no quota below a millisecond; what asks for less is shown as it was asked for.
            let least = resources::MIN_QUOTA * 1000 / resources::CPU_PERIOD;
            if asked != milli && (asked > least || milli > least) {
                limits.insert(
                    "cpu".to_owned(),
                    quantity(if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") }),
                );
            }
        }
        if limits.contains_key("memory")
            && now.memory_limit > 0
            && amount(Some(spec), Side::Limits, "memory") != Some(now.memory_limit)
        {
            limits.insert("memory".to_owned(), quantity(now.memory_limit.to_string()));
        }
    }
    if record.is_some() {
        status.resources = Some(shown);
    }
}

#[cfg(test)]
mod tests {
    use podlab_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::{
        actions::tests::{mk_pod, record, with_sandbox},
        runtime::RuntimeResources,
    };

    #[test]
    fn a_limit_below_the_least_quota_is_shown_as_it_was_asked_for() {
        let limits = |cpu: &str| Some([("cpu".to_owned(), Quantity(cpu.to_owned()))].into());
        let mut r = record("c", RuntimeState::Running, 0);
        let shown = |cpu: &str, r: &ContainerRecord| {
            let resources = Some(ResourceRequirements { limits: limits(cpu), ..ResourceRequirements::default() });
            let c = Container { name: "c".into(), resources, ..Container::default() };
            let mut status = ContainerStatus::default();
            show(&c, Some(r), &mut status);
            status.resources.and_then(|r| r.limits).and_then(|l| l.get("cpu").cloned()).map(|q| q.0)
        };
        let force =
            |cpu_quota| Some(RuntimeResources { cpu_quota, cpu_period: 100_000, cpu_shares: 2, memory_limit: 0 });
        r.resources = force(1000);
        assert_eq!(shown("5m", &r).as_deref(), Some("5m"));
        assert_eq!(shown("20m", &r).as_deref(), Some("10m"));
        r.resources = force(2000);
        assert_eq!(shown("5m", &r).as_deref(), Some("20m"));
    }

    #[test]
    fn only_what_is_not_in_force_is_resized_and_by_the_policy() {
        let mut pod = mk_pod("Always", &[], &["c"]);
        let q = |v: &str| Quantity(v.to_owned());
        let limits = [("cpu".to_owned(), q("300m")), ("memory".to_owned(), q("64Mi"))].into();
        let requests = [("cpu".to_owned(), q("150m"))].into();
        let c = &mut pod.spec.as_mut().unwrap().containers[0];
        c.resources = Some(ResourceRequirements { limits: Some(limits), requests: Some(requests), claims: None });
        let with = |quota: i64, shares: i64, memory: i64| {
            let mut r = record("c", RuntimeState::Running, 0);
            r.resources = Some(RuntimeResources {
                cpu_quota: quota,
                cpu_period: 100_000,
                cpu_shares: shares,
                memory_limit: memory,
            });
            with_sandbox(vec![r])
        };
        let none = BTreeMap::new();
        assert!(plan(&pod, &with(30_000, 153, 64 << 20), &none).is_empty());
        assert_eq!(plan(&pod, &with(20_000, 102, 64 << 20), &none)[0].method, Method::InPlace);
        assert!(plan(&pod, &with_sandbox(vec![record("c", RuntimeState::Running, 0)]), &none).is_empty());
        // The smallest step of a request counts, though not before the spec ever changed.
        assert_eq!(plan(&pod, &with(30_000, 152, 64 << 20), &none)[0].method, Method::InPlace);
        pod.metadata.generation = Some(1);
        assert!(plan(&pod, &with(30_000, 152, 64 << 20), &none).is_empty());
        pod.metadata.generation = Some(2);
        pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![podlab_api::core::ContainerResizePolicy {
            resource_name: "memory".into(),
            restart_policy: "RestartContainer".into(),
        }]);
        assert_eq!(plan(&pod, &with(30_000, 153, 32 << 20), &none)[0].method, Method::Restart);
        assert_eq!(plan(&pod, &with(20_000, 153, 64 << 20), &none)[0].method, Method::InPlace);
        // The kernel knows no memory request; what it was is remembered.
        let now = with(30_000, 153, 64 << 20);
        let was = |bytes: i64| BTreeMap::from([(now.containers[0].id.clone(), bytes)]);
        assert!(plan(&pod, &now, &was(64 << 20)).is_empty());
        assert_eq!(plan(&pod, &now, &was(32 << 20))[0].method, Method::Restart);
    }
}
