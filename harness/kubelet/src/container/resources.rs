//! A container's limits, as the CRI takes them. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container_linux.go.

use podlab_api::core::{Container, Pod};
use podlab_cri::v1;
use podlab_lifecycle::{
    qos,
    resources::{self, CPU_PERIOD, Side, amount},
};

/// Linux resources of a container on a node with `capacity` bytes of memory.
pub(crate) fn linux_resources(pod: &Pod, container: &Container, capacity: i64) -> v1::LinuxContainerResources {
    let r = container.resources.as_ref();
    let quota = resources::quota(amount(r, Side::Limits, "cpu").unwrap_or(0));
    let memory = amount(r, Side::Limits, "memory").unwrap_or(0);
    let best_effort = qos::of(pod) == qos::QosClass::BestEffort;
    let limits = r.and_then(|r| r.limits.as_ref());
    v1::LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        cpu_quota: quota,
        cpu_shares: if best_effort {
            resources::SHARES.0
        } else {
            resources::shares(resources::cpu_request(container))
        },
        memory_limit_in_bytes: memory,
        // The same limit with swap included means no swap.
        memory_swap_limit_in_bytes: memory,
        oom_score_adj: resources::oom_score_adj(pod, container, capacity),
        hugepage_limits: limits
            .into_iter()
            .flatten()
            .filter_map(|(k, q)| {
                let size = k.strip_prefix("hugepages-")?;
                let limit = u64::try_from(resources::quantity(k, q)).ok()?;
                Some(v1::HugepageLimit { page_size: page_size(size), limit })
            })
            .collect(),
        unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    }
}

/// `2Mi` → `2MB`, as the kernel names huge page sizes.
fn page_size(quantity: &str) -> String {
    match quantity.strip_suffix('i') {
        Some(short) => format!("{short}B"),
        None => quantity.to_owned(),
    }
}
