//! What goes over stdin, stdout and the environment. Source: CNI spec 1.1.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Versions the bundled plugins and the chain speak, oldest first.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// An error as a plugin prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct CniError {
    /// Version of the configuration, echoed.
    #[serde(rename = "cniVersion", default)]
    pub cni_version: String,
    /// Spec code (1–99) or plugin-specific (100 and up).
    pub code: u32,
    /// Short sentence.
    #[serde(default)]
    pub msg: String,
    /// The rest.
    #[serde(default)]
    pub details: String,
}

impl CniError {
    /// Incompatible CNI version.
    pub const VERSION: u32 = 1;
    /// Container unknown or gone.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A needed environment variable is missing or malformed.
    pub const ENVIRONMENT: u32 = 4;
    /// I/O failed.
    pub const IO: u32 = 5;
    /// A document did not parse.
    pub const DECODE: u32 = 6;
    /// The network configuration makes no sense.
    pub const CONFIG: u32 = 7;
    /// Try again later.
    pub const TRY_AGAIN: u32 = 11;
    /// The plugin cannot serve ADD.
    pub const NOT_AVAILABLE: u32 = 50;
    /// What the reference plugins send for an error without a code.
    pub const OTHER: u32 = 999;

    /// An error with a code and no details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { cni_version: String::new(), code, msg: msg.into(), details: String::new() }
    }

    /// An error without a spec code.
    pub fn other(msg: impl Into<String>) -> Self {
        Self::new(Self::OTHER, msg)
    }
}

/// The verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the spec's word")]
pub enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

impl Command {
    /// The word in `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl FromStr for Command {
    type Err = CniError;
    fn from_str(s: &str) -> Result<Self, CniError> {
        let all = [Self::Add, Self::Del, Self::Check, Self::Status, Self::Gc, Self::Version];
        let found = all.into_iter().find(|c| c.as_str() == s);
        found.ok_or_else(|| CniError::new(CniError::ENVIRONMENT, format!("unknown CNI_COMMAND: {s}")))
    }
}

/// One invocation of a plugin: the environment and the configuration.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// `CNI_COMMAND`.
    pub command: Command,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`; may be absent on DEL.
    pub netns: Option<PathBuf>,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS` as written.
    pub args: String,
    /// `CNI_PATH`, in order.
    pub path: Vec<PathBuf>,
    /// The configuration from stdin.
    pub config: NetConf,
}

impl Invocation {
    /// The value of one `CNI_ARGS` key.
    pub fn arg(&self, key: &str) -> Option<&str> {
        self.args.split(';').filter_map(|kv| kv.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
    }
}

/// A single-plugin network configuration. Fields a plugin owns are read from `rest`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetConf {
    /// Version to answer in.
    #[serde(default)]
    pub cni_version: String,
    /// Network name.
    #[serde(default)]
    pub name: String,
    /// Plugin type.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// IPAM section as written.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub ipam: Value,
    /// Capability arguments.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runtime_config: BTreeMap<String, Value>,
    /// Result of the plugin before (ADD) or of the whole chain (CHECK, DEL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_result: Option<CniResult>,
    /// DNS settings to hand through.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// Everything else.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

impl NetConf {
    /// A boolean key of the plugin's own; absent means false.
    pub fn flag(&self, key: &str) -> bool {
        self.rest.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A string key of the plugin's own.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.rest.get(key).and_then(Value::as_str)
    }

    /// A number key of the plugin's own.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.rest.get(key).and_then(Value::as_u64)
    }
}

/// What ADD produced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniResult {
    /// Version it is written in.
    #[serde(default)]
    pub cni_version: String,
    /// Interfaces made, host side and container side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// Addresses assigned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    /// Routes made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// DNS settings for the container.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

/// An interface of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// MAC address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Path of the namespace; empty on the host side.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

/// An address of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// `address/length`.
    pub address: String,
    /// Gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into the result's interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// `4` or `6`, only in results before 1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl IpConfig {
    /// The address and its prefix length.
    ///
    /// # Errors
    /// [`CniError`] when it is not `address/length`.
    pub fn parse(&self) -> Result<(IpAddr, u8), CniError> {
        parse_cidr(&self.address)
    }
}

/// A route of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination, `address/length`.
    pub dst: String,
    /// Next hop; the gateway of the address when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
}

/// DNS settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the spec's own words, as in resolv.conf")]
pub struct Dns {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads `address/length`.
///
/// # Errors
/// [`CniError`] with the decode code.
pub fn parse_cidr(s: &str) -> Result<(IpAddr, u8), CniError> {
    let bad = || CniError::new(CniError::DECODE, format!("invalid CIDR address: {s}"));
    let (ip, len) = s.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let len: u8 = len.parse().map_err(|_| bad())?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    if len > max { Err(bad()) } else { Ok((ip, len)) }
}

/// Checks a container id and an interface name against the spec's rules.
///
/// # Errors
/// [`CniError`] with the environment code.
pub fn check_names(container_id: &str, ifname: &str) -> Result<(), CniError> {
    let word = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let id_ok = container_id.starts_with(|c: char| c.is_ascii_alphanumeric()) && container_id.chars().all(word);
    if !id_ok {
        return Err(CniError::new(
            CniError::ENVIRONMENT,
            format!("invalid characters in containerID: {container_id:?}"),
        ));
    }
    let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
    let if_ok = (1..=15).contains(&ifname.len()) && ifname != "." && ifname != ".." && !ifname.contains(forbidden);
    if if_ok {
        Ok(())
    } else {
        Err(CniError::new(CniError::ENVIRONMENT, format!("invalid interface name: {ifname:?}")))
    }
}
