//! What a call of the API asks for, whichever way it goes there: in process or over HTTP.

use std::{sync::Arc, time::Duration};

use crate::Object;

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Label selector, e.g. `app=web,tier!=db`.
    pub label_selector: Option<String>,
    /// Field selector, e.g. `spec.nodeName=node-1`.
    pub field_selector: Option<String>,
}

/// What to watch, from where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchOptions {
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Deliver events after this revision; `None` starts with synthetic `Added` events of what exists.
    pub resource_version: Option<u64>,
}

/// What happened to a watched object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchType {
    /// It appeared (or began to match).
    Added,
    /// It changed.
    Modified,
    /// It went (or stopped matching).
    Deleted,
    /// Nothing but progress: the object carries only a resourceVersion.
    Bookmark,
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchType,
    /// The object after the change; for `Deleted` its last state.
    pub object: Arc<Object>,
}

/// How a patch body is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' strategic merge.
    Strategic,
    /// Server-side apply.
    Apply {
        /// Field manager.
        manager: String,
        /// Take fields over from other managers.
        force: bool,
    },
}

/// How to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`.
    pub grace_period: Option<Duration>,
    /// Refuse unless the object has this UID.
    pub uid: Option<String>,
    /// Refuse unless the object is at this revision.
    pub resource_version: Option<u64>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<&'static str>,
}
