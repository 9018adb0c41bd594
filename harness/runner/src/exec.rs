//! `exec` and `logs` over the API: a WebSocket client for `v5.channel.k8s.io`, just enough to run a command.

use base64::Engine;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use podlab_api::ApiError;
use podlab_client::http::HttpApi;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Most output kept of a command.
const MAX_OUTPUT: usize = 1 << 20;
/// Largest frame accepted.
const MAX_FRAME: u64 = 1 << 22;

/// What a command did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// Its exit code.
    pub(crate) code: i32,
    /// Standard output and standard error as they came.
    pub(crate) text: String,
    /// The server's words when it could not be run.
    pub(crate) error: String,
}

fn broken(e: impl std::fmt::Display) -> ApiError {
    ApiError::internal(format!("exec stream: {e}"))
}

/// Runs a command in a container.
pub(crate) async fn exec(
    api: &HttpApi,
    namespace: &str,
    pod: &str,
    container: Option<&str>,
    command: &[String],
) -> Result<Output, ApiError> {
    let mut path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/exec?stdout=true&stderr=true");
    if let Some(c) = container {
        path.push_str(&format!("&container={c}"));
    }
    for word in command {
        path.push_str(&format!("&command={}", podlab_client::http::escape(word)));
    }
    let key = base64::engine::general_purpose::STANDARD.encode(b"podlab websocket");
    let headers = [
        (header::CONNECTION, "Upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
        (header::SEC_WEBSOCKET_KEY, key.as_str()),
        (header::SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io"),
    ];
    let response = api.send_with(Method::GET, &path, &headers).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        return Err(ApiError::from_status(code, &serde_json::from_slice(&body).unwrap_or_default()));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
    read_output(TokioIo::new(upgraded)).await
}

/// Reads frames until the server closes: channel 1 and 2 are output, 3 is the final status.
async fn read_output<S: AsyncRead + tokio::io::AsyncWrite + Unpin>(mut stream: S) -> Result<Output, ApiError> {
    let mut out = Output::default();
    let mut text = Vec::new();
    loop {
        let mut head = [0; 2];
        if stream.read_exact(&mut head).await.is_err() {
            break;
        }
        let len = match head[1] & 0x7f {
            126 => u64::from(stream.read_u16().await.map_err(broken)?),
            127 => stream.read_u64().await.map_err(broken)?,
            n => u64::from(n),
        };
        if len > MAX_FRAME {
            return Err(broken("frame too large"));
        }
        let mut payload = vec![0; usize::try_from(len).unwrap_or(0)];
        stream.read_exact(&mut payload).await.map_err(broken)?;
        match (head[0] & 0x0f, payload.split_first()) {
            (8, _) => {
                // Answer the close, masked with zeros, so that the server can end at once.
                let _ = stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await;
                break;
            }
            (1 | 2, Some((1 | 2, data))) => {
                text.extend_from_slice(&data[..data.len().min(MAX_OUTPUT.saturating_sub(text.len()))])
            }
            (1 | 2, Some((3, data))) => status(&mut out, data),
            _ => {}
        }
    }
    out.text = String::from_utf8_lossy(&text).into_owned();
    Ok(out)
}

/// The final `metav1.Status`: success, or an exit code among its causes, or an error.
fn status(out: &mut Output, data: &[u8]) {
    // A server opens each channel with an empty message.
    if data.is_empty() {
        return;
    }
    let tree: Value = serde_json::from_slice(data).unwrap_or_default();
    if tree.get("status").and_then(Value::as_str) == Some("Success") {
        return;
    }
    let causes = tree.pointer("/details/causes").and_then(Value::as_array);
    let code = causes.into_iter().flatten().find(|c| c.get("reason").and_then(Value::as_str) == Some("ExitCode"));
    match code.and_then(|c| c.get("message")?.as_str()?.parse().ok()) {
        Some(code) => out.code = code,
        None => {
            out.code = -1;
            out.error = tree.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        }
    }
}

/// A container's log.
pub(crate) async fn logs(
    api: &HttpApi,
    namespace: &str,
    pod: &str,
    container: Option<&str>,
    previous: bool,
) -> Result<String, ApiError> {
    let container = container.map(|c| format!("&container={c}")).unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?previous={previous}{container}");
    let bytes = api.request(Method::GET, &path, "application/json", Vec::new()).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
