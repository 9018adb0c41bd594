//! The distribution API: `/v2/`, manifests, blobs, uploads, tags, catalog.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::{Access, Storage};

/// Largest body of one push request.
const MAX_UPLOAD: usize = 1 << 30;
/// Largest manifest.
const MAX_MANIFEST: usize = 4 << 20;

/// Chunked uploads under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uploads {
    parts: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    next: Arc<AtomicU64>,
}

impl Uploads {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let mut builder = Response::builder().status(status).header("Docker-Distribution-Api-Version", "registry/2.0");
    for (k, v) in headers {
        builder = builder.header(*k, *v);
    }
    builder.body(Full::new(body.into())).unwrap_or_else(|_| Response::new(Full::default()))
}

fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    let body = json!({"errors": [{"code": code, "message": message}]}).to_string();
    answer(status, &[("Content-Type", "application/json")], body)
}

/// Answers one request.
pub(crate) async fn handle(
    request: Request<Incoming>,
    storage: &Storage,
    access: &Access,
    uploads: &Uploads,
) -> Result<Answer, Infallible> {
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|h| h.to_str().ok());
    if !access.allows(authorization) {
        let mut refused = error(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required");
        refused
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Basic realm=\"registry\""));
        return Ok(refused);
    }
    let head = request.method() == Method::HEAD;
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Some(rest) = path.strip_prefix("/v2/") else {
        return Ok(error(StatusCode::NOT_FOUND, "UNSUPPORTED", "not a registry path"));
    };
    let mut response = route(rest, &parts, body, storage, uploads).await;
    if head {
        // The length stays what GET would send.
        let length = hyper::body::Body::size_hint(response.body()).exact().unwrap_or(0);
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        *response.body_mut() = Full::default();
    }
    Ok(response)
}

async fn route(
    rest: &str,
    parts: &http::request::Parts,
    body: Incoming,
    storage: &Storage,
    uploads: &Uploads,
) -> Answer {
    if rest.is_empty() {
        return answer(StatusCode::OK, &[("Content-Type", "application/json")], "{}");
    }
    if rest == "_catalog" {
        return answer(
            StatusCode::OK,
            &[("Content-Type", "application/json")],
            json!({"repositories": storage.repositories()}).to_string(),
        );
    }
    if let Some(repository) = rest.strip_suffix("/tags/list") {
        return match storage.tags(repository) {
            Some(tags) => answer(
                StatusCode::OK,
                &[("Content-Type", "application/json")],
                json!({"name": repository, "tags": tags}).to_string(),
            ),
            None => error(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry"),
        };
    }
    if let Some((repository, reference)) = rest.rsplit_once("/manifests/") {
        return manifest(repository, reference, parts, body, storage).await;
    }
    if let Some((repository, id)) = rest.rsplit_once("/blobs/uploads/") {
        return upload(repository, id, parts, body, storage, uploads).await;
    }
    if let Some((_, digest)) = rest.rsplit_once("/blobs/") {
        return blob(digest, &parts.headers, storage);
    }
    error(StatusCode::NOT_FOUND, "UNSUPPORTED", "unknown path")
}

fn blob(digest: &str, headers: &HeaderMap, storage: &Storage) -> Answer {
    let Some(bytes) = storage.blob(digest) else {
        return error(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry");
    };
    let kind = ("Content-Type", "application/octet-stream");
    let range = headers.get(header::RANGE).and_then(|h| h.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    if let Some(start) = range.and_then(|(from, _)| from.parse::<usize>().ok()).filter(|s| *s < bytes.len()) {
        let end =
            range.and_then(|(_, to)| to.parse::<usize>().ok()).unwrap_or(usize::MAX).min(bytes.len() - 1).max(start);
        let content = format!("bytes {start}-{end}/{}", bytes.len());
        return answer(StatusCode::PARTIAL_CONTENT, &[kind, ("Content-Range", &content)], bytes.slice(start..=end));
    }
    answer(StatusCode::OK, &[kind, ("Docker-Content-Digest", digest)], bytes)
}

async fn manifest(
    repository: &str,
    reference: &str,
    parts: &http::request::Parts,
    body: Incoming,
    storage: &Storage,
) -> Answer {
    match parts.method {
        Method::PUT => {
            let Ok(collected) = Limited::new(body, MAX_MANIFEST).collect().await else {
                return error(StatusCode::PAYLOAD_TOO_LARGE, "SIZE_INVALID", "manifest too large");
            };
            let kind = parts
                .headers
                .get(header::CONTENT_TYPE)
                .and_then(|h| h.to_str().ok())
                .unwrap_or("application/vnd.oci.image.manifest.v1+json");
            match storage.put_manifest(repository, reference, kind, collected.to_bytes()) {
                Ok(digest) => {
                    let location = format!("/v2/{repository}/manifests/{digest}");
                    answer(StatusCode::CREATED, &[("Location", &location), ("Docker-Content-Digest", &digest)], "")
                }
                Err(e) => error(StatusCode::BAD_REQUEST, "MANIFEST_INVALID", &e.to_string()),
            }
        }
        Method::DELETE => match storage.delete_manifest(repository, reference) {
            true => answer(StatusCode::ACCEPTED, &[], ""),
            false => error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown"),
        },
        _ => match storage.manifest(repository, reference) {
            Some(m) => {
                let digest = podlab_testimage::digest(&m.bytes);
                answer(StatusCode::OK, &[("Content-Type", &m.media_type), ("Docker-Content-Digest", &digest)], m.bytes)
            }
            None => error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown"),
        },
    }
}

async fn upload(
    repository: &str,
    id: &str,
    parts: &http::request::Parts,
    body: Incoming,
    storage: &Storage,
    uploads: &Uploads,
) -> Answer {
    let digest = parts.uri.query().and_then(|q| q.split('&').find_map(|kv| kv.strip_prefix("digest=")));
    let digest = digest.map(|d| d.replace("%3A", ":").replace("%3a", ":"));
    let Ok(collected) = Limited::new(body, MAX_UPLOAD).collect().await else {
        return error(StatusCode::PAYLOAD_TOO_LARGE, "SIZE_INVALID", "blob too large");
    };
    let data = collected.to_bytes();
    let id = match (id.is_empty(), &parts.method) {
        (true, &Method::POST) => {
            let id = format!("{:016x}", uploads.next.fetch_add(1, Ordering::Relaxed));
            uploads.lock().insert(id.clone(), Vec::new());
            id
        }
        _ => id.to_owned(),
    };
    let mut whole = match uploads.lock().remove(&id) {
        Some(whole) if whole.len() + data.len() <= MAX_UPLOAD => whole,
        Some(_) => return error(StatusCode::PAYLOAD_TOO_LARGE, "SIZE_INVALID", "blob too large"),
        None => return error(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry"),
    };
    whole.extend_from_slice(&data);
    let Some(digest) = digest else {
        let (location, range) =
            (format!("/v2/{repository}/blobs/uploads/{id}"), format!("0-{}", whole.len().max(1) - 1));
        uploads.lock().insert(id, whole);
        return answer(StatusCode::ACCEPTED, &[("Location", &location), ("Range", &range)], "");
    };
    match storage.put_blob(&digest, whole.into()) {
        Ok(()) => {
            let location = format!("/v2/{repository}/blobs/{digest}");
            answer(StatusCode::CREATED, &[("Location", &location), ("Docker-Content-Digest", &digest)], "")
        }
        Err(e) => error(StatusCode::BAD_REQUEST, "DIGEST_INVALID", &e.to_string()),
    }
}
