//! The multi-version object store: everything in memory, a write-ahead log beneath it, watches above it.
//!
//! One global revision grows by one with every write. A write is checked against the newest state, appended to the
//! log, applied, published to watchers and only then acknowledged, in that order: memory is never ahead of the log.
//! A bounded window of history serves watches and reads at an older revision; what fell out of it is
//! [`StoreError::Expired`]. The store knows nothing of kinds, admission or time.
//!
//! Keys are `/<group>/<plural>/<namespace>/<name>`, with an empty namespace for cluster-scoped objects.
#![deny(missing_docs)]

mod error;
mod event;
mod log;
mod state;
mod store;
mod watch;

#[cfg(test)]
mod tests;

pub use error::StoreError;
pub use event::{Event, EventKind, Stored};
pub use store::{Durable, Listing, Store, StoreConfig};
pub use watch::Watcher;
