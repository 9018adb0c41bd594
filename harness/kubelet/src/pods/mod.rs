//! Pods on this node: one worker each, from the first look to the last clean-up.
//!
//! ```text
//! API watch ─┐
//! runtime ───┼─► mailbox ─► worker: sync ─► terminate ─► clean up
//! probes ────┘
//! ```
//! Source: k/k pkg/kubelet/pod_workers.go, pkg/kubelet/kubelet.go SyncPod.

mod hooks;
mod kill;
mod mailbox;
mod resize;
mod start;
mod sync;
mod terminate;
mod worker;
mod workers;

pub(crate) use kill::{Kill, Target};
pub(crate) use mailbox::EndRequest;
pub(crate) use workers::Workers;
