//! `host-local`: hands out addresses of configured ranges, one file per address. The directory layout is the reference
//! plugin's, so either can release what the other allocated. Source: containernetworking/plugins plugins/ipam/host-local.

use std::{
    fs::{self, File},
    io::Write,
    net::IpAddr,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use podlab_mutant::{self as mutant, Mutant};
use serde::Deserialize;
use serde_json::Value;

use crate::types::{CniError, CniResult, Command, Invocation, IpConfig, Route, parse_cidr};

const DATA_DIR: &str = "/var/lib/cni/networks";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    subnet: Option<String>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<RangeConf>>,
    routes: Vec<Route>,
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeConf {
    subnet: String,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

/// A range with its bounds resolved; addresses as numbers of their family's width.
#[derive(Debug, Clone)]
struct Range {
    v4: bool,
    prefix: u8,
    network: u128,
    first: u128,
    last: u128,
    gateway: u128,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl Range {
    fn new(c: &RangeConf) -> Result<Self, CniError> {
        let config = |text: String| CniError::new(CniError::CONFIG, text);
        let (ip, prefix) = parse_cidr(&c.subnet)?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let host_bits = width - u32::from(prefix);
        if host_bits < 2 {
            return Err(config(format!("Network {} too small to allocate from", c.subnet)));
        }
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        let network = number(ip) & mask;
        let broadcast = network + ((1_u128 << host_bits.min(127)) - 1);
        let end = if ip.is_ipv4() { broadcast - 1 } else { broadcast };
        let inside = |value: Option<IpAddr>, default: u128, what: &str| match value {
            None => Ok(default),
            Some(v) if v.is_ipv4() == ip.is_ipv4() && number(v) & mask == network => Ok(number(v)),
            Some(v) => Err(config(format!("{what} {v} not in network {}", c.subnet))),
        };
        let (first, last) = (inside(c.range_start, network + 1, "RangeStart")?, inside(c.range_end, end, "RangeEnd")?);
        if first > last {
            return Err(config(format!("RangeStart is after RangeEnd in {}", c.subnet)));
        }
        let gateway = c.gateway.map_or(network + 1, number);
        Ok(Self { v4: ip.is_ipv4(), prefix, network, first, last, gateway })
    }

    fn ip(&self, n: u128) -> IpAddr {
        if self.v4 { IpAddr::from(u32::try_from(n).unwrap_or(0).to_be_bytes()) } else { IpAddr::from(n.to_be_bytes()) }
    }

    fn holds(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.v4 && (self.first..=self.last).contains(&number(ip))
    }

    fn text(&self) -> String {
        format!("{}-{}", self.ip(self.first), self.ip(self.last))
    }
}

struct Store {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Store {
    fn open(i: &Invocation, ipam: &Ipam) -> Result<Self, CniError> {
        let root = ipam.data_dir.clone().unwrap_or_else(|| DATA_DIR.into());
        let dir = root.join(&i.config.name);
        let io = |e: std::io::Error| CniError::new(CniError::IO, format!("open {}: {e}", dir.display()));
        fs::create_dir_all(&dir).map_err(io)?;
        let file = File::options().create(true).append(true).open(dir.join("lock")).map_err(io)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| io(e.into()))?;
        Ok(Self { dir, _lock: lock })
    }

    fn owner(&self, ip: IpAddr) -> Option<String> {
        fs::read_to_string(self.dir.join(ip.to_string())).ok()
    }

    /// Takes an address unless it is taken.
    fn reserve(&self, ip: IpAddr, owner: &str) -> Result<bool, CniError> {
        let made = File::options().write(true).create_new(true).open(self.dir.join(ip.to_string()));
        match made.and_then(|mut f| f.write_all(owner.as_bytes())) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(CniError::new(CniError::IO, format!("reserve {ip}: {e}"))),
        }
    }

    fn last(&self, set: usize) -> Option<IpAddr> {
        fs::read_to_string(self.dir.join(format!("last_reserved_ip.{set}"))).ok()?.trim().parse().ok()
    }

    fn remember(&self, set: usize, ip: IpAddr) -> Result<(), CniError> {
        let write = fs::write(self.dir.join(format!("last_reserved_ip.{set}")), ip.to_string());
        write.map_err(|e| CniError::new(CniError::IO, e.to_string()))
    }

    /// Removes every address of an owner for which `gone` says so.
    fn release(&self, gone: impl Fn(&str) -> bool) -> Result<(), CniError> {
        let entries = fs::read_dir(&self.dir).map_err(|e| CniError::new(CniError::IO, e.to_string()))?;
        for entry in entries.flatten() {
            let is_address = entry.file_name().to_str().is_some_and(|n| n.parse::<IpAddr>().is_ok());
            if is_address && fs::read_to_string(entry.path()).is_ok_and(|owner| gone(owner.trim())) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

fn owner(id: &str, ifname: &str) -> String {
    format!("{id}\r\n{ifname}")
}

pub(super) fn run(i: &Invocation) -> Result<Option<CniResult>, CniError> {
    let ipam: Ipam = serde_json::from_value(i.config.ipam.clone())
        .map_err(|e| CniError::new(CniError::DECODE, format!("ipam: {e}")))?;
    match i.command {
        Command::Add => add(i, &ipam).map(Some),
        Command::Del => {
            let store = Store::open(i, &ipam)?;
            let mine = owner(&i.container_id, &i.ifname);
            store.release(|o| o == mine && !mutant::is(Mutant::AddressesAreKept))?;
            Ok(None)
        }
        Command::Check => {
            let store = Store::open(i, &ipam)?;
            let mine = owner(&i.container_id, &i.ifname);
            let prev =
                i.config.prev_result.as_ref().ok_or_else(|| CniError::new(CniError::CONFIG, "missing prevResult"))?;
            for ip in &prev.ips {
                let (ip, _) = ip.parse()?;
                if store.owner(ip).as_deref() != Some(&mine) {
                    let text = format!("host-local: Failed to find address added by container {}", i.container_id);
                    return Err(CniError::other(text));
                }
            }
            Ok(None)
        }
        Command::Gc => {
            let store = Store::open(i, &ipam)?;
            let valid = valid_attachments(i);
            store.release(|o| !valid.iter().any(|v| v == o))?;
            Ok(None)
        }
        Command::Status | Command::Version => Ok(None),
    }
}

fn valid_attachments(i: &Invocation) -> Vec<String> {
    let list = i.config.rest.get("cni.dev/valid-attachments").and_then(Value::as_array);
    let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    list.into_iter().flatten().map(|a| owner(&text(a, "containerID"), &text(a, "ifname"))).collect()
}

fn ranges(ipam: &Ipam, i: &Invocation) -> Result<Vec<Vec<Range>>, CniError> {
    let mut sets: Vec<Vec<RangeConf>> = Vec::new();
    if let Some(given) = i.config.runtime_config.get("ipRanges") {
        let bad = |e: serde_json::Error| CniError::new(CniError::DECODE, format!("ipRanges: {e}"));
        sets.extend(Vec::<Vec<RangeConf>>::deserialize(given).map_err(bad)?);
    }
    if let Some(subnet) = ipam.subnet.clone() {
        let (range_start, range_end, gateway) = (ipam.range_start, ipam.range_end, ipam.gateway);
        sets.push(vec![RangeConf { subnet, range_start, range_end, gateway }]);
    }
    sets.extend(ipam.ranges.clone());
    if sets.is_empty() {
        return Err(CniError::new(CniError::CONFIG, "no IP ranges specified"));
    }
    sets.iter().map(|set| set.iter().map(Range::new).collect()).collect()
}

/// Addresses asked for by name: runtimeConfig.ips, args.cni.ips and the `IP` of `CNI_ARGS`.
fn requested(i: &Invocation) -> Result<Vec<IpAddr>, CniError> {
    let lists = [i.config.runtime_config.get("ips"), i.config.rest.get("args").and_then(|a| a.get("cni")?.get("ips"))];
    let listed = lists.into_iter().flatten().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    let args = i.arg("IP").into_iter().flat_map(|s| s.split(','));
    let parse = |s: &str| {
        let bare = s.split_once('/').map_or(s, |(ip, _)| ip);
        bare.parse().map_err(|_| CniError::new(CniError::CONFIG, format!("invalid IP format: {s}")))
    };
    listed.chain(args).map(parse).collect()
}

fn add(i: &Invocation, ipam: &Ipam) -> Result<CniResult, CniError> {
    let sets = ranges(ipam, i)?;
    let mut wanted = requested(i)?;
    let store = Store::open(i, ipam)?;
    let mine = owner(&i.container_id, &i.ifname);
    let mut ips = Vec::new();
    for (index, set) in sets.iter().enumerate() {
        let asked = wanted.iter().position(|ip| set.iter().any(|r| r.holds(*ip))).map(|p| wanted.remove(p));
        match allocate(&store, index, set, asked, &mine) {
            Ok(ip) => ips.push(ip),
            Err(mut e) => {
                store.release(|o| o == mine)?;
                e.msg = format!("failed to allocate for range {index}: {}", e.msg);
                return Err(e);
            }
        }
    }
    if !wanted.is_empty() {
        store.release(|o| o == mine)?;
        let list = wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        return Err(CniError::other(format!("failed to allocate all requested IPs: {list}")));
    }
    Ok(CniResult { ips, routes: ipam.routes.clone(), ..CniResult::default() })
}

fn allocate(
    store: &Store,
    index: usize,
    set: &[Range],
    asked: Option<IpAddr>,
    mine: &str,
) -> Result<IpConfig, CniError> {
    let done = |r: &Range, ip: IpAddr| IpConfig {
        address: format!("{ip}/{}", r.prefix),
        gateway: Some(r.ip(r.gateway)),
        interface: None,
        version: None,
    };
    let span = set.iter().map(Range::text).collect::<Vec<_>>().join(",");
    if let Some(ip) = asked {
        let range = set.iter().find(|r| r.holds(ip)).expect("asked for only when a range holds it");
        if number(ip) == range.gateway {
            return Err(CniError::other(format!("requested ip {ip} is subnet's gateway")));
        }
        return match store.reserve(ip, mine)? {
            true => Ok(done(range, ip)),
            false => Err(CniError::other(format!("requested IP address {ip} is not available in range set {span}"))),
        };
    }
    // Round robin: start after the last one handed out, so that an address is not reused at once.
    let all = || set.iter().flat_map(|r| (r.first..=r.last).map(move |n| (r, n)));
    let last = store.last(index).map(number);
    let after = all().skip_while(|(_, n)| last.is_some_and(|l| *n <= l));
    let before = all().take_while(|(_, n)| last.is_some_and(|l| *n <= l));
    for (range, n) in after.chain(before) {
        let ip = range.ip(n);
        if n != range.gateway && n != range.network && store.reserve(ip, mine)? {
            store.remember(index, ip)?;
            return Ok(done(range, ip));
        }
    }
    Err(CniError::other(format!("no IP addresses available in range set: {span}")))
}

/// Whether any address is handed out in a network's directory; for leak checks.
pub fn allocations(data_dir: &Path, network: &str) -> Vec<IpAddr> {
    let entries = fs::read_dir(data_dir.join(network)).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}
