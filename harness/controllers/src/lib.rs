//! Controllers: level-based loops that make the cluster what its objects say.
//!
//! Each is a [`Reconcile`](work::Reconcile) over keys; [`work::drive`] owns the queue, the retries and the back-off.
//! [`Controllers::run`] starts them all on one client. Reconciling twice in a row changes nothing the second time.
#![deny(missing_docs)]

mod claim_pods;
mod cron;
mod daemon;
mod deployment;
mod disruption;
mod endpoints;
mod garbage;
mod job;
mod namespace;
mod node_lifecycle;
mod pod_gc;
mod replicaset;
mod replicated;
mod revision;
mod run;
mod seed;
mod stateful;
mod taint_eviction;
#[cfg(test)]
mod tests;
mod volumes;
pub mod work;
mod zones;

pub use run::{Controllers, ControllersConfig};
