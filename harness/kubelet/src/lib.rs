//! The node agent: watches the Pods bound to its node and brings them up through the CRI, keeps them as their specs say,
//! shows their status in the API, and takes them down again.
//!
//! Read in this order: [`kubelet`] (what runs), `pods` (one worker per Pod: sync, start, kill, terminate), `status`
//! (what the API shows), `volumes`, `images`, `prober`, `container` (from a spec to CRI configuration), `node`, `server`.
//! Decisions are [`podlab_lifecycle`]'s; the machine is behind [`Host`], the runtime behind [`Runtime`] and [`Images`],
//! storage drivers behind [`CsiNode`], so that the same agent runs on a simulated node.
#![deny(missing_docs)]

mod admission;
mod agent;
mod config;
mod container;
mod crilog;
mod csi;
pub mod fake;
mod host;
mod images;
pub mod kubelet;
mod labels;
mod node;
mod objects;
mod pleg;
mod pods;
mod prober;
mod rotation;
mod runtime;
mod say;
mod server;
mod status;
#[cfg(test)]
mod tests;
mod volumes;

pub use config::{ImagePulls, KubeletConfig, Mutant, ServerConfig, ServerTls};
pub use csi::{
    AccessType, CsiError, CsiNode, CsiNodeInfo, NodeCapabilities, PluginInfo, PluginSockets, Plugins, PublishRequest,
    StageRequest,
};
pub use host::{
    CgroupStats, DiskStats, FileKind, Health, Host, HttpAnswer, HttpProbe, LinuxHost, Machine, Stat, Tmpfs,
};
pub use kubelet::{Deps, Kubelet, KubeletError};
pub use runtime::{Cri, CriSocket, EventStream, ExecOutput, Images, Runtime, RuntimeError};
pub use server::ServerError;
