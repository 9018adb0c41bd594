//! `bridge`: a veth pair between the container and a bridge of the node, addresses from the IPAM plugin, and static
//! addresses asked for by Calico's annotation. Source: containernetworking/plugins plugins/main/bridge; annotation:
//! projectcalico/calico cni-plugin/pkg/k8s/k8s.go.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
};

use nix::errno::Errno;
use podlab_mutant::{self as mutant, Mutant};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    chain,
    netlink::{Netlink, NetlinkError, RouteSpec},
    nft::{Batch, ChainType, Expr, Hook, expr},
    plugins::netlink,
    types::{CniError, CniResult, Command, Interface, Invocation, Route, parse_cidr},
};

const IP_ADDRS: &str = "cni.projectcalico.org/ipAddrs";

pub(super) fn run(i: &Invocation) -> Result<Option<CniResult>, CniError> {
    match i.command {
        Command::Add => add(i).map(Some),
        Command::Del => del(i).map(|()| None),
        Command::Check => check(i).map(|()| None),
        Command::Status | Command::Gc => delegate(i, None).map(|_| None),
        Command::Version => Ok(None),
    }
}

/// Calls the IPAM plugin with the same environment and configuration, plus an address asked for.
fn delegate(i: &Invocation, ip: Option<&str>) -> Result<Option<CniResult>, CniError> {
    let Some(kind) = i.config.ipam.get("type").and_then(Value::as_str).filter(|k| !k.is_empty()) else {
        return Ok(None);
    };
    let mut invocation = i.clone();
    if let Some(ip) = ip {
        let more = format!("IP={ip}");
        invocation.args = if i.args.is_empty() { more } else { format!("{};{more}", i.args) };
    }
    chain::invoke(kind, &invocation, chain::Mode::of_process())
}

/// The bridge's name from the configuration.
fn bridge_name(i: &Invocation) -> &str {
    i.config.text("bridge").filter(|b| !b.is_empty()).unwrap_or("cni0")
}

fn mtu(i: &Invocation) -> Option<u32> {
    i.config.number("mtu").and_then(|m| u32::try_from(m).ok()).filter(|m| *m > 0)
}

/// A host-side name that is the same for every attempt of one attachment, so that DEL finds it without a result.
fn host_name(i: &Invocation) -> String {
    let digest = Sha256::digest(format!("{}\n{}\n{}", i.config.name, i.container_id, i.ifname));
    digest.iter().take(4).fold("veth".to_owned(), |name, b| format!("{name}{b:02x}"))
}

/// The static address of Calico's annotation, if the runtime handed the Pod's annotations over.
fn annotated_ip(i: &Invocation) -> Result<Option<String>, CniError> {
    let Some(annotations) = i.config.runtime_config.get("io.kubernetes.cri.pod-annotations") else { return Ok(None) };
    let Some(text) = annotations.get(IP_ADDRS).and_then(Value::as_str) else { return Ok(None) };
    let wrap =
        |why: String| CniError::other(format!("failed to parse IPs {text} for annotation \"{IP_ADDRS}\": {why}"));
    let list: Vec<String> =
        serde_json::from_str(text).map_err(|e| wrap(format!("failed to parse '{text}' as JSON: {e}")))?;
    if list.is_empty() {
        return Err(CniError::other(format!("annotation \"{IP_ADDRS}\" specified but empty")));
    }
    let mut seen = BTreeMap::new();
    for ip in &list {
        let parsed: IpAddr = ip.parse().map_err(|_| wrap(format!("invalid IP format: {ip}")))?;
        let family = if parsed.is_ipv4() { "IPv4" } else { "IPv6" };
        if seen.insert(family, ip).is_some() {
            return Err(CniError::other(format!(
                "cannot have more than one {family} address for \"{IP_ADDRS}\" annotation"
            )));
        }
    }
    Ok(Some(list.join(",")))
}

fn add(i: &Invocation) -> Result<CniResult, CniError> {
    let netns = i.netns.as_ref().ok_or_else(|| CniError::new(CniError::ENVIRONMENT, "CNI_NETNS missing"))?;
    if i.config.flag("hairpinMode") && i.config.flag("promiscMode") {
        return Err(CniError::new(CniError::CONFIG, "cannot set hairpin mode and promiscuous mode at the same time"));
    }
    let static_ip = annotated_ip(i)?.filter(|_| !mutant::is(Mutant::AnnotationIsIgnored));
    let host = Netlink::open().map_err(netlink("failed to open netlink"))?;
    let bridge = match host.link(bridge_name(i)) {
        Ok(link) if link.up => link,
        _ => host.ensure_bridge(bridge_name(i), mtu(i)).map_err(netlink("failed to create bridge"))?,
    };
    let file =
        File::open(netns).map_err(|e| CniError::other(format!("failed to open netns \"{}\": {e}", netns.display())))?;
    let inside = Netlink::open_in(netns).map_err(netlink("failed to open netns"))?;
    let name = host_name(i);
    // The name is derived from the attachment: one left behind by a killed attempt is in the way and nobody else's.
    let mut made = host.add_veth(&name, &i.ifname, file.as_fd(), Some(bridge.index), mtu(i), None);
    if matches!(&made, Err(e) if e.errno() == Some(Errno::EEXIST)) && inside.link(&i.ifname).is_err() {
        let _ = host.delete_link(&name);
        made = host.add_veth(&name, &i.ifname, file.as_fd(), Some(bridge.index), mtu(i), None);
    }
    made.map_err(|e| match e.errno() {
        Some(Errno::EEXIST) => CniError::other(format!("container veth name (\"{}\") already exists", i.ifname)),
        _ => netlink("failed to create veth")(e),
    })?;
    let result = configure(i, &host, &inside, &name, static_ip.as_deref());
    if result.is_err() {
        let _ = host.delete_link(&name);
        let mut undo = i.clone();
        undo.command = Command::Del;
        let _ = delegate(&undo, None);
    }
    let mut result = result?;
    result.interfaces.insert(0, Interface { name: bridge.name, mac: bridge.mac, mtu: None, sandbox: String::new() });
    for ip in &mut result.ips {
        ip.interface = Some(2);
    }
    Ok(result)
}

/// Everything after the pair exists; the interfaces of the result are host veth and container link.
fn configure(
    i: &Invocation,
    host: &Netlink,
    inside: &Netlink,
    name: &str,
    ip: Option<&str>,
) -> Result<CniResult, CniError> {
    let gateway_wanted = i.config.flag("isGateway") || i.config.flag("isDefaultGateway");
    let mut result = delegate(i, ip)?.unwrap_or_default();
    if i.config.ipam.get("type").is_some() && result.ips.is_empty() {
        return Err(CniError::other("IPAM plugin returned missing IP config"));
    }
    let veth = host.link(name).map_err(netlink("failed to find host veth"))?;
    if i.config.flag("hairpinMode") {
        host.set_hairpin(veth.index).map_err(netlink("failed to set hairpin mode"))?;
    }
    let peer = inside.link(&i.ifname).map_err(netlink("failed to find container interface"))?;
    inside.set_up(peer.index).map_err(netlink("failed to set container interface up"))?;
    let bridge = host.link(bridge_name(i)).map_err(netlink("failed to find bridge"))?;
    let mut defaults = Vec::new();
    for config in &result.ips {
        let (address, prefix) = config.parse()?;
        inside.add_address(peer.index, address, prefix).map_err(netlink("failed to add container address"))?;
        if let (true, Some(gateway)) = (gateway_wanted, config.gateway) {
            host.add_address(bridge.index, gateway, prefix).map_err(netlink("failed to set bridge address"))?;
            let (family, any) =
                if gateway.is_ipv4() { ("ipv4/ip_forward", "0.0.0.0/0") } else { ("ipv6/conf/all/forwarding", "::/0") };
            enable_forwarding(family)?;
            if i.config.flag("isDefaultGateway") {
                defaults.push(Route { dst: any.to_owned(), gw: Some(gateway) });
            }
        }
    }
    result.routes.extend(defaults);
    for route in &result.routes {
        let destination = parse_cidr(&route.dst)?;
        let same_family =
            |c: &&crate::types::IpConfig| c.gateway.is_some_and(|g| g.is_ipv4() == destination.0.is_ipv4());
        let gateway = route.gw.or_else(|| result.ips.iter().find(same_family).and_then(|c| c.gateway));
        let spec = RouteSpec { destination, gateway, link: peer.index };
        inside.add_route(&spec).map_err(netlink("failed to add route"))?;
    }
    if i.config.flag("ipMasq") {
        masquerade(i, &result)?;
    }
    let sandbox = i.netns.as_ref().map(|n| n.display().to_string()).unwrap_or_default();
    result.interfaces = vec![
        Interface { name: veth.name, mac: veth.mac, mtu: None, sandbox: String::new() },
        Interface { name: i.ifname.clone(), mac: peer.mac, mtu: Some(peer.mtu), sandbox },
    ];
    if !i.config.dns.is_empty() {
        result.dns = i.config.dns.clone();
    }
    Ok(result)
}

fn enable_forwarding(key: &str) -> Result<(), CniError> {
    let path = format!("/proc/sys/net/{key}");
    if std::fs::read_to_string(&path).is_ok_and(|v| v.trim() == "1") {
        return Ok(());
    }
    std::fs::write(&path, "1").map_err(|e| CniError::other(format!("failed to enable forwarding: {e}")))
}

/// Traffic from the network to anywhere else leaves with the node's address. One chain per network, made once.
fn masquerade(i: &Invocation, result: &CniResult) -> Result<(), CniError> {
    const TABLE: &str = "podlab-cni";
    for config in &result.ips {
        let (IpAddr::V4(ip), prefix) = config.parse()? else { continue };
        let mut batch = Batch::new();
        batch.table(TABLE).base_chain(TABLE, "postrouting", ChainType::Nat, Hook::Postrouting, 100);
        let chain = format!("masq-{}", i.config.name);
        batch.new_chain(TABLE, &chain);
        let mut rule = expr::in_network(expr::saddr, ip, prefix, true).to_vec();
        rule.extend(expr::in_network(expr::daddr, ip, prefix, false));
        rule.extend(expr::in_network(expr::daddr, Ipv4Addr::new(224, 0, 0, 0), 4, false));
        rule.push(Expr::Masquerade);
        batch.rule(TABLE, &chain, &rule).rule(TABLE, "postrouting", &[Expr::Jump(chain.clone())]);
        match batch.commit() {
            Err(e) if e.errno() == Some(Errno::EEXIST) => {}
            other => other.map_err(netlink("failed to set up masquerading"))?,
        }
    }
    Ok(())
}

fn del(i: &Invocation) -> Result<(), CniError> {
    let host = Netlink::open().map_err(netlink("failed to open netlink"))?;
    match host.delete_link(&host_name(i)) {
        Ok(()) | Err(NetlinkError::NoLink(_)) => {}
        Err(e) => return Err(netlink("failed to delete veth")(e)),
    }
    delegate(i, None).map(drop)
}

fn check(i: &Invocation) -> Result<(), CniError> {
    let previous = i.config.prev_result.as_ref();
    let previous = previous.ok_or_else(|| CniError::new(CniError::CONFIG, "Required prevResult missing"))?;
    let netns = i.netns.as_ref().ok_or_else(|| CniError::new(CniError::ENVIRONMENT, "CNI_NETNS missing"))?;
    let host = Netlink::open().map_err(netlink("failed to open netlink"))?;
    let bridge = host.link(bridge_name(i)).map_err(netlink("bridge is gone"))?;
    let veth = host.link(&host_name(i)).map_err(netlink("host veth is gone"))?;
    if veth.master != bridge.index {
        return Err(CniError::other(format!("{} is not a port of {}", veth.name, bridge.name)));
    }
    let inside = Netlink::open_in(netns).map_err(netlink("failed to open netns"))?;
    let link = inside.link(&i.ifname).map_err(netlink("container interface is gone"))?;
    let have = inside.addresses(link.index).map_err(netlink("failed to list addresses"))?;
    for config in &previous.ips {
        let wanted = config.parse()?;
        if !have.contains(&wanted) {
            return Err(CniError::other(format!("Failed to find {} on {}", config.address, i.ifname)));
        }
    }
    delegate(i, None).map(drop)
}
