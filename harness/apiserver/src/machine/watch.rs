//! Watch: what is there, then what happens, filtered by selectors with the transitions that filtering makes.

use std::{collections::VecDeque, sync::Arc};

use podlab_api::{ApiError, Object};
use podlab_store::{Event, EventKind, Stored, Watcher};
use serde_json::{Value, json};

use super::{ListQuery, read::convert};
use crate::{
    errors::{from_store, invalid_options},
    kinds::Kind,
    server::ApiServer,
};

/// What to watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchQuery {
    pub filter: ListQuery,
    /// Events after this revision; `None` or 0 begins with what is there.
    pub revision: Option<u64>,
    pub bookmarks: bool,
    /// `sendInitialEvents`.
    pub initial_events: Option<bool>,
    pub matching_not_older: bool,
}

/// One event of a watch, as the client is to see it.
#[derive(Debug)]
pub(crate) enum Change {
    /// An object appeared, changed or went.
    Object {
        kind: EventKind,
        stored: Arc<Stored>,
        /// The shared event, when its encoded line can be used as it is.
        shared: Option<Arc<Event>>,
    },
    /// Everything up to the revision has been delivered.
    Bookmark { object: Value },
}

/// A watch that has begun. Ends when the store closes; an error is its last item. Dropping it is safe.
pub(crate) struct Watch {
    kind: &'static Kind,
    query: WatchQuery,
    pending: VecDeque<Change>,
    watcher: Watcher,
    failed: bool,
}

impl ApiServer {
    /// Starts a watch.
    ///
    /// # Errors
    /// 410 for a revision no longer kept, 504 for a future one, 422 for options that clash.
    pub(crate) fn watch_objects(
        &self,
        kind: &'static Kind,
        namespace: Option<&str>,
        query: WatchQuery,
    ) -> Result<Watch, ApiError> {
        if query.initial_events.is_some() && !query.matching_not_older {
            let body = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return Err(invalid_options("ListOptions", "resourceVersionMatch", body));
        }
        if query.initial_events.is_none() && query.matching_not_older {
            let body = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(invalid_options("ListOptions", "resourceVersionMatch", body));
        }
        let prefix = kind.prefix_of(namespace);
        let from = query.revision.filter(|r| *r > 0);
        let with_state = query.initial_events.unwrap_or(from.is_none());
        let mut pending = VecDeque::new();
        let watcher = if with_state {
            let (listing, watcher) = self.store.list_watch(&prefix).map_err(|e| from_store(kind, "", e))?;
            for (_, stored) in listing.items {
                let stored = convert(kind, stored);
                if query.filter.matches(&stored.object.0) {
                    pending.push_back(Change::Object { kind: EventKind::Added, stored, shared: None });
                }
            }
            if query.initial_events == Some(true) && query.bookmarks {
                pending.push_back(Change::Bookmark { object: bookmark(kind, listing.revision, true) });
            }
            watcher
        } else {
            self.store.watch(&prefix, from).map_err(|e| from_store(kind, "", e))?
        };
        Ok(Watch { kind, query, pending, watcher, failed: false })
    }
}

impl Watch {
    /// The next event. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Change, ApiError>> {
        if self.failed {
            return None;
        }
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(Ok(change));
            }
            match self.watcher.next().await? {
                Ok(event) => {
                    if let Some(change) = self.see(event) {
                        return Some(Ok(change));
                    }
                }
                Err(e) => {
                    self.failed = true;
                    return Some(Err(from_store(self.kind, "", e)));
                }
            }
        }
    }

    /// Asks for a bookmark after what has happened so far.
    pub fn request_bookmark(&self) {
        self.watcher.request_progress();
    }

    /// What the client is to see of an event.
    fn see(&self, event: Arc<Event>) -> Option<Change> {
        let Some(stored) = event.stored.clone() else {
            let object = bookmark(self.kind, event.revision, false);
            return self.query.bookmarks.then_some(Change::Bookmark { object });
        };
        let filter = &self.query.filter;
        if filter.labels.is_empty() && filter.fields.is_empty() && !self.kind.converted() {
            return Some(Change::Object { kind: event.kind, stored, shared: Some(event) });
        }
        let stored = convert(self.kind, stored);
        let is = event.kind != EventKind::Deleted && filter.matches(&stored.object.0);
        let was = event.prev.as_ref().is_some_and(|p| filter.matches(&convert(self.kind, p.clone()).object.0));
        let kind = match (was, is) {
            (false, false) => return None,
            (false, true) => EventKind::Added,
            (true, true) => EventKind::Modified,
            (true, false) => EventKind::Deleted,
        };
        if kind == EventKind::Deleted && event.kind != EventKind::Deleted {
            // The client sees the last state that matched, at the revision of the change.
            let prev = event.prev.as_ref().map(|p| convert(self.kind, p.clone()))?;
            let mut object = (*prev.object).clone();
            object.meta_mut().insert("resourceVersion".into(), event.revision.to_string().into());
            let stored = Arc::new(Stored::detached(object, event.revision));
            return Some(Change::Object { kind, stored, shared: None });
        }
        let shared = (kind == event.kind && !self.kind.converted()).then_some(event);
        Some(Change::Object { kind, stored, shared })
    }
}

/// The object of a bookmark.
fn bookmark(kind: &Kind, revision: u64, initial_end: bool) -> Value {
    let mut object = json!({
        "kind": kind.resource.kind, "apiVersion": kind.resource.api_version(),
        "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
    });
    if initial_end {
        crate::tree::map_at(&mut object, "metadata.annotations")
            .insert("k8s.io/initial-events-end".into(), "true".into());
    }
    object
}

impl Change {
    /// The object, however it is held.
    pub fn object(&self) -> Arc<Object> {
        match self {
            Self::Object { stored, .. } => stored.object.clone(),
            Self::Bookmark { object } => Arc::new(Object(object.clone())),
        }
    }
}
