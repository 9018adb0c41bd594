//! What the store keeps and what it tells watchers; each is encoded to JSON at most once.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use podlab_api::Object;

/// One version of one object.
#[derive(Debug)]
pub struct Stored {
    /// The object; its `metadata.resourceVersion` is `revision`.
    pub object: Arc<Object>,
    /// The revision that wrote it.
    pub revision: u64,
    json: OnceLock<Bytes>,
}

impl Stored {
    /// A version whose JSON is made when first asked for.
    pub(crate) fn new(object: Object, revision: u64) -> Self {
        Self { object: Arc::new(object), revision, json: OnceLock::new() }
    }

    /// A version that is not in a store: a dry run's answer, or a converted form.
    pub fn detached(object: Object, revision: u64) -> Self {
        Self::new(object, revision)
    }

    /// A version whose JSON is known already.
    pub(crate) fn encoded(object: Object, revision: u64, json: Bytes) -> Self {
        Self { object: Arc::new(object), revision, json: OnceLock::from(json) }
    }

    /// The object as JSON text, encoded once and shared.
    pub fn json(&self) -> &Bytes {
        self.json.get_or_init(|| {
            // A serde_json::Value has string keys only, so encoding cannot fail.
            serde_json::to_vec(&*self.object).map(Bytes::from).unwrap_or_default()
        })
    }
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The key came into being.
    Added,
    /// The object changed.
    Modified,
    /// The key is gone; the event carries the last state with the deletion's revision.
    Deleted,
    /// Nothing happened up to this revision: every earlier event of the watch has been delivered.
    Progress,
}

impl EventKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Progress => "BOOKMARK",
        }
    }
}

/// One change, shared by all watchers.
#[derive(Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The revision of the change.
    pub revision: u64,
    /// Which key; empty for [`EventKind::Progress`].
    pub key: Arc<str>,
    /// The new state; for a deletion the last one. `None` only for [`EventKind::Progress`].
    pub stored: Option<Arc<Stored>>,
    /// The state before, when there was one.
    pub prev: Option<Arc<Stored>>,
    frame: OnceLock<Bytes>,
}

impl Event {
    pub(crate) fn new(
        kind: EventKind,
        revision: u64,
        key: Arc<str>,
        stored: Arc<Stored>,
        prev: Option<Arc<Stored>>,
    ) -> Self {
        Self { kind, revision, key, stored: Some(stored), prev, frame: OnceLock::new() }
    }

    pub(crate) fn progress(revision: u64) -> Self {
        let key = Arc::from("");
        Self { kind: EventKind::Progress, revision, key, stored: None, prev: None, frame: OnceLock::new() }
    }

    /// The event as one line of a watch body, `{"type":…,"object":…}\n`, encoded once and shared. Empty for progress.
    pub fn frame(&self) -> &Bytes {
        self.frame.get_or_init(|| self.stored.as_ref().map_or_else(Bytes::new, |s| frame(self.kind.as_str(), s.json())))
    }
}

/// One line of a watch body around an encoded object.
pub(crate) fn frame(kind: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + kind.len() + 24);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(kind.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(object);
    line.put_slice(b"}\n");
    line.freeze()
}
