//! gRPC whose messages nobody looks at: a server that hands bytes on, a client that sends them. An answer of one message
//! and a stream of messages look the same on the wire, so every call is served as a stream.

use std::{
    convert::Infallible,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use bytes::{Buf, BufMut, Bytes};
use futures::{Stream, future::BoxFuture};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::ServerStreamingService,
};

/// Largest message either way, as the CRI has it.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// A socket that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It cannot be opened.
    #[error("listen at {path}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A path that makes no URI.
    #[error("connect to {path}")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: Status,
    },
    /// A connection cannot be accepted.
    #[error("accept a connection")]
    Accept(#[source] io::Error),
}

/// Messages as bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = src.remaining();
        Ok(Some(src.copy_to_bytes(length)))
    }
}

/// Answers of a call.
pub(crate) type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Whoever answers calls.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers a call of `path`. Dropped when the caller gives up.
    fn call(self: Arc<Self>, path: String, request: Request<Bytes>) -> BoxFuture<'static, Result<Answers, Status>>;
}

struct One<H> {
    path: String,
    handler: Arc<H>,
}

impl<H: Handler> ServerStreamingService<Bytes> for One<H> {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let answered = self.handler.clone().call(self.path.clone(), request);
        Box::pin(async move { answered.await.map(Response::new) })
    }
}

/// Opens a socket, in place of what a dead process left there.
///
/// # Errors
/// [`WireError::Listen`].
pub(crate) fn listen(path: &Path) -> Result<UnixListener, WireError> {
    let open = || {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    open().map_err(|source| WireError::Listen { path: path.to_owned(), source })
}

/// Serves until `shutdown`; then the connections are dropped.
///
/// # Errors
/// [`WireError::Accept`].
pub(crate) async fn serve<H: Handler>(
    listener: UnixListener,
    handler: Arc<H>,
    shutdown: CancellationToken,
) -> Result<(), WireError> {
    let mut connections = JoinSet::new();
    let result = loop {
        tokio::select! {
            () = shutdown.cancelled() => break Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let handler = handler.clone();
                    let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let one = One { path: request.uri().path().to_owned(), handler: handler.clone() };
                        async move {
                            let mut grpc = tonic::server::Grpc::new(Raw)
                                .apply_max_message_size_config(Some(MAX_MESSAGE), Some(MAX_MESSAGE));
                            Ok::<_, Infallible>(grpc.server_streaming(one, request).await)
                        }
                    });
                    connections.spawn(async move {
                        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                            tracing::debug!(%error, "a connection broke");
                        }
                    });
                }
                Err(e) => break Err(WireError::Accept(e)),
            },
            Some(_) = connections.join_next() => {}
        }
    };
    connections.shutdown().await;
    result
}

/// A plugin behind a socket. Connects on first use and again after a loss. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Plugin(tonic::client::Grpc<tonic::transport::Channel>);

impl Plugin {
    /// Must be called inside a runtime.
    pub(crate) fn at(path: &Path) -> Result<Self, WireError> {
        let channel = podlab_csi::connect(path);
        let channel = channel.map_err(|source| WireError::Connect { path: path.to_owned(), source })?;
        let client = tonic::client::Grpc::new(channel);
        Ok(Self(client.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)))
    }

    /// Makes a call.
    pub(crate) async fn call(
        &self,
        path: &str,
        request: Request<Bytes>,
    ) -> Result<tonic::codec::Streaming<Bytes>, Status> {
        let mut client = self.0.clone();
        client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let path = path.parse().map_err(|_| Status::unimplemented(format!("{path:?} is no method")))?;
        client.server_streaming(request, path, Raw).await.map(Response::into_inner)
    }

    /// Makes a call that has one answer.
    pub(crate) async fn unary(&self, path: &str, request: Bytes) -> Result<Bytes, Status> {
        let mut answers = self.call(path, Request::new(request)).await?;
        let first = answers.message().await?;
        first.ok_or_else(|| Status::internal("the plugin ended the call without an answer"))
    }
}
