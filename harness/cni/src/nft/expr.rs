//! The expressions a rule is made of. Registers are numbered in 4-byte steps (`NFT_REG32_00` is 8).

use crate::netlink::message::Message;

/// First 4-byte register; a 16-byte value starting here covers four of them.
pub const REG: u32 = 8;

/// Where a payload offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Network header.
    Network,
    /// Transport header.
    Transport,
}

/// One expression.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "field names are the kernel's attribute names")]
pub enum Expr {
    /// Loads packet metadata; see [`meta`] for keys.
    Meta { key: u32, dreg: u32 },
    /// Sets packet metadata from a register.
    MetaSet { key: u32, sreg: u32 },
    /// Loads packet bytes.
    Payload { base: Base, offset: u32, len: u32, dreg: u32 },
    /// Goes on only if the register equals (or, negated, differs from) the value.
    Cmp { sreg: u32, equal: bool, value: Vec<u8> },
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise { sreg: u32, dreg: u32, mask: Vec<u8>, xor: Vec<u8> },
    /// Loads a constant.
    Immediate { dreg: u32, value: Vec<u8> },
    /// Goes on only if the key is (or, inverted, is not) in the set.
    Lookup { set: String, sreg: u32, invert: bool },
    /// Goes on only if the key is in the map, and loads its value.
    MapLookup { set: String, sreg: u32, dreg: u32 },
    /// Looks the verdict of the key up and follows it; goes on if there is none.
    VerdictMap { set: String, sreg: u32 },
    /// Destination NAT to the address (and port) in registers.
    Dnat { address: u32, port: Option<u32> },
    /// Source NAT to the address of the outgoing interface.
    Masquerade,
    /// A random number below `modulus`.
    Random { modulus: u32, dreg: u32 },
    /// A number below `modulus` made from 4 bytes of a register, the same for the same bytes.
    Hash { sreg: u32, modulus: u32, dreg: u32 },
    /// The type of the destination address by the routing table (2 is local).
    DestinationType { dreg: u32 },
    /// Connection tracking state bits.
    CtState { dreg: u32 },
    /// Jumps to a chain and comes back.
    Jump(String),
    /// Goes to a chain for good.
    Goto(String),
    /// Accepts.
    Accept,
    /// Drops.
    Drop,
    /// Back to the calling chain.
    Return,
    /// Rejects with a TCP reset (for TCP) or an ICMP port unreachable.
    Reject { tcp_reset: bool },
}

/// Metadata keys.
pub mod meta {
    /// Packet mark.
    pub const MARK: u32 = 3;
    /// Input interface name.
    pub const IIFNAME: u32 = 6;
    /// Output interface name.
    pub const OIFNAME: u32 = 7;
    /// Layer 4 protocol number.
    pub const L4PROTO: u32 = 16;
}

/// Source address of an IPv4 packet.
pub fn saddr(dreg: u32) -> Expr {
    Expr::Payload { base: Base::Network, offset: 12, len: 4, dreg }
}

/// Destination address of an IPv4 packet.
pub fn daddr(dreg: u32) -> Expr {
    Expr::Payload { base: Base::Network, offset: 16, len: 4, dreg }
}

/// Destination port of a TCP, UDP or SCTP packet.
pub fn dport(dreg: u32) -> Expr {
    Expr::Payload { base: Base::Transport, offset: 2, len: 2, dreg }
}

/// Goes on only for addresses in (or, negated, outside) an IPv4 network. `load` is [`saddr`] or [`daddr`].
pub fn in_network(load: fn(u32) -> Expr, network: std::net::Ipv4Addr, prefix: u8, equal: bool) -> [Expr; 3] {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    let value = (u32::from(network) & mask).to_be_bytes().to_vec();
    let mask = mask.to_be_bytes().to_vec();
    [load(REG), Expr::Bitwise { sreg: REG, dreg: REG, mask, xor: vec![0; 4] }, Expr::Cmp { sreg: REG, equal, value }]
}

fn wrap(m: Message, name: &str, f: impl FnOnce(Message) -> Message) -> Message {
    f(m.begin(1).text(1, name).begin(2)).end().end()
}

fn verdict(m: Message, code: i32, chain: Option<&str>) -> Message {
    wrap(m, "immediate", |m| {
        let m = m.be32(1, 0).begin(2).begin(2).be32(1, code.cast_unsigned());
        chain.map_or(m.clone(), |c| m.text(2, c)).end().end()
    })
}

impl Expr {
    /// Appends the expression to a rule's expression list.
    pub(super) fn encode(&self, m: Message) -> Message {
        match self {
            Self::Meta { key, dreg } => wrap(m, "meta", |m| m.be32(1, *dreg).be32(2, *key)),
            Self::MetaSet { key, sreg } => wrap(m, "meta", |m| m.be32(2, *key).be32(3, *sreg)),
            Self::Payload { base, offset, len, dreg } => wrap(m, "payload", |m| {
                let base = if *base == Base::Network { 1 } else { 2 };
                m.be32(1, *dreg).be32(2, base).be32(3, *offset).be32(4, *len)
            }),
            Self::Cmp { sreg, equal, value } => {
                wrap(m, "cmp", |m| m.be32(1, *sreg).be32(2, u32::from(!*equal)).begin(3).attr(1, value).end())
            }
            Self::Bitwise { sreg, dreg, mask, xor } => wrap(m, "bitwise", |m| {
                let len = u32::try_from(mask.len()).unwrap_or(0);
                m.be32(1, *sreg).be32(2, *dreg).be32(3, len).begin(4).attr(1, mask).end().begin(5).attr(1, xor).end()
            }),
            Self::Immediate { dreg, value } => wrap(m, "immediate", |m| m.be32(1, *dreg).begin(2).attr(1, value).end()),
            Self::Lookup { set, sreg, invert } => {
                wrap(m, "lookup", |m| m.text(1, set).be32(2, *sreg).be32(5, u32::from(*invert)))
            }
            Self::MapLookup { set, sreg, dreg } => wrap(m, "lookup", |m| m.text(1, set).be32(2, *sreg).be32(3, *dreg)),
            Self::VerdictMap { set, sreg } => wrap(m, "lookup", |m| m.text(1, set).be32(2, *sreg).be32(3, 0)),
            Self::Dnat { address, port } => wrap(m, "nat", |m| {
                let m = m.be32(1, 1).be32(2, 2).be32(3, *address).be32(4, *address);
                port.map_or(m.clone(), |p| m.be32(5, p).be32(6, p))
            }),
            Self::Masquerade => wrap(m, "masq", |m| m),
            Self::Random { modulus, dreg } => wrap(m, "numgen", |m| m.be32(1, *dreg).be32(2, *modulus).be32(3, 1)),
            // With a seed of its own choice the kernel would give each rule another number.
            Self::Hash { sreg, modulus, dreg } => {
                wrap(m, "hash", |m| m.be32(1, *sreg).be32(2, *dreg).be32(3, 4).be32(4, *modulus).be32(5, 1))
            }
            Self::DestinationType { dreg } => wrap(m, "fib", |m| m.be32(1, *dreg).be32(2, 3).be32(3, 2)),
            Self::CtState { dreg } => wrap(m, "ct", |m| m.be32(1, *dreg).be32(2, 0)),
            Self::Jump(chain) => verdict(m, -3, Some(chain)),
            Self::Goto(chain) => verdict(m, -4, Some(chain)),
            Self::Accept => verdict(m, 1, None),
            Self::Drop => verdict(m, 0, None),
            Self::Return => verdict(m, -5, None),
            Self::Reject { tcp_reset } => wrap(m, "reject", |m| {
                let m = m.be32(1, u32::from(*tcp_reset));
                if *tcp_reset { m } else { m.attr(2, &[3]) }
            }),
        }
    }
}
