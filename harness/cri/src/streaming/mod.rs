//! The streaming server: exec, attach and port forward behind URLs that are good for one use.
//!
//! ```text
//! GET  + WebSocket  ─┐                      ┌─► exec     a process beside the container's own
//! POST + SPDY/3.1   ─┴─► Peer (channels) ───┼─► attach   the container's own streams
//!                                           └─► ports    connections inside the sandbox's network
//! ```
//! Source: k/k staging/src/k8s.io/cri-streaming/pkg/streaming; protocols: kubernetes-facts A.9.

mod peer;
mod ports;
mod process;
mod server;
mod spdy;
mod tokens;
mod websocket;

pub(crate) use server::serve;
pub(crate) use tokens::{StreamRequest, Tokens};
