//! Dialling on behalf of probes and hooks, with Go's words for what goes wrong.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use podlab_clock::Clock;
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{Health, HttpAnswer, HttpProbe};

/// Most of a body that is kept.
const MAX_BODY: usize = 10 * 1024;
/// How long after a refused connection a gRPC probe asks again.
const GRPC_RETRY: Duration = Duration::from_millis(100);
/// Go's text when a client's timeout ends a request.
const TIMED_OUT: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";

pub(super) async fn dial(clock: &Clock, host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match clock.timeout(timeout, TcpStream::connect((host, port))).await {
        None => Err(format!("dial tcp {shown}: i/o timeout")),
        Some(Err(e)) => Err(format!("dial tcp {shown}: connect: {}", errno_text(&e))),
        Some(Ok(s)) => Ok(s),
    }
}

/// What Go says of a server that answers a handshake with something else.
pub(crate) const PLAIN_HTTP: &str = "http: server gave HTTP response to HTTPS client";

fn tls_text(e: &io::Error) -> String {
    let inner = e.get_ref().and_then(|i| i.downcast_ref::<rustls::Error>());
    if matches!(inner, Some(rustls::Error::InvalidMessage(_))) {
        return PLAIN_HTTP.to_owned();
    }
    format!("remote error: tls: {e}")
}

/// The kernel's word for an errno, in Go's spelling.
fn errno_text(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => "connection refused".to_owned(),
        Some(libc::EHOSTUNREACH) => "no route to host".to_owned(),
        Some(libc::ENETUNREACH) => "network is unreachable".to_owned(),
        Some(libc::ECONNRESET) => "connection reset by peer".to_owned(),
        Some(libc::ETIMEDOUT) => "connection timed out".to_owned(),
        Some(_) | None => e.to_string().to_lowercase(),
    }
}

pub(super) async fn get(clock: &Clock, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String> {
    match clock.timeout(timeout, exchange(clock, probe, timeout)).await {
        Some(answer) => answer,
        None => Err(TIMED_OUT.to_owned()),
    }
}

async fn exchange(clock: &Clock, probe: &HttpProbe, timeout: Duration) -> Result<HttpAnswer, String> {
    let tcp = dial(clock, &probe.host, probe.port, timeout).await?;
    if probe.scheme.eq_ignore_ascii_case("https") {
        let name = ServerName::try_from(probe.host.clone()).map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(trusting()?);
        let tls = connector.connect(name, tcp).await.map_err(|e| tls_text(&e))?;
        return send(tls, probe).await;
    }
    send(tcp, probe).await
}

async fn send<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    probe: &HttpProbe,
) -> Result<HttpAnswer, String> {
    let stream = Asking { stream, asked: false, waker: None };
    let (mut sender, connection) = hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let path = if probe.path.starts_with('/') { probe.path.clone() } else { format!("/{}", probe.path) };
    let mut request = http::Request::builder().method("GET").uri(path);
    let given = |name: &str| probe.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    if !given("host") {
        request = request.header("Host", format!("{}:{}", probe.host, probe.port));
    }
    if !given("user-agent") {
        request = request.header("User-Agent", "kube-probe/1.36");
    }
    if !given("accept") {
        request = request.header("Accept", "*/*");
    }
    for (name, value) in probe
        .headers
        .iter()
        .filter(|(n, v)| !(v.is_empty() && (n.eq_ignore_ascii_case("accept") || n.eq_ignore_ascii_case("user-agent"))))
    {
        request = request.header(name, value);
    }
    let request = request.header("Connection", "close").body(Empty::new()).map_err(|e| e.to_string())?;
    let talk = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| if e.is_incomplete_message() { "EOF".to_owned() } else { e.to_string() })?;
        let status = response.status().as_u16();
        let location = response.headers().get("location").and_then(|v| v.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        let mut stream = response.into_body();
        while let Some(Ok(frame)) = stream.frame().await {
            if let Some(data) = frame.data_ref() {
                let room = MAX_BODY - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if body.len() == MAX_BODY {
                    break;
                }
            }
        }
        Ok(HttpAnswer { status, location, body })
    };
    tokio::pin!(talk);
    tokio::pin!(connection);
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            answer = &mut talk => return answer,
            _ = &mut connection, if open => open = false,
        }
    }
}

/// A connection on which nothing is heard before something was asked: a server that answers at once, as `nc` with a
/// prepared text does, would look to the client like one that speaks out of turn. Go's client does not mind.
struct Asking<S> {
    stream: S,
    asked: bool,
    waker: Option<Waker>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Asking<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.asked {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Asking<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        // A failed write is heard of by reading, too.
        if written.is_ready() {
            self.asked = true;
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Probes do not verify certificates. Source: k/k pkg/probe/http/http.go.
fn trusting() -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(Arc::new(builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone)).with_no_client_auth()))
}

#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

pub(super) async fn health(
    clock: &Clock,
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<Health, String> {
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let late =
        || format!("timeout: failed to connect service \"{shown}\" within {timeout:?}: context deadline exceeded");
    let check = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{shown}")).map_err(|e| e.to_string())?;
        // As upstream's client, which waits for a connection until the time is up.
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(_) => clock.sleep(GRPC_RETRY).await,
            }
        };
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|e| e.to_string())?;
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
        match client.unary(request, path, codec).await {
            Ok(r) if r.get_ref().status == 1 => Ok(Health::Serving),
            Ok(r) => Ok(Health::Other(r.get_ref().status)),
            Err(s) if s.code() == tonic::Code::Unimplemented => {
                Err("error: this server does not implement the grpc health protocol (grpc.health.v1.Health)".to_owned())
            }
            Err(s) => {
                Err(format!("error: health rpc probe failed: rpc error: code = {:?} desc = {}", s.code(), s.message()))
            }
        }
    };
    clock.timeout(timeout, check).await.unwrap_or_else(|| Err(late()))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_server_that_answers_before_it_is_asked_is_heard() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let prepared = async {
            let (mut peer, _) = server.accept().await.unwrap();
            peer.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            peer
        };
        let probe = HttpProbe {
            scheme: "http".to_owned(),
            host: "127.0.0.1".to_owned(),
            port,
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        let clock = Clock::real();
        // The answer is there before the client is polled again after its connection.
        let (answer, _peer) = tokio::join!(get(&clock, &probe, Duration::from_secs(10)), prepared);
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (503, b"no".as_slice()));
    }

    #[tokio::test]
    async fn a_refused_grpc_check_is_a_timeout() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let said = health(&Clock::real(), "127.0.0.1", free, "", Duration::from_secs(1)).await.unwrap_err();
        let wanted =
            format!("timeout: failed to connect service \"127.0.0.1:{free}\" within 1s: context deadline exceeded");
        assert_eq!(said, wanted);
    }
}
