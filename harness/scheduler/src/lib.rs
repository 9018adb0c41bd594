//! The scheduler: a queue with back-off, filters, scores, preemption and binding, with upstream's messages.
//!
//! ```text
//!  gated ──gate removed──► active ──pop──► cycle ──bind──► gone
//!                            ▲               │ no node
//!             back-off over  │               ▼
//!                         back-off ◄──event── unschedulable
//! ```
//!
//! [`cycle`] is pure: a snapshot and a Pod in, a decision out. [`Scheduler::run`] owns the state and does the I/O.
#![deny(missing_docs)]

mod bind;
mod cache;
mod cycle;
mod filter;
mod message;
mod pod_info;
mod preemption;
mod queue;
mod run;
mod score;
#[cfg(test)]
mod tests;
mod volumes;

pub use run::{Scheduler, SchedulerConfig};
