//! The CRI seam: the wire types of `runtime.v1` and the runtime that serves them.
//!
//! ```text
//! service ─► runtime ─┬─ sandbox ─┬─ launch ─► child processes of init
//!                     ├─ container┤
//!                     ├─ exec ────┘
//!                     ├─ images (registry, import, layers)
//!                     ├─ network (handed in)
//!                     └─ streaming (exec, attach, port forward)
//! init ── exits, held descriptors ──► bridge (restore, follow)
//! ```
//! A sandbox is Creating → Ready → NotReady; a container Created → Running → Exited. State on disk is written before
//! the act, so a bridge that dies anywhere is succeeded by one that knows at least what there may be.
#![warn(missing_docs)]

mod bridge;
pub mod cgroup;
mod config;
mod container;
mod error;
mod events;
mod exec;
mod exit;
pub mod images;
pub mod init;
mod journal;
mod launch;
mod log;
mod metrics;
mod network;
mod restore;
mod runtime;
mod sandbox;
mod service;
mod spec;
pub mod standalone;
mod start;
mod state;
mod stats;
mod status;
mod streaming;
pub mod sys;
pub mod v1;

pub use bridge::Bridge;
pub use config::{BridgeConfig, RegistryConfig};
pub use error::Error;
pub use network::{
    CniConfig, CniNetwork, LoopbackOnly, NetRequest, NetResult, NetworkError, NetworkPlugin, NotConfigured, PortMapping,
};
pub use runtime::BridgeDeps;
