//! The capsule's network: one bridge that connects the plane with the nodes, and routes to the nodes' Pods.

use std::{fs, io, net::IpAddr, os::fd::AsFd};

use podlab_cni::netlink::{Netlink, NetlinkError, RouteSpec};

use crate::spec::address;

const BRIDGE: &str = "nodes0";

fn failed(e: NetlinkError) -> io::Error {
    io::Error::other(e)
}

/// Makes the bridge with the plane's addresses. Runs in the capsule's network namespace.
pub(super) fn set_up() -> io::Result<()> {
    let link = Netlink::open().map_err(failed)?;
    let lo = link.link("lo").map_err(failed)?;
    link.set_up(lo.index).map_err(failed)?;
    let bridge = link.ensure_bridge(BRIDGE, None).map_err(failed)?;
    for ip in [address::PLANE, address::REGISTRY, address::PRIVATE_REGISTRY, address::DNS] {
        link.add_address(bridge.index, IpAddr::V4(ip), address::PLANE_PREFIX).map_err(failed)?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")
}

/// Plugs node `index` in: a veth whose other end is the node's eth0, and the route to its Pods.
pub(super) fn plug(index: u8, node_pid: i32) -> io::Result<()> {
    let link = Netlink::open().map_err(failed)?;
    let bridge = link.link(BRIDGE).map_err(failed)?;
    let netns = fs::File::open(format!("/proc/{node_pid}/ns/net"))?;
    let host = format!("node{index}");
    // A crashed node's link may still be on its way out; its name is free once it is deleted by hand.
    let _ = link.delete_link(&host);
    link.add_veth(&host, "eth0", netns.as_fd(), Some(bridge.index), None, None).map_err(failed)?;
    let spec = RouteSpec {
        destination: (IpAddr::V4(address::pod_network(index)), 24),
        gateway: Some(IpAddr::V4(address::node(index))),
        link: bridge.index,
    };
    link.add_route(&spec).map_err(failed)
}

/// The node's side: addresses and routes of eth0. Runs in the node's network namespace.
pub(crate) fn set_up_node(index: u8, nodes: u8) -> io::Result<()> {
    let link = Netlink::open().map_err(failed)?;
    for name in ["lo", "eth0"] {
        let l = link.link(name).map_err(failed)?;
        link.set_up(l.index).map_err(failed)?;
    }
    let eth0 = link.link("eth0").map_err(failed)?;
    link.add_address(eth0.index, IpAddr::V4(address::node(index)), address::PLANE_PREFIX).map_err(failed)?;
    let via = |destination, gateway| RouteSpec { destination, gateway: Some(IpAddr::V4(gateway)), link: eth0.index };
    let everywhere = (IpAddr::from([0, 0, 0, 0]), 0);
    link.add_route(&via(everywhere, address::PLANE)).map_err(failed)?;
    for other in (1..=nodes).filter(|o| *o != index) {
        link.add_route(&via((IpAddr::V4(address::pod_network(other)), 24), address::node(other))).map_err(failed)?;
    }
    for key in ["ipv4/ip_forward", "ipv4/conf/all/route_localnet"] {
        fs::write(format!("/proc/sys/net/{key}"), "1")?;
    }
    Ok(())
}
