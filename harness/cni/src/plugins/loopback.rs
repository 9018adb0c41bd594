//! `loopback`: sets `lo` up in the container. Source: containernetworking/plugins plugins/main/loopback.

use crate::{
    netlink::Netlink,
    plugins::netlink,
    types::{CniError, CniResult, Command, Interface, Invocation, IpConfig},
};

pub(super) fn run(i: &Invocation) -> Result<Option<CniResult>, CniError> {
    let Some(netns) = &i.netns else { return Ok(None) };
    match i.command {
        Command::Add => {
            let socket = Netlink::open_in(netns).map_err(netlink("failed to open netns"))?;
            let lo = socket.link("lo").map_err(netlink("failed to find lo"))?;
            socket.set_up(lo.index).map_err(netlink("failed to set lo up"))?;
            if let Some(previous) = i.config.prev_result.clone() {
                return Ok(Some(previous));
            }
            let addresses = socket.addresses(lo.index).map_err(netlink("failed to list addresses of lo"))?;
            let sandbox = netns.display().to_string();
            let interface = Interface { name: "lo".into(), mac: "00:00:00:00:00:00".into(), mtu: None, sandbox };
            let ip = |(ip, len)| IpConfig {
                address: format!("{ip}/{len}"),
                gateway: None,
                interface: Some(0),
                version: None,
            };
            let ips = addresses.into_iter().map(ip).collect();
            Ok(Some(CniResult { interfaces: vec![interface], ips, ..CniResult::default() }))
        }
        Command::Del => {
            // A namespace that is gone took its lo along.
            if let Ok(socket) = Netlink::open_in(netns)
                && let Ok(lo) = socket.link("lo")
            {
                socket.set_down(lo.index).map_err(netlink("failed to set lo down"))?;
            }
            Ok(None)
        }
        Command::Check => {
            let socket = Netlink::open_in(netns).map_err(netlink("failed to open netns"))?;
            let lo = socket.link("lo").map_err(netlink("failed to find lo"))?;
            if lo.up { Ok(None) } else { Err(CniError::other("loopback interface is down")) }
        }
        Command::Status | Command::Gc | Command::Version => Ok(None),
    }
}
