//! Recording: a proxy in front of a plugin that writes down what passes.

use std::{fs::File, io::Write, path::Path, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use podlab_clock::{Clock, Mono};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use crate::{
    format::{Answer, Call, MAX_TAPE, TapeError, head_line, line},
    methods::{Seam, Side, decode, parts},
    redact::redact,
    wire::{self, Answers, Handler, Plugin, WireError},
};

/// Where calls are written down: appended line by line, each with one write, so that a killed recorder leaves a tape.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    begin: Mono,
    out: Mutex<Out>,
}

#[derive(Debug)]
struct Out {
    file: File,
    written: u64,
}

impl Recorder {
    /// Begins a tape in a file opened for appending, or goes on with what a recorder before this one wrote there; then
    /// the times of the calls count from now.
    ///
    /// # Errors
    /// [`TapeError::File`], naming `path`.
    pub fn begin(mut file: File, path: &Path, seam: Seam, clock: Clock) -> Result<Self, TapeError> {
        let fail = |source| TapeError::File { path: path.to_owned(), source };
        let mut written = file.metadata().map_err(fail)?.len();
        if written == 0 {
            let head = head_line(seam);
            file.write_all(&head).map_err(fail)?;
            written = u64::try_from(head.len()).unwrap_or(u64::MAX);
        }
        Ok(Self { clock, begin: clock.now(), out: Mutex::new(Out { file, written }) })
    }

    /// Writes a call down. A tape that is full stays as it is; one that cannot be written is said in the log.
    fn write(&self, path: &str, began: Mono, mut request: Value, mut answer: Answer) {
        let Some((_, method)) = parts(path) else { return };
        redact(&mut request);
        if let Answer::Reply(reply) = &mut answer {
            redact(reply);
        }
        let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        let call = Call {
            method: method.to_owned(),
            at_us: micros(began.since(self.begin)),
            took_us: micros(self.clock.now().since(began)),
            request,
            answer,
        };
        let bytes = line(&call);
        let mut out = self.out.lock();
        let after = out.written.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if after > MAX_TAPE {
            return;
        }
        out.written = after;
        if let Err(error) = out.file.write_all(&bytes) {
            tracing::warn!(%error, method, "a call is not on the tape");
        }
    }
}

/// Passes everything on from `listen` to `plugin` and writes down the calls that have one answer, until `shutdown`.
///
/// # Errors
/// [`WireError`].
pub async fn record(
    listen: &Path,
    plugin: &Path,
    recorder: Recorder,
    shutdown: CancellationToken,
) -> Result<(), WireError> {
    let proxy = Proxy { plugin: Plugin::at(plugin)?, recorder };
    wire::serve(wire::listen(listen)?, Arc::new(proxy), shutdown).await
}

struct Proxy {
    plugin: Plugin,
    recorder: Recorder,
}

impl Handler for Proxy {
    fn call(self: Arc<Self>, path: String, request: Request<Bytes>) -> BoxFuture<'static, Result<Answers, Status>> {
        Box::pin(async move {
            let asked = decode(&path, Side::Request, request.get_ref());
            let began = self.recorder.clock.now();
            let Some(Ok(asked)) = asked else {
                // A stream, or a method this does not know: it passes, and is not on the tape.
                return self.plugin.call(&path, request).await.map(|answers| Box::pin(answers) as Answers);
            };
            let answered = match self.plugin.call(&path, request).await {
                Ok(mut answers) => match answers.message().await {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => Err(Status::internal("the plugin ended the call without an answer")),
                    Err(status) => Err(status),
                },
                Err(status) => Err(status),
            };
            match answered {
                Ok(bytes) => {
                    if let Some(Ok(reply)) = decode(&path, Side::Reply, &bytes) {
                        self.recorder.write(&path, began, asked, Answer::Reply(reply));
                    }
                    Ok(stream::iter([Ok(bytes)]).boxed())
                }
                Err(status) => {
                    let answer = Answer::Error { code: status.code() as i32, message: status.message().to_owned() };
                    self.recorder.write(&path, began, asked, answer);
                    Err(status)
                }
            }
        })
    }
}
