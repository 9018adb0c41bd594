//! The body of a watch: one JSON object per line, encoded once for all watchers where nothing is transformed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode};
use podlab_api::{ApiError, jiff::Timestamp};
use podlab_clock::Mono;
use podlab_store::EventKind;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, Form, Wish},
    body::{self, Body},
    request::{Query, Target},
    serve::Peer,
};
use crate::{
    kinds::Kind,
    machine::{Watch, WatchChange, WatchQuery},
    server::ApiServer,
    table::render,
};

/// How often a quiet watch is told how far it is. Upstream: about a minute.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A last bookmark comes this long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// The server ends watches after this long, up to twice; clients begin a new one.
const MIN_TIMEOUT: Duration = Duration::from_secs(1800);

impl ApiServer {
    pub(super) fn watch_response(
        self: &Arc<Self>,
        peer: &Peer,
        target: &Target,
        watch_query: WatchQuery,
        query: &Query,
        wish: Wish,
    ) -> Result<Response<Body>, ApiError> {
        let timeout = match query.number::<u64>("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
            _ => MIN_TIMEOUT + Duration::from_secs(self.rng.below(MIN_TIMEOUT.as_secs())),
        };
        let bookmarks = watch_query.bookmarks;
        let kind = target.kind;
        let watch = self.watch_objects(kind, target.namespace.as_deref(), watch_query)?;
        let now = self.clock.now();
        let lines = Lines {
            server: self.clone(),
            watch,
            kind,
            wish,
            end: now.after(timeout),
            next_bookmark: bookmarks.then(|| now.after(BOOKMARK_EVERY.min(timeout.saturating_sub(LAST_BOOKMARK)))),
            columns_sent: false,
            shutdown: peer.shutdown.clone(),
            over: false,
        };
        let pieces = stream::unfold(lines, Lines::next);
        Ok(answer::with_type(StatusCode::OK, "application/json", body::stream(pieces)))
    }
}

/// A watch on its way to a client.
struct Lines {
    server: Arc<ApiServer>,
    watch: Watch,
    kind: &'static Kind,
    wish: Wish,
    end: Mono,
    next_bookmark: Option<Mono>,
    columns_sent: bool,
    shutdown: CancellationToken,
    over: bool,
}

impl Lines {
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        if self.over {
            return None;
        }
        loop {
            let clock = self.server.clock;
            let wake = self.next_bookmark.unwrap_or(self.end).min(self.end);
            let change = tokio::select! {
                biased;
                change = self.watch.next() => change?,
                () = self.shutdown.cancelled() => return None,
                () = clock.sleep_until(wake) => {
                    let now = clock.now();
                    if now >= self.end {
                        return None;
                    }
                    self.watch.request_bookmark();
                    let usual = now.after(BOOKMARK_EVERY);
                    let last = Mono(self.end.0.saturating_sub(LAST_BOOKMARK.as_nanos() as u64));
                    self.next_bookmark = Some(if now >= last { self.end } else { usual.min(last) });
                    continue;
                }
            };
            let line = match change {
                Ok(change) => self.line(&change),
                Err(e) => {
                    self.over = true;
                    frame("ERROR", &e.to_status())
                }
            };
            return Some((Ok(line), self));
        }
    }

    fn line(&mut self, change: &WatchChange) -> Bytes {
        match (change, self.wish.form) {
            (WatchChange::Object { shared: Some(event), .. }, Form::Plain) => event.frame().clone(),
            (WatchChange::Object { kind, stored, .. }, Form::Plain) => {
                let mut line = Vec::with_capacity(stored.json().len() + 40);
                line.extend_from_slice(format!("{{\"type\":\"{}\",\"object\":", kind.as_str()).as_bytes());
                line.extend_from_slice(stored.json());
                line.extend_from_slice(b"}\n");
                line.into()
            }
            (WatchChange::Object { kind, stored, .. }, _) => {
                let now = self.server.clock.wall();
                let object = self.transform(&stored.object.0, now);
                frame(kind.as_str(), &object)
            }
            (WatchChange::Bookmark { object }, Form::Plain) => frame(EventKind::Progress.as_str(), object),
            (WatchChange::Bookmark { object }, Form::Partial) => {
                frame(EventKind::Progress.as_str(), &render::partial(object))
            }
            (WatchChange::Bookmark { object }, Form::Table(_)) => {
                let row = json!({"cells": [], "object": render::partial(object)});
                let meta = json!({"resourceVersion": crate::tree::text(object, "metadata.resourceVersion")});
                frame(EventKind::Progress.as_str(), &render::table(None, vec![row], meta))
            }
        }
    }

    fn transform(&mut self, object: &Value, now: Timestamp) -> Value {
        match self.wish.form {
            Form::Plain => object.clone(),
            Form::Partial => render::partial(object),
            Form::Table(include) => {
                let table = &self.kind.strategy.table;
                let columns = (!self.columns_sent).then(|| render::columns(table));
                self.columns_sent = true;
                let meta = json!({"resourceVersion": crate::tree::text(object, "metadata.resourceVersion")});
                render::table(columns, vec![render::row(table, object, now, include)], meta)
            }
        }
    }
}

fn frame(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}
