//! `portmap`: host ports, as elements of two nftables maps (one per port, one per address and port), so that adding a
//! Pod never adds a rule. Source: containernetworking/plugins plugins/meta/portmap (nftables backend).

use std::net::{IpAddr, Ipv4Addr};

use serde::Deserialize;

use crate::{
    nft::{Batch, ChainType, ElementData, Expr, Hook, SetData, address_port_key, expr, port_key},
    plugins::netlink,
    types::{CniError, CniResult, Command, Invocation},
};

const TABLE: &str = "cni_hostport";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    #[serde(alias = "HostPort")]
    host_port: i64,
    #[serde(alias = "ContainerPort")]
    container_port: i64,
    #[serde(default, alias = "Protocol")]
    protocol: String,
    #[serde(default, alias = "HostIP", alias = "hostIP")]
    host_ip: String,
}

pub(super) fn run(i: &Invocation) -> Result<Option<CniResult>, CniError> {
    match i.command {
        Command::Add => {
            let Some(previous) = i.config.prev_result.clone() else {
                return Err(CniError::new(CniError::CONFIG, "must be called as chained plugin"));
            };
            let mappings = mappings(i)?;
            if let (false, Some(ip)) = (mappings.is_empty(), address(&previous)) {
                ensure_table()?;
                let mut batch = Batch::new();
                elements(&mut batch, &mappings, ip, false)?;
                batch.commit().map_err(netlink("host port is taken or could not be set"))?;
            }
            Ok(Some(previous))
        }
        Command::Del => {
            let mappings = mappings(i)?;
            let ip = i.config.prev_result.as_ref().and_then(address).unwrap_or(Ipv4Addr::UNSPECIFIED);
            for mapping in mappings {
                let mut batch = Batch::new();
                elements(&mut batch, &[mapping], ip, true)?;
                // Not there any more is what DEL wants.
                let _ = batch.commit();
            }
            Ok(None)
        }
        Command::Check | Command::Status | Command::Gc | Command::Version => Ok(None),
    }
}

fn mappings(i: &Invocation) -> Result<Vec<Mapping>, CniError> {
    let Some(given) = i.config.runtime_config.get("portMappings") else { return Ok(Vec::new()) };
    let all = Vec::<Mapping>::deserialize(given)
        .map_err(|e| CniError::new(CniError::DECODE, format!("portMappings: {e}")))?;
    Ok(all.into_iter().filter(|m| m.host_port != 0).collect())
}

fn address(result: &CniResult) -> Option<Ipv4Addr> {
    result.ips.iter().find_map(|ip| match ip.parse() {
        Ok((IpAddr::V4(v4), _)) => Some(v4),
        _ => None,
    })
}

/// The table, its maps and the three rules that use them; made once.
fn ensure_table() -> Result<(), CniError> {
    let mut probe = Batch::new();
    probe.table(TABLE).new_chain(TABLE, "ready");
    match probe.commit() {
        Err(e) if e.errno() == Some(nix::errno::Errno::EEXIST) => return Ok(()),
        other => other.map_err(netlink("nftables table cni_hostport"))?,
    }
    let mut b = Batch::new();
    b.set(TABLE, "ports", 8, SetData::Value(8)).set(TABLE, "hostip_ports", 12, SetData::Value(8));
    let r = expr::REG;
    let local =
        [Expr::DestinationType { dreg: r }, Expr::Cmp { sreg: r, equal: true, value: 2_u32.to_ne_bytes().to_vec() }];
    for (chain, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        b.base_chain(TABLE, chain, ChainType::Nat, hook, -100);
        let mut by_ip = vec![expr::daddr(r), Expr::Meta { key: expr::meta::L4PROTO, dreg: r + 1 }, expr::dport(r + 2)];
        by_ip.push(Expr::MapLookup { set: "hostip_ports".into(), sreg: r, dreg: r });
        by_ip.push(Expr::Dnat { address: r, port: Some(r + 1) });
        b.rule(TABLE, chain, &by_ip);
        let mut by_port = local.to_vec();
        by_port.extend([Expr::Meta { key: expr::meta::L4PROTO, dreg: r }, expr::dport(r + 1)]);
        by_port.push(Expr::MapLookup { set: "ports".into(), sreg: r, dreg: r });
        by_port.push(Expr::Dnat { address: r, port: Some(r + 1) });
        b.rule(TABLE, chain, &by_port);
    }
    // Traffic from the host's loopback must come back through the host.
    b.base_chain(TABLE, "masquerading", ChainType::Nat, Hook::Postrouting, 100);
    let mut from_loopback = expr::in_network(expr::saddr, Ipv4Addr::new(127, 0, 0, 0), 8, true).to_vec();
    from_loopback.push(Expr::Masquerade);
    b.rule(TABLE, "masquerading", &from_loopback);
    b.commit().map_err(netlink("nftables table cni_hostport"))?;
    // Without this the kernel drops packets from 127.0.0.1 that leave through a bridge.
    let _ = std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1");
    Ok(())
}

fn elements(batch: &mut Batch, mappings: &[Mapping], ip: Ipv4Addr, delete: bool) -> Result<(), CniError> {
    for m in mappings {
        let port = |n: i64, what: &str| {
            u16::try_from(n)
                .ok()
                .filter(|p| *p > 0)
                .ok_or_else(|| CniError::other(format!("Invalid {what} port number: {n}")))
        };
        let (host, container) = (port(m.host_port, "host")?, port(m.container_port, "container")?);
        let protocol = match m.protocol.to_ascii_lowercase().as_str() {
            "" | "tcp" => 6,
            "udp" => 17,
            "sctp" => 132,
            other => return Err(CniError::other(format!("unknown protocol {other:?}"))),
        };
        let [hi, lo] = container.to_be_bytes();
        let mut value = ip.octets().to_vec();
        value.extend_from_slice(&[hi, lo, 0, 0]);
        let (set, key) = match m.host_ip.parse::<Ipv4Addr>() {
            Ok(host_ip) if !host_ip.is_unspecified() => ("hostip_ports", address_port_key(host_ip, protocol, host)),
            _ => ("ports", port_key(protocol, host)),
        };
        if delete {
            batch.delete_elements(TABLE, set, &[(key, ElementData::None)]);
        } else {
            batch.add_elements(TABLE, set, &[(key, ElementData::Value(value))]);
        }
    }
    Ok(())
}
