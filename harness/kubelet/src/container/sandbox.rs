//! A Pod's sandbox configuration and cgroup paths. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_sandbox.go,
//! pkg/kubelet/cm/pod_container_manager_linux.go.

use std::collections::BTreeMap;

use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::{
    qos::{self, QosClass},
    resources, spec,
};

use super::{linux_resources, security};
use crate::{config::KubeletConfig, labels};

/// Longest kernel hostname.
const MAX_HOSTNAME: usize = 63;

/// Hostname and domain of a Pod; the domain is empty when it has none.
pub(crate) fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let s = spec::pod_spec(pod);
    if let Some(own) = s.hostname_override.as_deref().filter(|h| !h.is_empty()) {
        return (own.to_owned(), String::new());
    }
    let name = s.hostname.as_deref().filter(|h| !h.is_empty()).or(pod.metadata.name.as_deref()).unwrap_or_default();
    let cut: String = name.chars().take(MAX_HOSTNAME).collect();
    let hostname = cut.trim_end_matches(['-', '.']).to_owned();
    let domain = s.subdomain.as_deref().filter(|d| !d.is_empty()).map_or(String::new(), |sub| {
        format!("{sub}.{}.svc.{cluster_domain}", pod.metadata.namespace.as_deref().unwrap_or_default())
    });
    (hostname, domain)
}

/// Cgroup of a QoS class below the root; Guaranteed Pods sit directly in `/kubepods`.
pub(crate) fn qos_cgroup_path(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "/kubepods",
        QosClass::Burstable => "/kubepods/burstable",
        QosClass::BestEffort => "/kubepods/besteffort",
    }
}

/// Where Pods' cgroups lie.
pub(crate) const QOS_CGROUPS: [&str; 3] = ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"];

/// Cgroup of a Pod below the root.
pub(crate) fn pod_cgroup_path(pod: &Pod) -> String {
    format!("{}/pod{}", qos_cgroup_path(qos::of(pod)), pod.metadata.uid.as_deref().unwrap_or_default())
}

/// A Pod's name and UID for the CRI.
pub(crate) fn metadata(pod: &Pod, attempt: u32) -> v1::PodSandboxMetadata {
    let m = &pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    v1::PodSandboxMetadata { name: text(&m.name), uid: text(&m.uid), namespace: text(&m.namespace), attempt }
}

/// The sandbox configuration.
pub(crate) fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    dns: v1::DnsConfig,
    config: &KubeletConfig,
    memory: i64,
) -> v1::PodSandboxConfig {
    let meta = metadata(pod, attempt);
    let s = spec::pod_spec(pod);
    let (hostname, domain) = hostname_and_domain(pod, &config.cluster_domain);
    let fqdn = s.set_hostname_as_fqdn == Some(true) && !domain.is_empty();
    let hostname = if spec::host_network(pod) {
        String::new()
    } else if fqdn {
        format!("{hostname}.{domain}")
    } else {
        hostname
    };
    let mut labels: BTreeMap<String, String> = pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    labels.insert(labels::POD_NAME.to_owned(), meta.name.clone());
    labels.insert(labels::POD_NAMESPACE.to_owned(), meta.namespace.clone());
    labels.insert(labels::POD_UID.to_owned(), meta.uid.clone());
    let mut annotations: BTreeMap<String, String> =
        pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect();
    annotations.entry(labels::CONFIG_SOURCE.to_owned()).or_insert_with(|| "api".to_owned());
    if let Some(t) = &pod.metadata.creation_timestamp {
        annotations.entry(labels::CONFIG_SEEN.to_owned()).or_insert_with(|| t.0.to_string());
    }
    let log_directory = config.log_dir(&meta.namespace, &meta.name, &meta.uid).display().to_string();
    v1::PodSandboxConfig {
        metadata: Some(meta),
        hostname,
        log_directory,
        dns_config: Some(dns),
        port_mappings: port_mappings(pod),
        labels,
        annotations,
        linux: Some(linux(pod, config, memory)),
        windows: None,
    }
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    if spec::host_network(pod) {
        return Vec::new();
    }
    let sidecars = spec::init_containers(pod).iter().filter(|c| spec::is_sidecar(c));
    let ports = spec::containers(pod).iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .map(|p| v1::PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            }
            .into(),
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: p.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn linux(pod: &Pod, config: &KubeletConfig, memory: i64) -> v1::LinuxPodSandboxConfig {
    let s = spec::pod_spec(pod);
    let all = s.security_context.clone().unwrap_or_default();
    let int = |v: i64| v1::Int64Value { value: v };
    let privileged = spec::containers(pod)
        .iter()
        .chain(spec::init_containers(pod))
        .any(|c| c.security_context.as_ref().is_some_and(|s| s.privileged == Some(true)));
    let total = resources::pod_cgroup(pod);
    let overhead = s.overhead.as_ref().map(|o| {
        let of = |k: &str| o.get(k).map_or(0, |q| resources::quantity(k, q));
        v1::LinuxContainerResources {
            cpu_shares: resources::shares(of("cpu")),
            cpu_period: resources::CPU_PERIOD,
            cpu_quota: resources::quota(of("cpu")),
            memory_limit_in_bytes: of("memory"),
            ..Default::default()
        }
    });
    // Takes the container's formula for the score of a Pod without one of its own; the runtime overrides it for pause.
    let sum = v1::LinuxContainerResources {
        cpu_shares: total.cpu_shares,
        cpu_period: resources::CPU_PERIOD,
        cpu_quota: total.cpu_quota.unwrap_or(0),
        memory_limit_in_bytes: total.memory.unwrap_or(0),
        oom_score_adj: spec::containers(pod).first().map_or(0, |c| linux_resources(pod, c, memory).oom_score_adj),
        ..Default::default()
    };
    let sysctls = all.sysctls.clone().unwrap_or_default().into_iter().map(|s| (s.name, s.value)).collect();
    let prefix = config.cgroup_root.as_deref().unwrap_or_default().trim_end_matches('/');
    v1::LinuxPodSandboxConfig {
        cgroup_parent: if config.cgroup_root.is_some() {
            format!("{prefix}{}", pod_cgroup_path(pod))
        } else {
            String::new()
        },
        security_context: Some(v1::LinuxSandboxSecurityContext {
            namespace_options: Some(security::namespaces(pod, None)),
            selinux_options: None,
            run_as_user: all.run_as_user.map(int),
            run_as_group: all.run_as_group.map(int),
            readonly_rootfs: false,
            supplemental_groups: security::groups(pod),
            supplemental_groups_policy: security::groups_policy(pod).into(),
            privileged,
            seccomp: Some(v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sysctls,
        overhead,
        resources: Some(sum),
    }
}
