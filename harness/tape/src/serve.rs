//! A tape in a plugin's place: each call is answered as the tape says.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use crate::{
    format::{Answer, Call, Tape},
    methods::{Seam, Side, decode, encode, parts},
    redact::redact,
    wire::{self, Answers, Handler, WireError},
};

/// Serves a tape at `listen` until `shutdown`. A call is answered by the next one of its method with the same request, or,
/// when there is none, by the last one that was; a call that is not on the tape is `NOT_FOUND`. Streams stay open and
/// empty.
///
/// # Errors
/// [`WireError`].
pub async fn serve(tape: Tape, listen: &Path, shutdown: CancellationToken) -> Result<(), WireError> {
    let used = Mutex::new(vec![false; tape.calls.len()]);
    wire::serve(wire::listen(listen)?, Arc::new(Fake { tape, used }), shutdown).await
}

struct Fake {
    tape: Tape,
    /// Which calls have been answered already.
    used: Mutex<Vec<bool>>,
}

impl Fake {
    fn find(&self, method: &str, request: &Value) -> Option<&Call> {
        let mut used = self.used.lock();
        let all = self.tape.calls.iter().enumerate().filter(|(_, c)| c.method == method && c.request == *request);
        let mut last = None;
        for (i, call) in all {
            if !used[i] {
                used[i] = true;
                return Some(call);
            }
            last = Some(call);
        }
        last
    }

    fn answer(&self, path: &str, request: &[u8]) -> Result<Bytes, Status> {
        let method = parts(path).map_or("", |(_, m)| m);
        let asked = decode(path, Side::Request, request);
        let mut asked = asked
            .ok_or_else(|| Status::unimplemented(format!("{path} is on no tape")))?
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        redact(&mut asked);
        let call = self.find(method, &asked);
        match call.map(|c| &c.answer) {
            None => Err(Status::not_found(format!("the tape has no such {method}"))),
            Some(Answer::Reply(reply)) => encode(path, Side::Reply, reply).map_err(|e| Status::internal(e.to_string())),
            Some(Answer::Error { code, message }) => Err(Status::new(Code::from_i32(*code), message.clone())),
        }
    }
}

impl Handler for Fake {
    fn call(self: Arc<Self>, path: String, request: Request<Bytes>) -> BoxFuture<'static, Result<Answers, Status>> {
        Box::pin(async move {
            if path.ends_with("/GetContainerEvents") && self.tape.seam == Seam::Cri {
                return Ok(stream::pending().boxed() as Answers);
            }
            let bytes = self.answer(&path, request.get_ref())?;
            Ok(stream::iter([Ok(bytes)]).boxed() as Answers)
        })
    }
}
