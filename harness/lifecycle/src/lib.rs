//! The Pod lifecycle as pure, total functions: no I/O, no await, no clock. What "now" is, is always an argument.
//!
//! ```text
//!             ┌────────── runtime view ([`runtime`]) ──────────┐
//!  spec ──►  [`actions`]  what to do next      [`container`] ─► API container statuses
//!             [`restart`] [`backoff`] [`image`]       │ [`phase`] ─► phase
//!             [`probe`]  results, thresholds          └ [`conditions`] ─► conditions ─► [`status`] merge
//!  worker:   syncing ──► terminating ──► terminated        ([`worker`], [`termination`])
//!  volume:   wanted ──► attached ──► staged ──► mounted ──► unmounted   ([`volume`])
//! ```
//!
//! The node agent supplies effects; everything that is a decision lives here.
#![deny(missing_docs)]

pub mod words;
pub mod spec;
pub mod runtime;
pub mod qos;
pub mod resources;
pub mod backoff;
pub mod restart;
pub mod image;
pub mod actions;
mod init;
pub mod container;
pub mod phase;
pub mod conditions;
pub mod status;
pub mod probe;
pub mod resize;
pub mod volume;
pub mod termination;
pub mod worker;
