//! Quality-of-service class of a Pod. Source: k/k pkg/apis/core/v1/helper/qos/qos.go.

use podlab_api::{
    core::{Pod, ResourceRequirements},
    parse_milli,
};

use crate::spec;

/// The class, from most to least protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Every container has equal requests and limits for CPU and memory.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl QosClass {
    /// The wire string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The class of a Pod: the recorded one if the status has it, else computed from the spec.
pub fn of(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => compute(pod),
    }
}

/// Computes the class from the spec; zero quantities count as absent. Pod-level resources decide alone when set.
pub fn compute(pod: &Pod) -> QosClass {
    let level = spec::pod_spec(pod).resources.as_ref().filter(|r| {
        positive(r, true, "cpu")
            || positive(r, true, "memory")
            || positive(r, false, "cpu")
            || positive(r, false, "memory")
    });
    let all: Vec<&ResourceRequirements> = match level {
        Some(r) => vec![r],
        None => {
            let both = spec::containers(pod).iter().chain(spec::init_containers(pod));
            static NONE: std::sync::LazyLock<ResourceRequirements> =
                std::sync::LazyLock::new(ResourceRequirements::default);
            both.map(|c| c.resources.as_ref().unwrap_or(&NONE)).collect()
        }
    };
    let any = all.iter().any(|r| ["cpu", "memory"].iter().any(|k| positive(r, true, k) || positive(r, false, k)));
    if !any {
        return QosClass::BestEffort;
    }
    let guaranteed = all.iter().all(|r| {
        ["cpu", "memory"].iter().all(|k| {
            let limit = value(r, true, k);
            limit.is_some_and(|l| l > 0) && value(r, false, k).is_none_or(|q| Some(q) == limit)
        })
    });
    if guaranteed { QosClass::Guaranteed } else { QosClass::Burstable }
}

fn value(r: &ResourceRequirements, limit: bool, key: &str) -> Option<i128> {
    let map = if limit { &r.limits } else { &r.requests };
    map.as_ref()?.get(key).and_then(|q| parse_milli(&q.0).ok())
}

fn positive(r: &ResourceRequirements, limit: bool, key: &str) -> bool {
    value(r, limit, key).is_some_and(|v| v > 0)
}
