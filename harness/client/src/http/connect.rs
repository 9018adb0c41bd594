//! Opening connections: TCP with no delay, TLS with the cluster's CA and the user's certificate.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::kubeconfig::ClusterAccess;

/// Why a client could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A PEM block does not parse.
    #[error("parse {what}: {why}")]
    Pem {
        /// CA, client certificate or client key.
        what: &'static str,
        /// Parser's words.
        why: String,
    },
    /// TLS settings do not fit together.
    #[error("set up TLS")]
    Tls(#[source] rustls::Error),
    /// The server is not an http(s) URL.
    #[error("server {0:?} is not an http or https URL")]
    Server(String),
}

/// Opens connections for hyper's pool.
#[derive(Clone)]
pub struct Connector {
    tls: Option<TlsConnector>,
}

impl Connector {
    /// Prepares TLS from a cluster's access data.
    ///
    /// # Errors
    /// [`AccessError`] when a certificate or key does not parse.
    pub fn new(access: &ClusterAccess) -> Result<Self, AccessError> {
        if access.server.starts_with("http://") {
            return Ok(Self { tls: None });
        }
        if !access.server.starts_with("https://") {
            return Err(AccessError::Server(access.server.clone()));
        }
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(tls_config(access)?))) })
    }
}

/// The rustls settings for a cluster: its CA only, and the user's certificate if there is one.
fn tls_config(access: &ClusterAccess) -> Result<ClientConfig, AccessError> {
    let mut roots = RootCertStore::empty();
    for cert in certs("CA", access.ca_pem.as_deref().unwrap_or_default())? {
        roots.add(cert).map_err(AccessError::Tls)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(AccessError::Tls)?
        .with_root_certificates(roots);
    match (&access.cert_pem, &access.key_pem) {
        (Some(cert), Some(key)) => {
            let chain = certs("client certificate", cert)?;
            let key = PrivateKeyDer::from_pem_slice(key);
            let key = key.map_err(|e| AccessError::Pem { what: "client key", why: e.to_string() })?;
            builder.with_client_auth_cert(chain, key).map_err(AccessError::Tls)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certs(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>();
    all.map_err(|e| AccessError::Pem { what, why: e.to_string() })
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Conn>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(match tls {
                None => Conn::Plain(stream),
                Some(tls) => {
                    let name =
                        ServerName::try_from(host).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
                    Conn::Tls(Box::new(tls.connect(name, stream).await?))
                }
            }))
        })
    }
}

/// One connection.
pub enum Conn {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Conn {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
