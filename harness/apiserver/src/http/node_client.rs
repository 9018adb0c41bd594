//! Talking to node agents: one TLS connection per call, authenticated by the server's own client certificate.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use podlab_api::ApiError;
use podlab_clock::Clock;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use super::body::Body;
use crate::{
    errors::not_found,
    kinds::registry,
    server::ApiServer,
    tree::{int, list, text},
};

/// The usual port of a node agent.
const KUBELET_PORT: u16 = 10_250;
/// How long a node may take to accept a connection.
const DIAL: Duration = Duration::from_secs(10);

/// Connects to node agents.
pub(crate) struct NodeClient {
    tls: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeClient").finish_non_exhaustive()
    }
}

/// Where a node agent listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint {
    pub ip: IpAddr,
    pub port: u16,
}

impl NodeClient {
    /// A client that shows the certificate of `config`.
    pub fn new(config: rustls::ClientConfig) -> Self {
        Self { tls: Arc::new(config) }
    }

    /// Sends one request over a connection of its own, whose task `tracker` owns. Dropping the future is safe.
    ///
    /// # Errors
    /// 500 with upstream's sentence when the node cannot be reached.
    pub async fn send(
        &self,
        clock: Clock,
        tracker: &TaskTracker,
        to: Endpoint,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, ApiError> {
        let failed = |why: String| ApiError::internal(format!("Internal error occurred: error dialing backend: {why}"));
        let address = (to.ip, to.port);
        let dialed = clock.timeout(DIAL, TcpStream::connect(address)).await;
        let stream = match dialed {
            None => return Err(failed(format!("dial tcp {}:{}: i/o timeout", to.ip, to.port))),
            Some(Err(e)) => return Err(failed(format!("dial tcp {}:{}: connect: {}", to.ip, to.port, reason(&e)))),
            Some(Ok(stream)) => stream,
        };
        let _ = stream.set_nodelay(true);
        let name = ServerName::IpAddress(to.ip.into());
        let connecting = TlsConnector::from(self.tls.clone()).connect(name, stream);
        let stream = match clock.timeout(DIAL, connecting).await {
            None => return Err(failed("net/http: TLS handshake timeout".into())),
            Some(result) => result.map_err(|e| failed(format!("remote error: tls: {e}")))?,
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(e.to_string()))?;
        tracker.spawn(async move {
            if let Err(e) = connection.with_upgrades().await {
                tracing::debug!(error = %e, "connection to a node agent ended");
            }
        });
        sender.send_request(request).await.map_err(|e| failed(e.to_string()))
    }
}

/// The cause of a failed connection in the words of Go's errno.
fn reason(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        _ => e.to_string(),
    }
}

impl ApiServer {
    /// Where the agent of a node listens.
    ///
    /// # Errors
    /// 404 for an unknown node, 500 for one without an address.
    pub(super) fn node_endpoint(&self, node: &str) -> Result<Endpoint, ApiError> {
        let kind = registry().core("nodes");
        let stored = self.store.get(&kind.key(None, node)).ok_or_else(|| not_found(kind, node))?;
        let object = &stored.object.0;
        let addresses = list(object, "status.addresses");
        let find = |kind: &str| addresses.iter().find(|a| text(a, "type") == kind).map(|a| text(a, "address"));
        let address = ["InternalIP", "ExternalIP", "Hostname"].iter().find_map(|kind| find(kind));
        let ip = address.and_then(|a| a.parse().ok()).ok_or_else(|| {
            let why = format!("no preferred addresses found; known addresses: {}", addresses.len());
            ApiError::internal(format!("Internal error occurred: {why}"))
        })?;
        let port = int(object, "status.daemonEndpoints.kubeletEndpoint.Port").and_then(|p| u16::try_from(p).ok());
        Ok(Endpoint { ip, port: port.filter(|p| *p != 0).unwrap_or(KUBELET_PORT) })
    }
}

/// Headers of a client that may travel on to a backend: all but those of the hop, and never its credentials.
pub(super) fn forwardable(headers: &http::HeaderMap, upgrade: bool) -> http::HeaderMap {
    let mut out = http::HeaderMap::new();
    for (name, value) in headers {
        let hop = matches!(
            *name,
            header::CONNECTION
                | header::UPGRADE
                | header::TRANSFER_ENCODING
                | header::TE
                | header::TRAILER
                | header::CONTENT_LENGTH
        );
        let secret = matches!(*name, header::AUTHORIZATION | header::COOKIE | header::PROXY_AUTHORIZATION);
        if secret
            || *name == header::HOST
            || (hop && !(upgrade && matches!(*name, header::CONNECTION | header::UPGRADE)))
        {
            continue;
        }
        if *name == header::SEC_WEBSOCKET_PROTOCOL {
            // A token among the offered protocols is a credential too.
            let kept: Vec<&str> = value
                .to_str()
                .unwrap_or_default()
                .split(',')
                .map(str::trim)
                .filter(|p| !p.starts_with("base64url.bearer.authorization.k8s.io."))
                .collect();
            if let Ok(value) = http::HeaderValue::from_str(&kept.join(", ")) {
                out.append(name.clone(), value);
            }
            continue;
        }
        out.append(name.clone(), value.clone());
    }
    out
}
