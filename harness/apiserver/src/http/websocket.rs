//! WebSocket (RFC 6455), as far as sending a client a stream of bytes in messages needs it.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/util/httpstream/wsstream/stream.go.

use std::{io, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::StreamExt;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use podlab_api::ApiError;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    body::{Body, full},
    dispatch::header_text,
    serve::Peer,
};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
/// The close code of a stream that is complete.
const NORMAL: u16 = 1000;

/// What the messages look like: the bytes as they are, or in base64.
const PROTOCOLS: [&str; 2] = ["binary.k8s.io", "base64.binary.k8s.io"];

/// A client's wish for a stream of messages, agreed on.
#[derive(Debug)]
pub(super) struct Handshake {
    key: String,
    /// Empty when the client named none.
    protocol: &'static str,
}

impl Handshake {
    /// What the request asks for; `None` when it is no WebSocket request.
    ///
    /// # Errors
    /// 400 when there is no key, or only protocols are offered that are not spoken here.
    pub fn of<B>(request: &Request<B>) -> Result<Option<Self>, ApiError> {
        let is = |name, wanted: &str| {
            header_text(request, name).split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted))
        };
        if !is(header::CONNECTION, "upgrade") || !is(header::UPGRADE, "websocket") {
            return Ok(None);
        }
        let key = header_text(request, header::SEC_WEBSOCKET_KEY);
        if key.is_empty() {
            return Err(ApiError::bad_request("Sec-WebSocket-Key is missing"));
        }
        let offered = header_text(request, header::SEC_WEBSOCKET_PROTOCOL);
        let credential = "base64url.bearer.authorization.k8s.io.";
        let offered: Vec<&str> =
            offered.split(',').map(str::trim).filter(|p| !p.is_empty() && !p.starts_with(credential)).collect();
        let protocol = if offered.is_empty() {
            ""
        } else {
            let spoken = PROTOCOLS.iter().find(|p| offered.contains(p)).copied();
            spoken.ok_or_else(|| ApiError::bad_request(format!("no protocol of {offered:?} is spoken here")))?
        };
        Ok(Some(Self { key, protocol }))
    }

    /// Switches protocols and sends the pieces of `body`, a message each; the connection ends with them.
    pub fn answer(self, peer: &Arc<Peer>, mut request: Request<Incoming>, body: Body) -> Response<Body> {
        let client = hyper::upgrade::on(&mut request);
        let (base64, shutdown) = (self.protocol.starts_with("base64"), peer.shutdown.clone());
        peer.tracker.spawn(async move {
            let Ok(client) = client.await else {
                tracing::debug!("a WebSocket was agreed on and did not happen");
                return;
            };
            tokio::select! {
                sent = messages(TokioIo::new(client), body, base64) => {
                    if let Err(e) = sent {
                        tracing::debug!(error = %e, "WebSocket ended");
                    }
                }
                () = shutdown.cancelled() => {}
            }
        });
        let mut switched = Response::new(full(""));
        *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = switched.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::from_str(&accept_key(&self.key)) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if !self.protocol.is_empty() {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol));
        }
        switched
    }
}

/// The answer to a client's key.
fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

/// Sends every piece, then the close; stops when the client leaves.
async fn messages<S: AsyncRead + AsyncWrite>(stream: S, body: Body, base64: bool) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        let kind = if base64 { TEXT } else { BINARY };
        // An empty message says that the stream stands, before there is anything to say.
        write_frame(&mut writer, kind, b"").await?;
        let mut pieces = BodyStream::new(body);
        while let Some(piece) = pieces.next().await {
            let Ok(data) = piece?.into_data() else { continue };
            if base64 {
                write_frame(&mut writer, kind, STANDARD.encode(&data).as_bytes()).await?;
            } else {
                write_frame(&mut writer, kind, &data).await?;
            }
        }
        write_frame(&mut writer, CLOSE, &NORMAL.to_be_bytes()).await?;
        writer.shutdown().await
    };
    tokio::select! {
        sent = send => sent,
        left = client_leaves(&mut reader) => left,
    }
}

/// Reads past what the client sends until it closes.
async fn client_leaves<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<()> {
    loop {
        let mut head = [0; 2];
        match reader.read_exact(&mut head).await {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        let length = match head[1] & 0x7f {
            126 => u64::from(reader.read_u16().await?),
            127 => reader.read_u64().await?,
            n => u64::from(n),
        };
        let mask = if head[1] & 0x80 != 0 { 4 } else { 0 };
        tokio::io::copy(&mut (&mut *reader).take(length.saturating_add(mask)), &mut tokio::io::sink()).await?;
        if head[0] & 0x0f == CLOSE {
            return Ok(());
        }
    }
}

/// One unfragmented frame.
async fn write_frame<W: AsyncWrite + Unpin>(writer: &mut W, opcode: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(payload.len() + 10);
    frame.push(0x80 | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(n), _) if n < 126 => frame.push(n),
        (_, Ok(n)) => {
            frame.push(126);
            frame.extend_from_slice(&n.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    writer.write_all(&frame).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(protocols: &str) -> Request<()> {
        let builder = Request::builder().header("connection", "keep-alive, Upgrade").header("upgrade", "websocket");
        builder.header("sec-websocket-key", "k").header("sec-websocket-protocol", protocols).body(()).unwrap()
    }

    #[test]
    fn the_protocol_is_one_that_both_speak_and_a_token_is_none() {
        assert!(Handshake::of(&Request::new(())).unwrap().is_none());
        let chosen = |offered: &str| Handshake::of(&request(offered)).map(|h| h.unwrap().protocol);
        assert_eq!(chosen("mqtt, binary.k8s.io").unwrap(), "binary.k8s.io");
        assert_eq!(chosen("base64url.bearer.authorization.k8s.io.dG9r").unwrap(), "");
        assert_eq!(chosen("mqtt").unwrap_err().code, 400);
    }

    #[tokio::test]
    async fn pieces_become_messages_and_the_end_a_close() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let long = "x".repeat(300);
        let pieces = ["hi".to_owned(), long.clone()].map(|p| Ok(bytes::Bytes::from(p)));
        messages(server, super::super::body::stream(futures::stream::iter(pieces)), false).await.unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        let mut expected = vec![0x82, 0, 0x82, 2, b'h', b'i', 0x82, 126, 1, 44];
        expected.extend_from_slice(long.as_bytes());
        expected.extend_from_slice(&[0x88, 2, 3, 232]);
        assert_eq!(all, expected);
    }

    #[tokio::test]
    async fn a_client_that_closes_ends_a_stream_that_never_would() {
        let (mut client, server) = tokio::io::duplex(1024);
        let endless = super::super::body::stream(futures::stream::pending());
        client.write_all(&[0x89, 0x81, 1, 2, 3, 4, 5, 0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
        messages(server, endless, true).await.unwrap();
    }
}
