//! The first process of a node: parent of its containers and of its agent. It reaps, records every exit where a
//! killed agent cannot lose it, holds descriptors (log pipes, terminals) that must outlive the agent, and starts and
//! stops the agent on request. One thread, `poll`, bounded tables; it parses nothing but short packets of its clients.
//!
//! ```text
//! init ──┬── agent (bridge)      forked here, may die and be forked again
//!        └── containers          cloned by the bridge with CLONE_PARENT, so they are this process's children
//! ```

mod client;
mod exits;
mod server;
mod wire;

pub use client::{AgentCommand, ExitStream, InitClient, InitError, Status};
pub(crate) use client::{dup_high, pipe};
pub use exits::Exit;
pub use server::{Init, InitConfig};
pub use wire::{connect_to, listen_at, recv_packet, send_packet};
