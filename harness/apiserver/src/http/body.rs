//! Bodies: reading bounded ones, writing whole and streamed ones.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use podlab_api::{ApiError, Reason};
use serde_json::Value;

/// A body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Upstream's limit of a request body.
const MAX_BODY: usize = 3 << 20;

/// A body that is all there.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that comes piece by piece.
pub(crate) fn stream(pieces: impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static) -> Body {
    BodyExt::boxed_unsync(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))))
}

/// Reads a request's body.
///
/// # Errors
/// 413 for one that is too large, 400 for one that ends early.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, ApiError>
where
    B: hyper::body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.downcast_ref::<http_body_util::LengthLimitError>().is_some() => {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            Err(ApiError::new(Reason::RequestEntityTooLarge, message))
        }
        Err(e) => Err(ApiError::bad_request(format!("read the request body: {e}"))),
    }
}

/// Reads JSON, or YAML when the content type says so.
///
/// # Errors
/// 415 for another content type, 400 for text that is none of them.
pub(crate) fn parse(content_type: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    match kind {
        "" | "application/json" | "*/*" => json(bytes),
        "application/yaml" | "application/x-yaml" => yaml(bytes),
        "application/vnd.kubernetes.protobuf" => crate::wire::decode(bytes),
        other => Err(crate::machine::unsupported_media_type(
            other,
            &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"],
        )),
    }
}

/// Reads JSON.
///
/// # Errors
/// 400.
pub(crate) fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::bad_request(format!("invalid character in JSON body: {e}")))
}

/// Reads YAML, of which JSON is a part.
///
/// # Errors
/// 400.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.trim_ascii_start().starts_with(b"{")
        && let Ok(value) = serde_json::from_slice(bytes)
    {
        return Ok(value);
    }
    let text = std::str::from_utf8(bytes).map_err(|e| ApiError::bad_request(format!("YAML body: {e}")))?;
    serde_saphyr::from_str(text).map_err(|e| ApiError::bad_request(format!("error converting YAML to JSON: {e}")))
}
