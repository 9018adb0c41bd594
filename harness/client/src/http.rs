//! [`Api`] over HTTPS (or plain HTTP): HTTP/1.1 with a connection pool, one connection per watch.

mod connect;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{client::legacy, rt::TokioExecutor};
use podlab_api::{ApiError, Object, Reason, ResourceRef};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchOptions, WatchStream,
    kubeconfig::ClusterAccess,
};
pub use connect::{AccessError, Connector};

/// Largest response body read into memory.
const MAX_BODY: usize = 256 << 20;

/// A client of one cluster as one user.
pub struct HttpApi {
    client: legacy::Client<Connector, Full<Bytes>>,
    server: String,
    authorization: Option<String>,
}

impl HttpApi {
    /// Prepares a client; nothing is sent yet.
    ///
    /// # Errors
    /// [`AccessError`] when a certificate or key does not parse, or the server is not an http(s) URL.
    pub fn new(access: &ClusterAccess) -> Result<Self, AccessError> {
        let connector = Connector::new(access)?;
        let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
        let authorization = access.token.as_ref().map(|t| format!("Bearer {t}"));
        Ok(Self { client, server: access.server.trim_end_matches('/').to_owned(), authorization })
    }

    /// Sends one request with a JSON body and reads the whole answer.
    ///
    /// # Errors
    /// The server's Status, or `ServiceUnavailable` when it could not be reached.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Bytes, ApiError> {
        let response = self.send(method, path, content_type, body).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let bytes = body.map_err(|e| unreachable_error(&e.to_string()))?.to_bytes();
        if status.is_success() { Ok(bytes) } else { Err(status_error(status, &bytes)) }
    }

    /// Sends one request and returns the response with its body unread.
    ///
    /// # Errors
    /// `ServiceUnavailable` when the server could not be reached.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<http::Response<hyper::body::Incoming>, ApiError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, content_type);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|e| ApiError::bad_request(e.to_string()))?;
        self.client.request(request).await.map_err(|e| unreachable_error(&chain(&e)))
    }

    /// Sends a request without a body and with headers of its own, for protocol upgrades.
    ///
    /// # Errors
    /// `ServiceUnavailable` when the server could not be reached.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(http::HeaderName, &str)],
    ) -> Result<http::Response<hyper::body::Incoming>, ApiError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.server));
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::default()).map_err(|e| ApiError::bad_request(e.to_string()))?;
        self.client.request(request).await.map_err(|e| unreachable_error(&chain(&e)))
    }

    async fn object(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Arc<Object>, ApiError> {
        let bytes = self.request(method, path, content_type, body).await?;
        parse(&bytes).map(|v| Arc::new(Object(v)))
    }
}

fn unreachable_error(why: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, why)
}

/// The whole chain of causes in one line: hyper's own message says only "client error".
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn status_error(status: StatusCode, body: &[u8]) -> ApiError {
    match serde_json::from_slice::<Value>(body) {
        Ok(v) if v.get("kind").and_then(Value::as_str) == Some("Status") => ApiError::from_status(status.as_u16(), &v),
        _ => {
            let text = String::from_utf8_lossy(body).chars().take(500).collect::<String>();
            let mut e = ApiError::internal(format!("HTTP {status}: {text}"));
            e.code = status.as_u16();
            e
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::internal(format!("response is not JSON: {e}")))
}

fn collection_path(c: &Collection) -> String {
    c.resource.path(c.namespace.as_deref(), None, None)
}

fn target_path(t: &Target) -> String {
    t.collection.resource.path(t.collection.namespace.as_deref(), Some(&t.name), t.subresource)
}

fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        if let Some(value) = value {
            out.push(if out.is_empty() { '?' } else { '&' });
            out.push_str(key);
            out.push('=');
            out.push_str(&escape(value));
        }
    }
    out
}

/// Percent-encodes everything but unreserved characters.
pub fn escape(s: &str) -> String {
    s.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
        out
    })
}

fn delete_body(options: &DeleteOptions) -> Value {
    let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    let map = body.as_object_mut().expect("a literal object");
    if let Some(grace) = options.grace_period {
        map.insert("gracePeriodSeconds".into(), grace.as_secs().into());
    }
    if let Some(policy) = options.propagation {
        map.insert("propagationPolicy".into(), policy.into());
    }
    let mut preconditions = serde_json::Map::new();
    if let Some(uid) = &options.uid {
        preconditions.insert("uid".into(), uid.as_str().into());
    }
    if let Some(rv) = options.resource_version {
        preconditions.insert("resourceVersion".into(), rv.to_string().into());
    }
    if !preconditions.is_empty() {
        map.insert("preconditions".into(), Value::Object(preconditions));
    }
    body
}

/// Items of a list lose their `apiVersion` and `kind` on the wire; this puts them back.
fn complete(mut item: Value, resource: &ResourceRef) -> Arc<Object> {
    if let Some(map) = item.as_object_mut() {
        map.entry("apiVersion").or_insert_with(|| resource.api_version().into());
        map.entry("kind").or_insert_with(|| resource.kind.into());
    }
    Arc::new(Object(item))
}

const JSON: &str = "application/json";

#[async_trait]
impl Api for HttpApi {
    async fn get(&self, target: &Target) -> Result<Arc<Object>, ApiError> {
        self.object(Method::GET, &target_path(target), JSON, Vec::new()).await
    }

    async fn list(&self, collection: &Collection, options: &ListOptions) -> Result<ObjectList, ApiError> {
        #[derive(Deserialize)]
        struct Meta {
            #[serde(rename = "resourceVersion", default)]
            resource_version: String,
        }
        #[derive(Deserialize)]
        struct List {
            metadata: Meta,
            #[serde(default)]
            items: Option<Vec<Value>>,
        }
        let selectors = query(&[
            ("labelSelector", options.label_selector.as_deref()),
            ("fieldSelector", options.field_selector.as_deref()),
        ]);
        let path = format!("{}{selectors}", collection_path(collection));
        let bytes = self.request(Method::GET, &path, JSON, Vec::new()).await?;
        let list: List = serde_json::from_slice(&bytes).map_err(|e| ApiError::internal(format!("list: {e}")))?;
        let items = list.items.unwrap_or_default().into_iter().map(|i| complete(i, &collection.resource)).collect();
        Ok(ObjectList { items, resource_version: list.metadata.resource_version.parse().unwrap_or(0) })
    }

    async fn watch(&self, collection: &Collection, options: &WatchOptions) -> Result<WatchStream, ApiError> {
        let revision = options.resource_version.map(|r| r.to_string());
        let selectors = query(&[
            ("watch", Some("1")),
            ("allowWatchBookmarks", Some("true")),
            ("resourceVersion", revision.as_deref()),
            ("labelSelector", options.label_selector.as_deref()),
            ("fieldSelector", options.field_selector.as_deref()),
        ]);
        let path = format!("{}{selectors}", collection_path(collection));
        let response = self.send(Method::GET, &path, JSON, Vec::new()).await?;
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
            let bytes = body.map_err(|e| unreachable_error(&e.to_string()))?.to_bytes();
            return Err(status_error(status, &bytes));
        }
        Ok(watch::events(response.into_body()).boxed())
    }

    async fn create(
        &self,
        collection: &Collection,
        parent: Option<(&str, &'static str)>,
        object: Object,
    ) -> Result<Arc<Object>, ApiError> {
        let (name, sub) = parent.unzip();
        let path = collection.resource.path(collection.namespace.as_deref(), name, sub);
        self.object(Method::POST, &path, JSON, encode(&object.0)?).await
    }

    async fn update(&self, target: &Target, object: Object) -> Result<Arc<Object>, ApiError> {
        self.object(Method::PUT, &target_path(target), JSON, encode(&object.0)?).await
    }

    async fn patch(&self, target: &Target, kind: &PatchKind, body: &Value) -> Result<Arc<Object>, ApiError> {
        let path = target_path(target);
        let (content_type, path) = match kind {
            PatchKind::Json => ("application/json-patch+json", path),
            PatchKind::Merge => ("application/merge-patch+json", path),
            PatchKind::Strategic => ("application/strategic-merge-patch+json", path),
            PatchKind::Apply { manager, force } => {
                let force = if *force { "true" } else { "false" };
                let selectors = query(&[("fieldManager", Some(manager)), ("force", Some(force))]);
                ("application/apply-patch+yaml", format!("{path}{selectors}"))
            }
        };
        self.object(Method::PATCH, &path, content_type, encode(body)?).await
    }

    async fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Arc<Object>, ApiError> {
        self.object(Method::DELETE, &target_path(target), JSON, encode(&delete_body(options))?).await
    }

    async fn delete_collection(
        &self,
        collection: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let selectors = query(&[
            ("labelSelector", list.label_selector.as_deref()),
            ("fieldSelector", list.field_selector.as_deref()),
        ]);
        let path = format!("{}{selectors}", collection_path(collection));
        self.request(Method::DELETE, &path, JSON, encode(&delete_body(options))?).await.map(drop)
    }
}

fn encode(value: &Value) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|e| ApiError::bad_request(e.to_string()))
}
