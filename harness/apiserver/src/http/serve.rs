//! Accepting connections: TLS, HTTP/1.1 and HTTP/2, one task per connection, all awaited at shutdown.

use std::{convert::Infallible, net::TcpListener, sync::Arc, time::Duration};

use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{auth::authenticate::certificate_user, context::User, server::ApiServer};

/// The server's TLS, ready to use; made by [`crate::pki::Authority::server_config`].
#[derive(Clone)]
pub struct Tls(pub Arc<rustls::ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The server could not begin to serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A listener could not be used.
    #[error("listen: {0}")]
    Listen(#[from] std::io::Error),
}

/// How long a client may take for its TLS handshake and its request head.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long connections may finish what they do after shutdown began.
const DRAIN: Duration = Duration::from_secs(2);
/// A machine that is out of descriptors is not asked again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl ApiServer {
    /// Serves until `shutdown`, on sockets that are bound already. Also removes events past their time.
    ///
    /// Dropping the future closes the listeners and aborts open connections.
    ///
    /// # Errors
    /// [`ServeError`] when a listener cannot be used.
    pub async fn serve(
        self: Arc<Self>,
        listeners: Vec<TcpListener>,
        tls: Tls,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let (tracker, acceptor) = (TaskTracker::new(), TlsAcceptor::from(tls.0));
        let mut loops = tokio::task::JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            loops.spawn(accept(self.clone(), listener, acceptor.clone(), tracker.clone(), shutdown.clone()));
        }
        loops.spawn(self.clone().upkeep(shutdown.clone()));
        while loops.join_next().await.is_some() {}
        tracker.close();
        if self.clock.timeout(DRAIN, tracker.wait()).await.is_none() {
            tracing::debug!(open = tracker.len(), "connections were cut at shutdown");
        }
        Ok(())
    }
}

async fn accept(
    server: Arc<ApiServer>,
    listener: tokio::net::TcpListener,
    acceptor: TlsAcceptor,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let serving = connection(server.clone(), stream, acceptor.clone(), tracker.clone(), shutdown.clone());
                tracker.spawn(serving);
            }
            Err(e) => {
                tracing::warn!(error = %e, "accept failed");
                server.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    server: Arc<ApiServer>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    // Small answers must not wait for the next one.
    let _ = stream.set_nodelay(true);
    let handshake = server.clock.timeout(PATIENCE, acceptor.accept(stream)).await;
    let Some(Ok(stream)) = handshake else {
        tracing::debug!("TLS handshake failed");
        return;
    };
    let user: Option<User> =
        stream.get_ref().1.peer_certificates().and_then(|c| c.first()).and_then(|c| certificate_user(c));
    let peer = Arc::new(Peer { user, tracker, shutdown: shutdown.clone() });
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (server, peer) = (server.clone(), peer.clone());
        async move { Ok::<_, Infallible>(server.handle(&peer, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).half_close(false);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(250);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        result = serving.as_mut() => {
            if let Err(e) = result {
                tracing::debug!(error = %e, "connection ended");
            }
        }
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// What a connection knows about its client and its own end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub user: Option<User>,
    /// Owns what outlives a request: spliced streams.
    pub tracker: TaskTracker,
    pub shutdown: CancellationToken,
}
