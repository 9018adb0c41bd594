//! What the rules shall say: Service addresses and ports, and the endpoints behind each. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use podlab_api::{core::Service, discovery::EndpointSlice};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// An address and port of a Service: IPv4 address (`None` for a node port), IP protocol, port.
pub(super) type Front = (Option<Ipv4Addr>, u8, u16);

/// All Services of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Endpoints per front; empty when there are none, which is answered with a refusal.
    pub(super) fronts: BTreeMap<Front, BTreeSet<(Ipv4Addr, u16)>>,
    /// Fronts that send a client to the same endpoint each time (`sessionAffinity: ClientIP`).
    pub(super) sticky: BTreeSet<Front>,
}

/// IP protocol number of a Service port.
fn protocol(name: Option<&str>) -> u8 {
    match name {
        Some("UDP") => 17,
        Some("SCTP") => 132,
        _ => 6,
    }
}

impl Table {
    /// Computes the table from what the API holds.
    pub(super) fn compute(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>], node: &str) -> Self {
        let mut table = Self::default();
        for service in services {
            let Some(spec) = &service.spec else { continue };
            let external_name = spec.type_.as_deref() == Some("ExternalName");
            let addresses: Vec<Ipv4Addr> = spec
                .cluster_ips
                .iter()
                .flatten()
                .chain(&spec.cluster_ip)
                .chain(spec.external_ips.iter().flatten())
                .filter_map(|ip| ip.parse().ok())
                .collect();
            if external_name || addresses.is_empty() {
                continue;
            }
            let mine = |s: &&Arc<EndpointSlice>| {
                let label = s.metadata.labels.as_ref().and_then(|l| l.get(SERVICE_NAME));
                s.metadata.namespace == service.metadata.namespace
                    && label == service.metadata.name.as_ref()
                    && s.address_type == "IPv4"
            };
            let local_only = spec.internal_traffic_policy.as_deref() == Some("Local");
            let sticky = spec.session_affinity.as_deref() == Some("ClientIP");
            for port in spec.ports.iter().flatten() {
                let name = port.name.as_deref().unwrap_or_default();
                let number = protocol(port.protocol.as_deref());
                let backends = endpoints(slices.iter().filter(mine), name, number, local_only.then_some(node));
                let Ok(front_port) = u16::try_from(port.port) else { continue };
                let node_port = port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
                let own = addresses.iter().map(|ip| (Some(*ip), number, front_port));
                for front in own.chain(node_port.map(|p| (None, number, p))) {
                    table.fronts.insert(front, backends.clone());
                    if sticky {
                        table.sticky.insert(front);
                    }
                }
            }
        }
        table
    }
}

/// The usable endpoints of a port: ready ones, else those that still serve while terminating.
fn endpoints<'a>(
    slices: impl Iterator<Item = &'a Arc<EndpointSlice>>,
    port_name: &str,
    protocol_number: u8,
    only_on: Option<&str>,
) -> BTreeSet<(Ipv4Addr, u16)> {
    let (mut ready, mut serving) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices {
        let port = slice.ports.iter().flatten().find(|p| {
            p.name.as_deref().unwrap_or_default() == port_name && protocol(p.protocol.as_deref()) == protocol_number
        });
        let Some(port) = port.and_then(|p| u16::try_from(p.port?).ok()) else { continue };
        for e in slice.endpoints.iter().flatten().filter(|e| only_on.is_none_or(|n| e.node_name.as_deref() == Some(n)))
        {
            let Some(ip) = e.addresses.first().and_then(|a| a.parse().ok()) else { continue };
            let conditions = e.conditions.clone().unwrap_or_default();
            if conditions.ready.unwrap_or(true) {
                ready.insert((ip, port));
            } else if conditions.serving.unwrap_or(false) && conditions.terminating.unwrap_or(false) {
                serving.insert((ip, port));
            }
        }
    }
    if ready.is_empty() { serving } else { ready }
}
