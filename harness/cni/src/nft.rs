//! nftables by netlink: one transaction of tables, chains, rules, sets and elements; no `nft` binary.
//!
//! Only what the bundled plugins and the Service proxy need. Source: Linux uapi/linux/netfilter/nf_tables.h.

pub mod expr;

use std::net::Ipv4Addr;

use nix::sys::socket::SockProtocol;

use crate::netlink::{Netlink, NetlinkError, message::Message};
pub use expr::Expr;

const SUBSYS: u16 = 10 << 8;
const NEWTABLE: u16 = SUBSYS;
const DELTABLE: u16 = SUBSYS | 2;
const NEWCHAIN: u16 = SUBSYS | 3;
const DELCHAIN: u16 = SUBSYS | 5;
const NEWRULE: u16 = SUBSYS | 6;
const DELRULE: u16 = SUBSYS | 8;
const NEWSET: u16 = SUBSYS | 9;
const DELSET: u16 = SUBSYS | 11;
const NEWSETELEM: u16 = SUBSYS | 12;
const DELSETELEM: u16 = SUBSYS | 14;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const NFPROTO_IPV4: u8 = 2;

/// A hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To this host.
    Input,
    /// Through this host.
    Forward,
    /// From this host.
    Output,
    /// After routing.
    Postrouting,
}

/// `nat` or `filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainType {
    /// Sees the first packet of a connection and may translate it.
    Nat,
    /// Sees every packet.
    Filter,
}

/// What a set maps its keys to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: a plain set.
    None,
    /// A value of this many bytes.
    Value(u32),
    /// A verdict.
    Verdict,
}

/// The value of a set element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData {
    /// A plain set's element.
    None,
    /// A map's value.
    Value(Vec<u8>),
    /// Jump to or go to a chain.
    Goto(String),
    /// Drop the packet.
    Drop,
}

/// One transaction on IPv4 tables.
#[derive(Debug, Default)]
pub struct Batch {
    messages: Vec<Message>,
}

fn generic(kind: u16, flags: u16) -> Message {
    Message::new(kind, REQUEST | flags, &[NFPROTO_IPV4, 0, 0, 0])
}

/// Verdict code of "go to chain".
const NFT_GOTO: u32 = (-4_i32).cast_unsigned();
/// `dtype` numbers only matter to `nft list`; verdict is special to the kernel.
const TYPE_VERDICT: u32 = 0xffff_ff00;
const SET_MAP: u32 = 8;

impl Batch {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Makes a table; an existing one is fine.
    pub fn table(&mut self, table: &str) -> &mut Self {
        self.push(generic(NEWTABLE, CREATE).text(1, table))
    }

    /// Deletes a table with all it holds; it must exist.
    pub fn delete_table(&mut self, table: &str) -> &mut Self {
        self.push(generic(DELTABLE, 0).text(1, table))
    }

    /// Makes a base chain; an existing one is fine.
    pub fn base_chain(&mut self, table: &str, chain: &str, kind: ChainType, hook: Hook, priority: i32) -> &mut Self {
        let number = match hook {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        };
        let name = match kind {
            ChainType::Nat => "nat",
            ChainType::Filter => "filter",
        };
        let message = generic(NEWCHAIN, CREATE)
            .text(1, table)
            .text(3, chain)
            .begin(4)
            .be32(1, number)
            .be32(2, priority.cast_unsigned())
            .end()
            .text(7, name);
        self.push(message)
    }

    /// Makes a chain to jump to; an existing one is fine.
    pub fn chain(&mut self, table: &str, chain: &str) -> &mut Self {
        self.push(generic(NEWCHAIN, CREATE).text(1, table).text(3, chain))
    }

    /// Makes a chain that must not exist yet.
    pub fn new_chain(&mut self, table: &str, chain: &str) -> &mut Self {
        self.push(generic(NEWCHAIN, CREATE | EXCL).text(1, table).text(3, chain))
    }

    /// Deletes a chain that nothing jumps to.
    pub fn delete_chain(&mut self, table: &str, chain: &str) -> &mut Self {
        self.push(generic(DELCHAIN, 0).text(1, table).text(3, chain))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &str, chain: &str) -> &mut Self {
        self.push(generic(DELRULE, 0).text(1, table).text(2, chain))
    }

    /// Appends a rule.
    pub fn rule(&mut self, table: &str, chain: &str, expressions: &[Expr]) -> &mut Self {
        let mut message = generic(NEWRULE, CREATE | APPEND).text(1, table).text(2, chain).begin(4);
        for e in expressions {
            message = e.encode(message);
        }
        self.push(message.end())
    }

    /// Makes a named set or map with keys of `key_len` bytes (concatenated fields are padded to 4 bytes each); an
    /// existing one is fine.
    pub fn set(&mut self, table: &str, set: &str, key_len: u32, data: SetData) -> &mut Self {
        // A set id only has to be unique in its transaction.
        let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        let flags = if data == SetData::None { 0 } else { SET_MAP };
        let message =
            generic(NEWSET, CREATE).text(1, table).text(2, set).be32(3, flags).be32(4, 0).be32(5, key_len).be32(10, id);
        let message = match data {
            SetData::None => message,
            SetData::Value(len) => message.be32(6, 7).be32(7, len),
            SetData::Verdict => message.be32(6, TYPE_VERDICT).be32(7, 0),
        };
        self.push(message)
    }

    /// Deletes a set that no rule uses.
    pub fn delete_set(&mut self, table: &str, set: &str) -> &mut Self {
        self.push(generic(DELSET, 0).text(1, table).text(2, set))
    }

    /// Adds elements to a set or map; one that is there with the same value is fine.
    pub fn add_elements(&mut self, table: &str, set: &str, elements: &[(Vec<u8>, ElementData)]) -> &mut Self {
        self.elements(NEWSETELEM, CREATE, table, set, elements)
    }

    /// Deletes elements; each must be there.
    pub fn delete_elements(&mut self, table: &str, set: &str, elements: &[(Vec<u8>, ElementData)]) -> &mut Self {
        self.elements(DELSETELEM, 0, table, set, elements)
    }

    /// Deletes all elements of a set.
    pub fn flush_set(&mut self, table: &str, set: &str) -> &mut Self {
        self.push(generic(DELSETELEM, 0).text(1, table).text(2, set))
    }

    fn elements(&mut self, kind: u16, flags: u16, table: &str, set: &str, all: &[(Vec<u8>, ElementData)]) -> &mut Self {
        // One message must stay below the 64 KiB an attribute can say.
        for part in all.chunks(400) {
            let mut message = generic(kind, flags).text(1, table).text(2, set).begin(3);
            for (key, data) in part {
                message = message.begin(1).begin(1).attr(1, key).end();
                message = match data {
                    ElementData::None => message,
                    ElementData::Value(value) => message.begin(2).attr(1, value).end(),
                    ElementData::Goto(chain) => message.begin(2).begin(2).be32(1, NFT_GOTO).text(2, chain).end().end(),
                    ElementData::Drop => message.begin(2).begin(2).be32(1, 0).end().end(),
                };
                message = message.end();
            }
            self.push(message.end());
        }
        self
    }

    fn push(&mut self, message: Message) -> &mut Self {
        self.messages.push(message);
        self
    }

    /// Applies the transaction in the current network namespace: all of it or nothing.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn commit(self) -> Result<(), NetlinkError> {
        self.commit_on(&Netlink::open_protocol(SockProtocol::NetlinkNetFilter)?)
    }

    /// Applies the transaction through a socket opened earlier (it acts in that socket's namespace).
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn commit_on(self, socket: &Netlink) -> Result<(), NetlinkError> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let edge = |kind| Message::new(kind, REQUEST, &[0, 0, 0, 10]);
        let mut bytes = edge(BATCH_BEGIN).finish(socket.next_sequence());
        let mut last = 0;
        let count = self.messages.len();
        for (i, message) in self.messages.into_iter().enumerate() {
            last = socket.next_sequence();
            let mut one = message.finish(last);
            if i + 1 == count {
                // Only the last is acknowledged; a refused one reports itself.
                let flags = u16::from_ne_bytes([one[6], one[7]]) | ACK;
                one[6..8].copy_from_slice(&flags.to_ne_bytes());
            }
            bytes.extend_from_slice(&one);
        }
        bytes.extend_from_slice(&edge(BATCH_END).finish(socket.next_sequence()));
        socket.send(&bytes)?;
        socket.receive("nftables transaction", last).map(drop)
    }
}

/// The key of `ip daddr . meta l4proto . th dport`, each field padded to four bytes.
pub fn address_port_key(ip: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
    let mut key = ip.octets().to_vec();
    key.extend_from_slice(&port_key(protocol, port));
    key
}

/// The key of `meta l4proto . th dport`, each field padded to four bytes.
pub fn port_key(protocol: u8, port: u16) -> Vec<u8> {
    let [hi, lo] = port.to_be_bytes();
    vec![protocol, 0, 0, 0, hi, lo, 0, 0]
}
