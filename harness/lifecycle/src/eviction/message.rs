//! What is said about an evicted Pod. Source: k/k pkg/kubelet/eviction/helpers.go evictionMessage, eviction_manager.go
//! *LimitEviction, pkg/kubelet/types/pod_update.go IsCriticalPod.

use std::collections::BTreeMap;

use podlab_api::core::Pod;

use super::{Observations, PodUsage, Threshold};
use crate::{
    resources::{CRITICAL_PRIORITY, Side, amount, pod_limits, quantity},
    spec,
};

/// A number of bytes as `resource.Quantity` prints it: with the largest binary suffix that leaves it whole.
pub fn binary_si(n: i64) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut n, mut i) = (n, 0);
    while n != 0 && n % 1024 == 0 && i + 1 < SUFFIXES.len() {
        n /= 1024;
        i += 1;
    }
    format!("{n}{}", SUFFIXES[i])
}

/// Whether a Pod is never evicted: static, mirror of a static one, or of a system priority.
pub fn critical(pod: &Pod) -> bool {
    spec::is_static(pod) || spec::is_mirror(pod) || spec::pod_spec(pod).priority.is_some_and(|p| p >= CRITICAL_PRIORITY)
}

/// The message of an eviction for want of `resource`, and the annotations of its event.
pub fn message(
    resource: &str,
    pod: &Pod,
    usage: Option<&PodUsage>,
    thresholds: &[Threshold],
    seen: &Observations,
) -> (String, BTreeMap<String, String>) {
    let mut text = format!("The node was low on resource: {resource}. ");
    let of_resource =
        thresholds.iter().filter(|t| t.signal.resource() == resource).find_map(|t| Some((t, seen.get(&t.signal)?)));
    if let Some((t, o)) = of_resource {
        text.push_str(&format!(
            "Threshold quantity: {}, available: {}. ",
            t.value.shown(o.capacity),
            shown(resource, o.available)
        ));
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for c in usage.iter().flat_map(|u| &u.containers) {
        let Some((_, declared)) = spec::find(pod, &c.name) else { continue };
        let used = match resource {
            "memory" => c.memory,
            "ephemeral-storage" => Some(c.rootfs.bytes + c.logs.bytes),
            _ => None,
        };
        let Some(used) = used.and_then(|u| i64::try_from(u).ok()) else { continue };
        let request = amount(declared.resources.as_ref(), Side::Requests, resource).unwrap_or(0);
        if used <= request {
            continue;
        }
        let said = declared.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
        let request = said.map_or_else(|| "0".to_owned(), |q| q.0.clone());
        text.push_str(&format!(
            "Container {} was using {}, request is {request}, has larger consumption of {resource}. ",
            c.name,
            binary_si(used)
        ));
        names.push(c.name.clone());
        amounts.push(binary_si(used));
    }
    let annotations = [
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", amounts.join(",")),
        ("starved_resource", resource.to_owned()),
    ];
    (text, annotations.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

fn shown(resource: &str, n: i64) -> String {
    if matches!(resource, "memory" | "ephemeral-storage") { binary_si(n) } else { n.to_string() }
}

/// Why a Pod must go for the local storage it uses, if it must. `dedicated_imagefs` leaves writable layers out of a
/// container's account.
pub fn local_storage(pod: &Pod, usage: &PodUsage, dedicated_imagefs: bool) -> Option<String> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for v in spec::pod_spec(pod).volumes.iter().flatten() {
        let Some(limit) = v.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()) else { continue };
        let most = quantity("memory", limit);
        let used = usage.volumes.iter().find(|(n, _)| *n == v.name).map(|(_, f)| signed(f.bytes));
        if most > 0 && used.is_some_and(|u| u > most) {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", v.name, limit.0));
        }
    }
    if let Some(limit) = pod_limits(pod).get("ephemeral-storage")
        && signed(usage.ephemeral().bytes) > *limit
    {
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            binary_si(*limit)
        ));
    }
    for c in &usage.containers {
        let declared = spec::containers(pod).iter().find(|d| d.name == c.name);
        let limit = declared.and_then(|d| d.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage"));
        let Some(limit) = limit.filter(|l| quantity("memory", l) > 0) else { continue };
        let used = c.logs.bytes + if dedicated_imagefs { 0 } else { c.rootfs.bytes };
        if signed(used) > quantity("memory", limit) {
            return Some(format!("Container {} exceeded its local ephemeral storage limit \"{}\". ", c.name, limit.0));
        }
    }
    None
}
