//! DaemonSet: one Pod on each node it fits. Source: k/k pkg/controller/daemon.
//!
//! [`node`] decides for one node and [`rolling`] for an update over all, both pure; [`sync`] does what they say.

mod node;
mod rolling;
mod start;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use start::start;
