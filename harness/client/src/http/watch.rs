//! A watch response as a stream of events: one JSON document per line, arbitrarily cut into chunks.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use futures::{Stream, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use podlab_api::{ApiError, Object, Reason};
use serde::Deserialize;
use serde_json::Value;

use crate::{WatchEvent, WatchType};

/// A line longer than this ends the watch: no object is that large.
const MAX_LINE: usize = 16 << 20;

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

struct State {
    body: Incoming,
    buffer: BytesMut,
    scanned: usize,
    failed: bool,
}

/// The events of a watch body. Ends with the body; an ERROR event becomes an error and ends the stream.
pub(super) fn events(body: Incoming) -> impl Stream<Item = Result<WatchEvent, ApiError>> {
    let state = State { body, buffer: BytesMut::new(), scanned: 0, failed: false };
    stream::unfold(state, |mut state| async move {
        let item = state.next().await?;
        state.failed = item.is_err();
        Some((item, state))
    })
}

impl State {
    async fn next(&mut self) -> Option<Result<WatchEvent, ApiError>> {
        if self.failed {
            return None;
        }
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.scanned + end);
                self.buffer.advance(1);
                self.scanned = 0;
                if !line.is_empty() {
                    return Some(event(&line));
                }
                continue;
            }
            self.scanned = self.buffer.len();
            if self.scanned > MAX_LINE {
                return Some(Err(ApiError::internal("watch event is too long")));
            }
            match self.body.frame().await? {
                Err(e) => return Some(Err(ApiError::new(Reason::ServiceUnavailable, e.to_string()))),
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn event(line: &[u8]) -> Result<WatchEvent, ApiError> {
    let line: Line = serde_json::from_slice(line).map_err(|e| ApiError::internal(format!("watch event: {e}")))?;
    let kind = match line.kind.as_str() {
        "ADDED" => WatchType::Added,
        "MODIFIED" => WatchType::Modified,
        "DELETED" => WatchType::Deleted,
        "BOOKMARK" => WatchType::Bookmark,
        "ERROR" => {
            let code = line.object.get("code").and_then(Value::as_u64).unwrap_or(500);
            return Err(ApiError::from_status(u16::try_from(code).unwrap_or(500), &line.object));
        }
        other => return Err(ApiError::internal(format!("watch event of unknown type {other:?}"))),
    };
    Ok(WatchEvent { kind, object: Arc::new(Object(line.object)) })
}
