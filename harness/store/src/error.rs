//! How a store operation fails.

use std::{path::PathBuf, sync::Arc};

/// A failed store operation. Cloneable because one failed log write fails every write of its batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// A create met an existing key.
    #[error("key {key} exists")]
    Exists {
        /// Which key.
        key: String,
    },
    /// An update or delete met no object.
    #[error("key {key} not found")]
    NotFound {
        /// Which key.
        key: String,
    },
    /// The object's revision is not the expected one.
    #[error("key {key} is at revision {current}")]
    Conflict {
        /// Which key.
        key: String,
        /// The revision it has.
        current: u64,
    },
    /// The revision asked for is older than the history kept.
    #[error("revision {requested} is older than the history, which begins after {oldest}")]
    Expired {
        /// The revision asked for.
        requested: u64,
        /// The newest revision that is no longer kept.
        oldest: u64,
    },
    /// The revision asked for has not happened yet.
    #[error("revision {requested} is in the future, the store is at {current}")]
    Future {
        /// The revision asked for.
        requested: u64,
        /// The newest revision.
        current: u64,
    },
    /// The watcher did not read as fast as events came and was closed.
    #[error("watcher fell behind")]
    Slow,
    /// The log could not be written; nothing was changed.
    #[error("write the log: {0}")]
    Log(#[source] Arc<std::io::Error>),
    /// The log could not be opened or read.
    #[error("open the log {path}: {source}")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// An object could not be encoded.
    #[error("encode {key}: {why}")]
    Encode {
        /// Which key.
        key: String,
        /// What the encoder said.
        why: String,
    },
    /// The store is shut down.
    #[error("the store is closed")]
    Closed,
}
