//! Get and list, at one consistent revision.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use podlab_api::{ApiError, Object, Reason};
use podlab_store::{StoreError, Stored};
use serde_json::{Value, json};

use crate::{
    errors::{from_store, invalid_options, not_found, too_large},
    kinds::{Kind, event_from_storage},
    selector::{FieldSelector, LabelSelector},
    server::ApiServer,
};

/// `resourceVersionMatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    NotOlderThan,
    Exact,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListQuery {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// `resourceVersion`; 0 is any.
    pub revision: Option<u64>,
    pub matching: Option<Match>,
    pub limit: Option<usize>,
    pub token: Option<String>,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Listed {
    pub items: Vec<Arc<Stored>>,
    pub revision: u64,
    /// `metadata.continue`, when there is more.
    pub token: Option<String>,
    /// `metadata.remainingItemCount`, known when nothing is filtered.
    pub remaining: Option<usize>,
}

impl ListQuery {
    /// Whether the object is wanted.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

impl ApiServer {
    /// Reads one object.
    ///
    /// # Errors
    /// 404.
    pub(crate) fn get_object(&self, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<Arc<Stored>, ApiError> {
        let stored = self.store.get(&kind.key(namespace, name)).ok_or_else(|| not_found(kind, name))?;
        Ok(convert(kind, stored))
    }

    /// Reads a collection, or one page of it.
    ///
    /// # Errors
    /// 410 for a revision no longer kept, 504 for a future one, 400 for a bad token, 422 for options that clash.
    pub(crate) fn list_objects(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        query: &ListQuery,
    ) -> Result<Listed, ApiError> {
        let bad = |field: &str, body: &str| Err(invalid_options("ListOptions", field, body));
        match (query.matching, query.revision, &query.token) {
            (Some(_), None, None) => {
                return bad(
                    "resourceVersionMatch",
                    "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            (Some(_), _, Some(_)) => {
                return bad(
                    "resourceVersionMatch",
                    "Forbidden: resourceVersionMatch is forbidden when continue is provided",
                );
            }
            (Some(Match::Exact), Some(0), _) => {
                let body = "Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"";
                return bad("resourceVersionMatch", body);
            }
            _ => {}
        }
        let page = query.token.as_deref().map(PageToken::parse).transpose()?;
        let exact = query.matching == Some(Match::Exact) || (query.limit.is_some() && query.matching.is_none());
        let at = match (&page, query.revision) {
            (Some(page), _) => Some(page.revision),
            (None, Some(revision)) if revision > 0 => {
                let current = self.store.revision();
                if revision > current {
                    return Err(too_large(revision, current));
                }
                exact.then_some(revision)
            }
            _ => None,
        };
        let prefix = kind.prefix_of(namespace);
        let listing = self.store.list(&prefix, at).map_err(|e| match (e, &page) {
            (StoreError::Expired { .. }, Some(page)) => page.expired(self.store.revision()),
            (e, _) => from_store(kind, "", e),
        })?;
        // A limit is ignored when any cached state will do. Source: k/k apiserver/pkg/storage/cacher computeListLimit.
        let limit = query.limit.filter(|n| *n > 0 && query.revision != Some(0)).unwrap_or(usize::MAX);
        let (mut items, mut last, mut remaining, mut more) = (Vec::new(), None, 0, false);
        let after = page.as_ref().map(|p| format!("{}{}", kind.prefix, p.start));
        for (key, stored) in listing.items {
            if after.as_deref().is_some_and(|after| &*key <= after) {
                continue;
            }
            let stored = convert(kind, stored);
            if !query.matches(&stored.object.0) {
                continue;
            }
            if items.len() >= limit {
                more = true;
                remaining += 1;
                continue;
            }
            last = Some(key);
            items.push(stored);
        }
        let filtered = !query.labels.is_empty() || !query.fields.is_empty();
        let token = last.filter(|_| more).map(|key| PageToken::text(listing.revision, &key[kind.prefix.len()..]));
        Ok(Listed { items, revision: listing.revision, token, remaining: (more && !filtered).then_some(remaining) })
    }
}

/// The stored object in the form of the row it was asked for by.
pub(crate) fn convert(kind: &Kind, stored: Arc<Stored>) -> Arc<Stored> {
    if !kind.converted() {
        return stored;
    }
    Arc::new(Stored::detached(Object(event_from_storage(&stored.object.0)), stored.revision))
}

/// Where the next page begins.
struct PageToken {
    revision: u64,
    start: String,
}

impl PageToken {
    fn text(revision: u64, start: &str) -> String {
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
    }

    fn parse(token: &str) -> Result<Self, ApiError> {
        let bad = || ApiError::bad_request("continue key is not valid: incorrect encoding");
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| bad())?;
        let tree: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        let start = tree.get("start").and_then(Value::as_str).ok_or_else(bad)?;
        Ok(Self { revision: tree.get("rv").and_then(Value::as_u64).ok_or_else(bad)?, start: start.into() })
    }

    /// 410, with a token that continues from the same key in today's state.
    fn expired(&self, current: u64) -> ApiError {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start \
                       a new list without the continue parameter, or use the continue token in this response to \
                       retrieve the remainder of the results. Continuing with the provided token results in an \
                       inconsistent list - objects that were created, modified, or deleted between the time the first \
                       chunk was returned and now may show up in the list.";
        let mut error = ApiError::new(Reason::Expired, message);
        error.details = Some(json!({"continue": Self::text(current, &self.start)}));
        error
    }
}
