//! A Pod's resolver configuration. Source: k/k pkg/kubelet/network/dns/dns.go.

use std::collections::BTreeMap;

use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::spec;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// Something was left out of the configuration; the text is an event's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DnsWarning {
    /// Reason `DNSConfigForming`.
    Forming(String),
    /// Reason `MissingClusterDNS`.
    MissingClusterDns(String),
}

/// The node's side of the configuration.
pub(crate) struct NodeDns<'a> {
    pub(crate) cluster_dns: &'a [String],
    pub(crate) cluster_domain: &'a str,
    /// Contents of the node's resolv.conf.
    pub(crate) resolv_conf: &'a str,
}

/// Builds the configuration.
pub(crate) fn dns_config(pod: &Pod, node: &NodeDns<'_>) -> (v1::DnsConfig, Vec<DnsWarning>) {
    let s = spec::pod_spec(pod);
    let mut warnings = Vec::new();
    let host = parse(node.resolv_conf);
    let policy = s.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let on_host = spec::host_network(pod);
    let cluster = match policy {
        "None" => None,
        "ClusterFirstWithHostNet" => Some(true),
        "ClusterFirst" => Some(!on_host),
        _ => Some(false),
    };
    let mut config = match cluster {
        None => v1::DnsConfig::default(),
        Some(true) if !node.cluster_dns.is_empty() => cluster_first(pod, node, &host),
        Some(wants) => {
            if wants {
                warnings.push(DnsWarning::MissingClusterDns(format!(
                    "pod: \"{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"{policy}\" policy. Falling back to \"Default\" policy.",
                    spec::pod_label(pod)
                )));
            }
            host
        }
    };
    if let Some(own) = &s.dns_config {
        append_unique(&mut config.servers, own.nameservers.iter().flatten());
        append_unique(&mut config.searches, own.searches.iter().flatten());
        config.options = merge_options(&config.options, own.options.as_deref().unwrap_or_default());
    }
    limit(&mut config, &mut warnings);
    (config, warnings)
}

fn cluster_first(pod: &Pod, node: &NodeDns<'_>, host: &v1::DnsConfig) -> v1::DnsConfig {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let domain = node.cluster_domain;
    let mut searches = if domain.is_empty() {
        Vec::new()
    } else {
        vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()]
    };
    append_unique(&mut searches, host.searches.iter());
    v1::DnsConfig { servers: node.cluster_dns.to_vec(), searches, options: vec!["ndots:5".to_owned()] }
}

fn append_unique<'a>(to: &mut Vec<String>, from: impl Iterator<Item = &'a String>) {
    for item in from {
        if !to.contains(item) {
            to.push(item.clone());
        }
    }
}

/// Options merge by name, the Pod's winning; sorted by name, where upstream's order is Go's random map order.
fn merge_options(base: &[String], own: &[podlab_api::core::PodDNSConfigOption]) -> Vec<String> {
    let mut all: BTreeMap<String, Option<String>> = BTreeMap::new();
    for o in base {
        let (name, value) = o.split_once(':').map_or((o.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
        all.insert(name.to_owned(), value);
    }
    for o in own {
        if let Some(name) = &o.name {
            all.insert(name.clone(), o.value.clone());
        }
    }
    all.into_iter().map(|(n, v)| v.filter(|v| !v.is_empty()).map_or(n.clone(), |v| format!("{n}:{v}"))).collect()
}

fn limit(config: &mut v1::DnsConfig, warnings: &mut Vec<DnsWarning>) {
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        warnings.push(DnsWarning::Forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        )));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        warnings.push(DnsWarning::Forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        )));
    }
}

fn parse(text: &str) -> v1::DnsConfig {
    let mut out = v1::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                out.searches = words.map(|w| w.trim_end_matches('.').to_owned()).filter(|w| !w.is_empty()).collect()
            }
            Some("options") => out.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_choose_whose_servers_are_used() {
        let dns = ["10.96.0.10".to_owned()];
        let node = NodeDns {
            cluster_dns: &dns,
            cluster_domain: "cluster.local",
            resolv_conf: "nameserver 1.1.1.1\nsearch host.example\noptions edns0\n",
        };
        let mk = |policy: &str, host: bool| {
            let mut pod = Pod::default();
            pod.metadata.namespace = Some("ns".into());
            pod.spec = Some(podlab_api::core::PodSpec {
                dns_policy: Some(policy.into()),
                host_network: Some(host),
                ..Default::default()
            });
            dns_config(&pod, &node).0
        };
        assert_eq!(
            mk("ClusterFirst", false).searches,
            ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "host.example"]
        );
        assert_eq!(mk("ClusterFirst", true).servers, ["1.1.1.1"]);
        assert_eq!(mk("ClusterFirstWithHostNet", true).servers, ["10.96.0.10"]);
        assert_eq!(mk("Default", false).options, ["edns0"]);
        assert_eq!(mk("None", false), v1::DnsConfig::default());
    }
}
