//! The agent's HTTPS API: logs, exec, attach, port-forward, Pods, statistics. Only clients with a certificate of the
//! cluster's CA get in. Source: k/k pkg/kubelet/server/server.go.

mod logs;
mod metrics;
mod route;
mod stream;
mod summary;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

pub use self::logs::choose as log_source;
use crate::{agent::Agent, config::ServerConfig};

/// How long a client may take for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("listen on {at}")]
    Listen {
        /// Which.
        at: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or key does not parse or fit.
    #[error("use the server's certificates: {0}")]
    Tls(String),
}

/// A bound server.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: tokio_rustls::TlsAcceptor,
}

impl Listener {
    /// Where it listens.
    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Binds the server's address.
pub(crate) async fn listen(config: &ServerConfig) -> Result<Listener, ServerError> {
    let tls = tls::acceptor(&config.tls)?;
    let tcp =
        TcpListener::bind(config.listen).await.map_err(|source| ServerError::Listen { at: config.listen, source })?;
    Ok(Listener { tcp, tls })
}

/// Serves until the agent stops.
pub(crate) async fn serve(agent: Arc<Agent>, listener: Listener) {
    let shutdown = agent.shutdown.clone();
    loop {
        let accepted = match shutdown.run_until_cancelled(listener.tcp.accept()).await {
            None => return,
            Some(a) => a,
        };
        match accepted {
            Ok((tcp, _)) => {
                let (agent, tls) = (agent.clone(), listener.tls.clone());
                agent.tasks.clone().spawn(connection(agent, tls, tcp));
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                agent.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(agent: Arc<Agent>, tls: tokio_rustls::TlsAcceptor, tcp: TcpStream) {
    // Small frames of exec and logs must not wait for more.
    let _ = tcp.set_nodelay(true);
    let stream = match agent.clock.timeout(HANDSHAKE, tls.accept(tcp)).await {
        Some(Ok(s)) => s,
        Some(Err(error)) => {
            tracing::debug!(%error, "handshake failed");
            return;
        }
        None => return,
    };
    let shutdown = agent.shutdown.clone();
    let service = hyper::service::service_fn(move |request| {
        let agent = agent.clone();
        async move { Ok::<_, std::convert::Infallible>(route::answer(agent, request).await) }
    });
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Some(Err(error)) = shutdown.run_until_cancelled(serving).await {
        tracing::debug!(%error, "connection ended");
    }
}
