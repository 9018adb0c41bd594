//! The table as nftables rules.
//!
//! ```text
//! prerouting, output ── ip daddr . proto . dport ──► goto svc-N ── one endpoint by chance, DNAT
//!                    └─ local address, proto . dport ─┘             (marked when it is the sender itself)
//! postrouting ── marked ──► masquerade
//! filter: forward, output, input ── a front without endpoints ──► reject
//! ```

use std::net::Ipv4Addr;

use podlab_cni::{
    netlink::NetlinkError,
    nft::{Batch, ChainType, ElementData, Expr, Hook, SetData, address_port_key, expr, port_key},
};

use super::table::{Front, Table};

const TABLE: &str = "podlab-services";
const FRONTS: &str = "service-ips";
const NODE_PORTS: &str = "node-ports";
const REFUSED: &str = "no-endpoints";
/// The mark of a packet whose sender must be hidden, so that the answer comes back through the node.
const MASQUERADE: [u8; 4] = 0x4000_u32.to_ne_bytes();

/// Replaces the whole table. Blocking.
pub(super) fn write(table: &Table) -> Result<(), NetlinkError> {
    let mut b = Batch::new();
    // Making it first lets the deletion succeed when there is none.
    b.table(TABLE).delete_table(TABLE).table(TABLE);
    b.set(TABLE, FRONTS, 12, SetData::Verdict).set(TABLE, NODE_PORTS, 8, SetData::Verdict).set(
        TABLE,
        REFUSED,
        12,
        SetData::None,
    );
    let (mut by_ip, mut by_port, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (i, ((ip, protocol, port), backends)) in table.fronts.iter().enumerate() {
        let chain = format!("svc-{i}");
        match (ip, backends.is_empty()) {
            (Some(ip), true) => refused.push((address_port_key(*ip, *protocol, *port), ElementData::None)),
            (None, true) => {}
            (Some(ip), false) => {
                by_ip.push((address_port_key(*ip, *protocol, *port), ElementData::Goto(chain.clone())))
            }
            (None, false) => by_port.push((port_key(*protocol, *port), ElementData::Goto(chain.clone()))),
        }
        if !backends.is_empty() {
            b.chain(TABLE, &chain);
            let front = (*ip, *protocol, *port);
            let choice = if table.sticky.contains(&front) { Choice::BySender } else { Choice::Chance };
            service_chain(&mut b, &chain, &front, &backends.iter().copied().collect::<Vec<_>>(), choice);
        }
    }
    b.add_elements(TABLE, FRONTS, &by_ip)
        .add_elements(TABLE, NODE_PORTS, &by_port)
        .add_elements(TABLE, REFUSED, &refused);
    entry_chains(&mut b);
    b.commit()
}

const R: u32 = expr::REG;

/// Destination address, protocol and port in three registers.
fn destination() -> Vec<Expr> {
    vec![expr::daddr(R), Expr::Meta { key: expr::meta::L4PROTO, dreg: R + 1 }, expr::dport(R + 2)]
}

fn entry_chains(b: &mut Batch) {
    let mut fronts = destination();
    fronts.push(Expr::VerdictMap { set: FRONTS.into(), sreg: R });
    let mut node_ports = vec![
        Expr::DestinationType { dreg: R },
        Expr::Cmp { sreg: R, equal: true, value: 2_u32.to_ne_bytes().to_vec() },
    ];
    // Loopback is the node's own; upstream does not serve node ports there by default either.
    node_ports.extend(expr::in_network(expr::daddr, Ipv4Addr::LOCALHOST, 8, false));
    node_ports.extend([Expr::Meta { key: expr::meta::L4PROTO, dreg: R }, expr::dport(R + 1)]);
    node_ports.push(Expr::VerdictMap { set: NODE_PORTS.into(), sreg: R });
    for (chain, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        b.base_chain(TABLE, chain, ChainType::Nat, hook, -100);
        b.rule(TABLE, chain, &fronts).rule(TABLE, chain, &node_ports);
    }
    b.base_chain(TABLE, "postrouting", ChainType::Nat, Hook::Postrouting, 90);
    let marked = [
        Expr::Meta { key: expr::meta::MARK, dreg: R },
        Expr::Bitwise { sreg: R, dreg: R, mask: MASQUERADE.to_vec(), xor: vec![0; 4] },
        Expr::Cmp { sreg: R, equal: true, value: MASQUERADE.to_vec() },
        Expr::Masquerade,
    ];
    b.rule(TABLE, "postrouting", &marked);
    // Before the address is translated, so that the refused front is still the destination.
    for (chain, hook) in
        [("refuse-forward", Hook::Forward), ("refuse-output", Hook::Output), ("refuse-input", Hook::Input)]
    {
        b.base_chain(TABLE, chain, ChainType::Filter, hook, -110);
        let mut tcp = destination();
        tcp.push(Expr::Lookup { set: REFUSED.into(), sreg: R, invert: false });
        let mut other = tcp.clone();
        tcp.extend([
            Expr::Meta { key: expr::meta::L4PROTO, dreg: R },
            Expr::Cmp { sreg: R, equal: true, value: vec![6] },
        ]);
        tcp.push(Expr::Reject { tcp_reset: true });
        other.push(Expr::Reject { tcp_reset: false });
        b.rule(TABLE, chain, &tcp).rule(TABLE, chain, &other);
    }
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Chance,
    /// The same for a sender as long as the endpoints stay the same.
    BySender,
}

/// One rule per endpoint: the first of n is taken with chance 1/n, the next with 1/(n−1), the last always; or, for a Service with affinity, by a hash of the sender.
fn service_chain(b: &mut Batch, chain: &str, front: &Front, backends: &[(Ipv4Addr, u16)], choice: Choice) {
    let all = u32::try_from(backends.len()).unwrap_or(u32::MAX);
    for (i, (ip, port)) in backends.iter().enumerate() {
        let left = u32::try_from(backends.len() - i).unwrap_or(1);
        let target = format!("{chain}-{i}");
        b.chain(TABLE, &target);
        let [hi, lo] = port.to_be_bytes();
        // A node port's sender is outside; an endpoint that calls its own Service would answer itself directly.
        let hide =
            [Expr::Immediate { dreg: R, value: MASQUERADE.to_vec() }, Expr::MetaSet { key: expr::meta::MARK, sreg: R }];
        if front.0.is_none() {
            b.rule(TABLE, &target, &hide);
        } else {
            let mut own = vec![expr::saddr(R), Expr::Cmp { sreg: R, equal: true, value: ip.octets().to_vec() }];
            own.extend(hide);
            b.rule(TABLE, &target, &own);
        }
        let dnat = [
            Expr::Immediate { dreg: R, value: ip.octets().to_vec() },
            Expr::Immediate { dreg: R + 1, value: vec![hi, lo] },
            // Translation with ports needs the protocol to be known at this place in the rule.
            Expr::Dnat { address: R, port: Some(R + 1) },
        ];
        let mut rule = vec![
            Expr::Meta { key: expr::meta::L4PROTO, dreg: R },
            Expr::Cmp { sreg: R, equal: true, value: vec![front.1] },
        ];
        rule.extend(dnat);
        b.rule(TABLE, &target, &rule);
        let mut choose = Vec::new();
        if left > 1 {
            let drawn = match choice {
                Choice::Chance => vec![Expr::Random { modulus: left, dreg: R }],
                Choice::BySender => vec![expr::saddr(R), Expr::Hash { sreg: R, modulus: all, dreg: R }],
            };
            let wanted = if choice == Choice::Chance { 0 } else { all - left };
            choose.extend(drawn);
            choose.push(Expr::Cmp { sreg: R, equal: true, value: wanted.to_ne_bytes().to_vec() });
        }
        choose.push(Expr::Goto(target));
        b.rule(TABLE, chain, &choose);
    }
}
