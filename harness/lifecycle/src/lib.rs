//! The Pod lifecycle as pure, total functions: no I/O, no await, no clock. What "now" is, is always an argument.
//!
//! ```text
//!             ┌────────── runtime view ([`runtime`]) ──────────┐
//!  spec ──►  [`actions`]  what to do next      [`container`] ─► API container statuses
//!             [`restart`] [`backoff`] [`image`]       │ [`phase`] ─► phase
//!             [`probe`]  results, thresholds          └ [`conditions`] ─► conditions ─► [`status`] merge
//!  worker:   syncing ──► terminating ──► terminated        ([`worker`], [`termination`])
//!  node:     starved ──► reclaim ──► rank ──► evict one   ([`eviction`])
//!  volume:   wanted ──► attached ──► staged ──► mounted ──► unmounted   ([`volume`])
//! ```
//!
//! The node agent supplies effects; everything that is a decision lives here.
#![deny(missing_docs)]

pub mod actions;
pub mod backoff;
pub mod conditions;
pub mod container;
pub mod eviction;
pub mod image;
mod init;
pub mod phase;
pub mod probe;
pub mod qos;
pub mod resize;
pub mod resources;
pub mod restart;
pub mod runtime;
pub mod spec;
pub mod status;
pub mod termination;
pub mod volume;
pub mod words;
pub mod worker;
