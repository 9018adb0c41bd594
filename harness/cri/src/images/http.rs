//! One HTTP request at a time, plain or over TLS, with redirects. Responses are streamed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use podlab_clock::Clock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::ImageError;
use crate::config::RegistryConfig;

const MAX_REDIRECTS: usize = 5;
const CONNECT: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(60);

/// Speaks to registries and token endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    config: RegistryConfig,
    clock: Clock,
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// A response whose connection is driven as long as this lives.
pub(crate) struct Reply {
    pub response: Response<Incoming>,
    pub url: String,
    _connection: tokio_util::task::AbortOnDropHandle<()>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Http {
    pub fn new(config: RegistryConfig, clock: Clock) -> Self {
        let tls = tls_config(&config).map(Arc::new);
        Self { config, clock, tls }
    }

    /// `http` or `https`, by the host.
    pub fn scheme(&self, host: &str) -> &'static str {
        let bare =
            host.rsplit_once(':').map_or(host, |(h, p)| if p.bytes().all(|b| b.is_ascii_digit()) { h } else { host });
        let loopback = bare == "localhost" || bare == "::1" || bare.starts_with("127.");
        if loopback || self.config.plain_http.contains(host) || self.config.plain_http.contains(bare) {
            "http"
        } else {
            "https"
        }
    }

    /// GET with redirects. `authorization` goes to the first host only.
    pub async fn get(&self, url: &str, accept: &str, authorization: Option<&str>) -> Result<Reply, ImageError> {
        let fail = |url: &str, reason: String| ImageError::Request { method: "Get", url: url.to_owned(), reason };
        let mut url: Uri = url.parse().map_err(|_| fail(url, "invalid URL".into()))?;
        let first_host = url.authority().cloned();
        for _ in 0..=MAX_REDIRECTS {
            let authorization = authorization.filter(|_| url.authority() == first_host.as_ref());
            let shown = shown(&url);
            let reply = self.once(&url, &shown, accept, authorization, None).await?;
            if !reply.response.status().is_redirection() {
                return Ok(reply);
            }
            let to = reply.response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok()).unwrap_or_default();
            url = if to.starts_with('/') {
                format!("{}://{}{to}", url.scheme_str().unwrap_or("http"), url.authority().map_or("", |a| a.as_str()))
                    .parse()
            } else {
                to.parse()
            }
            .map_err(|_| fail(&shown, "invalid redirect".into()))?;
        }
        Err(fail(&shown(&url), "stopped after 5 redirects".into()))
    }

    /// POST of a form, without redirects.
    pub async fn post_form(&self, url: &str, form: String) -> Result<Reply, ImageError> {
        let uri: Uri = url.parse().map_err(|_| ImageError::Request {
            method: "Post",
            url: url.to_owned(),
            reason: "invalid URL".into(),
        })?;
        self.once(&uri, &shown(&uri), "application/json", None, Some(form)).await
    }

    async fn once(
        &self,
        url: &Uri,
        shown: &str,
        accept: &str,
        authorization: Option<&str>,
        form: Option<String>,
    ) -> Result<Reply, ImageError> {
        let method = if form.is_some() { "Post" } else { "Get" };
        let fail = |reason: String| ImageError::Request { method, url: shown.to_owned(), reason };
        let stream = self
            .clock
            .timeout(CONNECT, self.connect(url))
            .await
            .unwrap_or_else(|| Err("i/o timeout".into()))
            .map_err(fail)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| fail(e.to_string()))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "hyper needs its connection driven; the handle aborts it on drop"
        )]
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
            // Its errors surface in the request and in the body.
            let _ = connection.await;
        }));
        let mut request = Request::builder()
            .method(if form.is_some() { http::Method::POST } else { http::Method::GET })
            .uri(url.path_and_query().map_or("/", |p| p.as_str()))
            .header(header::HOST, url.authority().map_or("", |a| a.as_str()))
            .header(header::USER_AGENT, "podlab")
            .header(header::ACCEPT, accept)
            .body(Full::<Bytes>::from(form.clone().unwrap_or_default()))
            .map_err(|e| fail(e.to_string()))?;
        if form.is_some() {
            request
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        }
        if let Some(value) = authorization.and_then(|a| HeaderValue::from_str(a).ok()) {
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let answer = self.clock.timeout(ANSWER, sender.send_request(request)).await;
        let response =
            answer.ok_or_else(|| fail("timeout awaiting response headers".into()))?.map_err(|e| fail(e.to_string()))?;
        Ok(Reply { response, url: shown.to_owned(), _connection: connection })
    }

    async fn connect(&self, url: &Uri) -> Result<Box<dyn Stream>, String> {
        let host = url.host().ok_or("no host in URL")?.trim_matches(['[', ']']);
        let tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let known = self.config.hosts.get(&format!("{host}:{port}")).or_else(|| self.config.hosts.get(host));
        let dialled = match known {
            Some(address) => TcpStream::connect(address).await,
            None => TcpStream::connect((host, port)).await,
        };
        let stream = dialled.map_err(|e| format!("dial tcp {host}:{port}: connect: {}", io_reason(&e)))?;
        let _ = stream.set_nodelay(true);
        if !tls {
            return Ok(Box::new(stream));
        }
        let config = self.tls.clone().ok_or("no trusted certificates are installed")?;
        let name = rustls_pki_types::ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let stream =
            tokio_rustls::TlsConnector::from(config).connect(name, stream).await.map_err(|e| format!("tls: {e}"))?;
        Ok(Box::new(stream))
    }
}

impl Reply {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The answer as an error that names it.
    pub fn unexpected(&self) -> ImageError {
        let status = self.status();
        let words = status.canonical_reason().unwrap_or_default();
        ImageError::Status { method: "GET", url: self.url.clone(), status: format!("{} {words}", status.as_u16()) }
    }

    /// The whole body, when it is not larger than `limit`.
    pub async fn bytes(self, limit: usize) -> Result<Bytes, ImageError> {
        let url = self.url;
        let body = Limited::new(self.response.into_body(), limit).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|e| ImageError::Request {
            method: "Get",
            url,
            reason: e.to_string(),
        })
    }
}

/// The URL without its query: it may carry signatures.
fn shown(url: &Uri) -> String {
    format!("{}://{}{}", url.scheme_str().unwrap_or("http"), url.authority().map_or("", |a| a.as_str()), url.path())
}

fn io_reason(e: &std::io::Error) -> String {
    e.raw_os_error().map_or_else(|| e.to_string(), |n| nix::errno::Errno::from_raw(n).desc().to_lowercase())
}

fn tls_config(config: &RegistryConfig) -> Option<rustls::ClientConfig> {
    use rustls_pki_types::pem::PemObject;
    let system = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
    let files: Vec<std::path::PathBuf> = match &config.ca_file {
        Some(file) => vec![file.clone()],
        None => system.iter().map(Into::into).collect(),
    };
    let pem = files.iter().find_map(|f| std::fs::read(f).ok())?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls_pki_types::CertificateDer::pem_slice_iter(&pem).flatten() {
        // Certificates this library cannot use are left out, as every client does.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    Some(builder.with_root_certificates(roots).with_no_client_auth())
}
