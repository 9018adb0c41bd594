//! The node agent: watches the Pods bound to its node and brings them up through the CRI, keeps them as their specs say,
//! shows their status in the API, and takes them down again.
//!
//! Read in this order: [`kubelet`] (what runs), `pods` (one worker per Pod: sync, start, kill, terminate), `status`
//! (what the API shows), `volumes`, `images`, `prober`, `container` (from a spec to CRI configuration), `node`, `server`;
//! then what keeps the node healthy: `eviction`, `garbage`, `statics` (Pods from manifests), `shutdown`, `metrics`.
//! Decisions are [`podlab_lifecycle`]'s; the machine is behind [`Host`], the runtime behind [`Runtime`] and [`Images`],
//! storage drivers behind [`CsiNode`], so that the same agent runs on a simulated node.
#![deny(missing_docs)]

mod admission;
mod agent;
mod config;
mod container;
mod crilog;
mod csi;
mod eviction;
pub mod fake;
mod garbage;
mod host;
mod images;
pub mod kubelet;
mod labels;
mod metrics;
mod node;
mod objects;
mod pleg;
mod pods;
mod preemption;
mod prober;
mod rotation;
mod runtime;
mod say;
mod server;
mod shutdown;
mod statics;
mod status;
mod sysctls;
#[cfg(test)]
mod tests;
mod usage;
mod users;
mod volumes;

pub use config::{
    ConfigFileError, EvictionConfig, ImageGcConfig, ImagePulls, KubeletConfig, ServerConfig, ServerTls, ShutdownGroup,
};
pub use csi::{
    AccessType, CsiError, CsiNode, CsiNodeInfo, NodeCapabilities, PluginInfo, PluginSockets, Plugins, PublishRequest,
    StageRequest,
};
pub use host::{
    CgroupStats, Changes, DiskStats, FileKind, Health, Host, HttpAnswer, HttpProbe, LinuxHost, Machine, Stat, Tmpfs,
};
pub use kubelet::{Deps, Kubelet, KubeletError};
pub use runtime::{Cri, CriSocket, EventStream, ExecOutput, Images, Runtime, RuntimeError};
pub use server::{ServerError, log_source};
