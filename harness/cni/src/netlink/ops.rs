//! The requests: links, addresses, routes. Source: Linux uapi/linux/{rtnetlink,if_link,if_addr}.h.

use std::{
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::errno::Errno;

use super::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, Netlink, NetlinkError,
    message::{Message, Received, attributes},
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BRPORT_MODE: u16 = 4;
const IFF_UP: u32 = 1;
const AF_BRIDGE: u8 = 7;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTN_UNICAST: u8 = 1;
const RTPROT_BOOT: u8 = 3;
const RT_TABLE_MAIN: u8 = 254;

/// What is known of a link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// MAC address as `aa:bb:…`; empty when it has none.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether `IFF_UP` is set.
    pub up: bool,
    /// Index of the bridge it is a port of, or 0.
    pub master: u32,
}

/// A route to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destination network.
    pub destination: (IpAddr, u8),
    /// Next hop; `None` for a route on the link itself.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface index; 0 lets the kernel choose by the gateway.
    pub link: u32,
}

/// `ifinfomsg`.
fn ifinfo(family: u8, index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut b = [0; 16];
    b[0] = family;
    b[4..8].copy_from_slice(&index.to_ne_bytes());
    b[8..12].copy_from_slice(&flags.to_ne_bytes());
    b[12..16].copy_from_slice(&change.to_ne_bytes());
    b
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

const CREATE: u16 = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
const SET: u16 = NLM_F_REQUEST | NLM_F_ACK;

impl Netlink {
    /// Makes a bridge, up. An existing one of that name is fine.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn ensure_bridge(&self, name: &str, mtu: Option<u32>) -> Result<Link, NetlinkError> {
        let message = Message::new(RTM_NEWLINK, CREATE, &ifinfo(0, 0, IFF_UP, IFF_UP))
            .text(IFLA_IFNAME, name)
            .with(|m| mtu.map_or(m.clone(), |mtu| m.u32(IFLA_MTU, mtu)))
            .begin(IFLA_LINKINFO)
            .text(IFLA_INFO_KIND, "bridge")
            .end();
        match self.request(&format!("create bridge {name}"), message) {
            Err(e) if e.errno() == Some(Errno::EEXIST) => {}
            other => drop(other?),
        }
        let link = self.link(name)?;
        if !link.up {
            self.set_up(link.index)?;
        }
        Ok(link)
    }

    /// Makes a veth pair: `host` here, up and a port of `master` when given; `peer` inside `netns`, still down.
    ///
    /// # Errors
    /// What the kernel refuses: `EEXIST` when either name is taken.
    pub fn add_veth(
        &self,
        host: &str,
        peer: &str,
        netns: BorrowedFd<'_>,
        master: Option<u32>,
        mtu: Option<u32>,
        peer_mac: Option<[u8; 6]>,
    ) -> Result<(), NetlinkError> {
        let fd = u32::try_from(netns.as_raw_fd()).unwrap_or(0);
        let message = Message::new(RTM_NEWLINK, CREATE, &ifinfo(0, 0, IFF_UP, IFF_UP))
            .text(IFLA_IFNAME, host)
            .with(|m| mtu.map_or(m.clone(), |mtu| m.u32(IFLA_MTU, mtu)))
            .with(|m| master.map_or(m.clone(), |index| m.u32(IFLA_MASTER, index)))
            .begin(IFLA_LINKINFO)
            .text(IFLA_INFO_KIND, "veth")
            .begin(IFLA_INFO_DATA)
            .begin(VETH_INFO_PEER)
            .raw(&ifinfo(0, 0, 0, 0))
            .text(IFLA_IFNAME, peer)
            .with(|m| mtu.map_or(m.clone(), |mtu| m.u32(IFLA_MTU, mtu)))
            .with(|m| peer_mac.map_or(m.clone(), |mac| m.attr(IFLA_ADDRESS, &mac)))
            .u32(IFLA_NET_NS_FD, fd)
            .end()
            .end()
            .end();
        self.request(&format!("create veth {host}"), message).map(drop)
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        self.request("set link up", Message::new(RTM_SETLINK, SET, &ifinfo(0, index, IFF_UP, IFF_UP))).map(drop)
    }

    /// Sets a link down.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        self.request("set link down", Message::new(RTM_SETLINK, SET, &ifinfo(0, index, 0, IFF_UP))).map(drop)
    }

    /// Lets a bridge port send a frame back out of the port it came from (a Pod that reaches itself by its Service).
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set_hairpin(&self, index: u32) -> Result<(), NetlinkError> {
        let message = Message::new(RTM_SETLINK, SET, &ifinfo(AF_BRIDGE, index, 0, 0))
            .begin(IFLA_PROTINFO)
            .attr(IFLA_BRPORT_MODE, &[1])
            .end();
        self.request("set hairpin mode", message).map(drop)
    }

    /// Deletes a link; a veth takes its peer along.
    ///
    /// # Errors
    /// [`NetlinkError::NoLink`] when there is none of that name, or what the kernel refuses.
    pub fn delete_link(&self, name: &str) -> Result<(), NetlinkError> {
        let message = Message::new(RTM_DELLINK, SET, &ifinfo(0, 0, 0, 0)).text(IFLA_IFNAME, name);
        match self.request(&format!("delete link {name}"), message) {
            Err(e) if e.errno() == Some(Errno::ENODEV) => Err(NetlinkError::NoLink(name.to_owned())),
            other => other.map(drop),
        }
    }

    /// Looks a link up by name.
    ///
    /// # Errors
    /// [`NetlinkError::NoLink`] when there is none.
    pub fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        let message = Message::new(RTM_GETLINK, SET, &ifinfo(0, 0, 0, 0)).text(IFLA_IFNAME, name);
        match self.request(&format!("get link {name}"), message) {
            Err(e) if e.errno() == Some(Errno::ENODEV) => Err(NetlinkError::NoLink(name.to_owned())),
            other => other?.iter().find_map(read_link).ok_or_else(|| NetlinkError::NoLink(name.to_owned())),
        }
    }

    /// All links of the namespace.
    ///
    /// # Errors
    /// When the dump fails.
    pub fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let message = Message::new(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, &ifinfo(0, 0, 0, 0));
        Ok(self.request("list links", message)?.iter().filter_map(read_link).collect())
    }

    /// Adds an address to a link; one that is there already is fine.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn add_address(&self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let mut fixed = [family(ip), prefix, 0, 0, 0, 0, 0, 0];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        let bytes = octets(ip);
        let message = Message::new(RTM_NEWADDR, CREATE, &fixed)
            .attr(IFA_LOCAL, &bytes)
            .attr(IFA_ADDRESS, &bytes)
            // Duplicate address detection would leave an IPv6 address unusable for a second.
            .with(|m| if ip.is_ipv6() { m.u32(IFA_FLAGS, IFA_F_NODAD) } else { m });
        match self.request(&format!("add address {ip}/{prefix}"), message) {
            Err(e) if e.errno() == Some(Errno::EEXIST) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The addresses of a link.
    ///
    /// # Errors
    /// When the dump fails.
    pub fn addresses(&self, index: u32) -> Result<Vec<(IpAddr, u8)>, NetlinkError> {
        let message = Message::new(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, &[0; 8]);
        let all = self.request("list addresses", message)?;
        Ok(all.iter().filter_map(read_address).filter(|(i, ..)| *i == index).map(|(_, ip, len)| (ip, len)).collect())
    }

    /// Adds or replaces a route in the main table.
    ///
    /// # Errors
    /// What the kernel refuses, e.g. `ENETUNREACH` for a gateway that is not on a link.
    pub fn add_route(&self, route: &RouteSpec) -> Result<(), NetlinkError> {
        let (ip, prefix) = route.destination;
        self.request(
            &format!("add route {ip}/{prefix}"),
            route_message(RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, route),
        )
        .map(drop)
    }

    /// Deletes a route of the main table; one that is not there is fine.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn delete_route(&self, route: &RouteSpec) -> Result<(), NetlinkError> {
        match self.request("delete route", route_message(RTM_DELROUTE, SET, route)) {
            Err(e) if e.errno() == Some(Errno::ESRCH) => Ok(()),
            other => other.map(drop),
        }
    }

    /// How many routes the namespace has, in all tables; for checks that nothing was left behind.
    ///
    /// # Errors
    /// When the dump fails.
    pub fn route_count(&self) -> Result<usize, NetlinkError> {
        let message = Message::new(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, &[0; 12]);
        Ok(self.request("list routes", message)?.len())
    }
}

fn route_message(kind: u16, flags: u16, route: &RouteSpec) -> Message {
    let (ip, prefix) = route.destination;
    // A route without a gateway reaches its destination on the link itself.
    let scope = if route.gateway.is_some() { 0 } else { 253 };
    let fixed = [family(ip), prefix, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST, 0, 0, 0, 0];
    Message::new(kind, flags, &fixed)
        .with(|m| if prefix > 0 { m.attr(RTA_DST, &octets(ip)) } else { m })
        .with(|m| route.gateway.map_or(m.clone(), |gw| m.attr(RTA_GATEWAY, &octets(gw))))
        .with(|m| if route.link > 0 { m.u32(RTA_OIF, route.link) } else { m })
}

fn number(b: &[u8]) -> u32 {
    b.get(0..4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

fn read_link(m: &Received) -> Option<Link> {
    if m.kind != RTM_NEWLINK || m.body.len() < 16 {
        return None;
    }
    let mut link = Link { index: number(&m.body[4..8]), up: number(&m.body[8..12]) & IFF_UP != 0, ..Link::default() };
    for (kind, value) in attributes(&m.body[16..]) {
        match kind {
            IFLA_IFNAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
            IFLA_ADDRESS => link.mac = value.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"),
            IFLA_MTU => link.mtu = number(value),
            IFLA_MASTER => link.master = number(value),
            _ => {}
        }
    }
    Some(link)
}

fn read_address(m: &Received) -> Option<(u32, IpAddr, u8)> {
    if m.kind != RTM_NEWADDR || m.body.len() < 8 {
        return None;
    }
    let attrs = attributes(&m.body[8..]);
    // IFA_LOCAL is the own end of a point-to-point link; IPv6 has only IFA_ADDRESS.
    let raw = attrs.iter().find(|(k, _)| *k == IFA_LOCAL).or_else(|| attrs.iter().find(|(k, _)| *k == IFA_ADDRESS))?.1;
    let ip = match raw.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(raw).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(raw).ok()?),
        _ => return None,
    };
    Some((number(&m.body[4..8]), ip, m.body[1]))
}
