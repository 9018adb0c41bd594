//! What a name stands for in the cluster.

use std::net::Ipv4Addr;

use podlab_api::{core::Service, discovery::EndpointSlice};
use podlab_client::reflector::Cache;

/// Everything the server knows.
#[derive(Debug)]
pub(super) struct Zone {
    pub(super) domain: String,
    pub(super) hosts: Vec<(String, Ipv4Addr)>,
    pub(super) services: Cache<Service>,
    pub(super) slices: Cache<EndpointSlice>,
}

/// A record's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// An address.
    A(Ipv4Addr),
    /// Another name.
    Cname(String),
    /// Port and target.
    Srv(u16, String),
    /// A name for an address.
    Ptr(String),
}

/// What there is under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The name exists; these are its records, perhaps of other types than was asked for.
    Records(Vec<Record>),
    /// The name does not exist.
    Nothing,
    /// The name is none of ours.
    Foreign,
}

/// A Service's endpoint as DNS knows it: host label, address, named ports with protocol and number.
struct Member {
    host: String,
    ip: Ipv4Addr,
    ports: Vec<(String, String, u16)>,
}

/// The label of an endpoint without a host name: its address with dashes.
fn dashed(ip: Ipv4Addr) -> String {
    ip.to_string().replace('.', "-")
}

impl Zone {
    /// Looks a name up; `name` is lower case without a final dot.
    pub(super) fn find(&self, name: &str) -> Found {
        if let Some((_, ip)) = self.hosts.iter().find(|(host, _)| host == name) {
            return Found::Records(vec![Record::A(*ip)]);
        }
        if let Some(reverse) = name.strip_suffix(".in-addr.arpa") {
            return self.reverse(reverse);
        }
        if name == self.domain {
            return Found::Records(Vec::new());
        }
        let Some(rest) = name.strip_suffix(&format!(".{}", self.domain)) else { return Found::Foreign };
        let labels: Vec<&str> = rest.split('.').collect();
        match labels[..] {
            ["dns-version"] | ["svc" | "pod"] => Found::Records(Vec::new()),
            [_, "svc" | "pod"] => Found::Records(Vec::new()),
            [service, namespace, "svc"] => self.service(namespace, service),
            [host, service, namespace, "svc"] => self.member(namespace, service, host),
            [port, protocol, service, namespace, "svc"] if port.starts_with('_') && protocol.starts_with('_') => {
                self.ports(namespace, service, &port[1..], &protocol[1..])
            }
            [ip, _, "pod"] => match ip.replace('-', ".").parse() {
                Ok(ip) => Found::Records(vec![Record::A(ip)]),
                Err(_) => Found::Nothing,
            },
            _ => Found::Nothing,
        }
    }

    fn cluster_ip(service: &Service) -> Option<Ipv4Addr> {
        service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()
    }

    fn members(&self, namespace: &str, service: &Service) -> Vec<Member> {
        let all = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
        let mine = |s: &std::sync::Arc<EndpointSlice>| {
            let label = s.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
            s.metadata.namespace.as_deref() == Some(namespace) && label == service.metadata.name.as_ref()
        };
        let mut out = Vec::new();
        for slice in self.slices.list().into_iter().filter(mine) {
            let port = |p: &podlab_api::discovery::EndpointPort| {
                let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into()).to_lowercase();
                Some((p.name.clone().unwrap_or_default(), protocol, u16::try_from(p.port?).ok()?))
            };
            let ports: Vec<_> = slice.ports.iter().flatten().filter_map(port).collect();
            for e in slice.endpoints.iter().flatten() {
                let ready = e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
                let ip = e.addresses.first().and_then(|a| a.parse().ok());
                if let Some(ip) = ip.filter(|_| ready || all) {
                    let host = e.hostname.clone().unwrap_or_else(|| dashed(ip));
                    out.push(Member { host, ip, ports: ports.clone() });
                }
            }
        }
        out
    }

    fn service(&self, namespace: &str, name: &str) -> Found {
        let Some(service) = self.services.get(namespace, name) else { return Found::Nothing };
        if let Some(target) = service.spec.as_ref().and_then(|s| s.external_name.clone()).filter(|n| !n.is_empty()) {
            return Found::Records(vec![Record::Cname(target)]);
        }
        match Self::cluster_ip(&service) {
            Some(ip) => Found::Records(vec![Record::A(ip)]),
            None => {
                let members = self.members(namespace, &service);
                if members.is_empty() {
                    Found::Nothing
                } else {
                    Found::Records(members.iter().map(|m| Record::A(m.ip)).collect())
                }
            }
        }
    }

    fn member(&self, namespace: &str, service: &str, host: &str) -> Found {
        let Some(service) = self.services.get(namespace, service) else { return Found::Nothing };
        if Self::cluster_ip(&service).is_some() {
            return Found::Nothing;
        }
        let hits: Vec<Record> =
            self.members(namespace, &service).iter().filter(|m| m.host == host).map(|m| Record::A(m.ip)).collect();
        if hits.is_empty() { Found::Nothing } else { Found::Records(hits) }
    }

    fn ports(&self, namespace: &str, name: &str, port: &str, protocol: &str) -> Found {
        let Some(service) = self.services.get(namespace, name) else { return Found::Nothing };
        let base = format!("{name}.{namespace}.svc.{}", self.domain);
        let records: Vec<Record> = if Self::cluster_ip(&service).is_some() {
            let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
            let hit = |p: &&podlab_api::core::ServicePort| {
                p.name.as_deref() == Some(port) && p.protocol.as_deref().unwrap_or("TCP").eq_ignore_ascii_case(protocol)
            };
            ports.filter(hit).filter_map(|p| Some(Record::Srv(u16::try_from(p.port).ok()?, base.clone()))).collect()
        } else {
            let members = self.members(namespace, &service);
            let of = |m: &Member| {
                let host = format!("{}.{base}", m.host);
                let hits = m.ports.iter().filter(|(n, p, _)| n == port && p == protocol);
                hits.map(|(_, _, number)| Record::Srv(*number, host.clone())).collect::<Vec<_>>()
            };
            members.iter().flat_map(of).collect()
        };
        if records.is_empty() { Found::Nothing } else { Found::Records(records) }
    }

    fn reverse(&self, labels: &str) -> Found {
        let octets: Vec<&str> = labels.split('.').rev().collect();
        let Ok(ip) = octets.join(".").parse::<Ipv4Addr>() else { return Found::Nothing };
        let by_ip = self.services.list().into_iter().find(|s| Self::cluster_ip(s) == Some(ip));
        match by_ip {
            Some(s) => {
                let (name, namespace) =
                    (s.metadata.name.clone().unwrap_or_default(), s.metadata.namespace.clone().unwrap_or_default());
                Found::Records(vec![Record::Ptr(format!("{name}.{namespace}.svc.{}", self.domain))])
            }
            None => Found::Nothing,
        }
    }
}
