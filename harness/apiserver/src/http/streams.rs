//! Logs, exec, attach and port-forward: checked here, done by the node agent, passed through byte by byte.
//! Source: k/k pkg/registry/core/pod/{strategy.go,rest/{log,subresources}.go}.

use std::sync::Arc;

use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use podlab_api::{ApiError, Reason};
use serde_json::Value;

use super::{
    answer,
    body::{self, Body, full},
    node_client::{Endpoint, forwardable},
    request::{Query, Target},
    serve::Peer,
    websocket::Handshake,
};
use crate::{
    context::Context,
    field::Errors,
    kinds::SubKind,
    server::ApiServer,
    tree::{list, text},
};

impl ApiServer {
    /// Answers a request that is passed on.
    pub(super) async fn stream_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        cx: &Context,
        target: &Target,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let sub = target.subresource.as_deref().and_then(|s| target.kind.sub(s)).map(|s| s.kind);
        let no_such = || ApiError::new(Reason::NotFound, "the server could not find the requested resource");
        let name = target.name.as_deref().ok_or_else(no_such)?;
        match sub.ok_or_else(no_such)? {
            SubKind::Proxy => self.proxy_request(peer, target, name, request).await,
            SubKind::Log => {
                let socket = Handshake::of(&request)?;
                let logs = self.logs(peer, target, name, query).await?;
                Ok(match socket {
                    Some(socket) => socket.answer(peer, request, logs.into_body()),
                    None => logs,
                })
            }
            kind @ (SubKind::Exec | SubKind::Attach | SubKind::PortForward) => {
                tracing::debug!(user = cx.user.name, pod = name, ?kind, "stream");
                self.stream(peer, target, name, query, kind, request).await
            }
            _ => Err(no_such()),
        }
    }

    async fn logs(&self, peer: &Peer, target: &Target, name: &str, query: &Query) -> Result<Response<Body>, ApiError> {
        check_log_options(query, name)?;
        let pod = self.get_object(target.kind, target.namespace.as_deref(), name)?;
        let pod = &pod.object.0;
        let container = choose_container(pod, query.get("container").unwrap_or_default())?;
        let node = text(pod, "spec.nodeName");
        if node.is_empty() {
            return Ok(answer::text(StatusCode::OK, ""));
        }
        let endpoint = self.node_endpoint(node)?;
        let mut path = format!("/containerLogs/{}/{name}/{container}", text(pod, "metadata.namespace"));
        let mut mark = '?';
        for key in
            ["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"]
        {
            if let Some(value) = query.get(key).filter(|v| !v.is_empty()) {
                path.push_str(&format!("{mark}{key}={}", escape(value)));
                mark = '&';
            }
        }
        let outgoing = backend_request(&Method::GET, endpoint, &path, http::HeaderMap::new(), full(""))?;
        let response = self.nodes.send(self.clock, &peer.tracker, endpoint, outgoing).await?;
        let status = response.status();
        if !status.is_success() {
            let bytes = body::read(response.into_body()).await?;
            let message = String::from_utf8_lossy(&bytes).trim().to_owned();
            return Err(match status {
                StatusCode::BAD_REQUEST => ApiError::bad_request(message),
                StatusCode::NOT_FOUND => {
                    let message = format!("the server could not find the requested resource ( pods/log {name})");
                    ApiError::new(Reason::NotFound, message)
                }
                _ => ApiError::internal(format!("Internal error occurred: {message}")),
            });
        }
        let mut passed = answer::with_type(StatusCode::OK, "text/plain", relay(response.into_body()));
        passed.headers_mut().remove(header::CACHE_CONTROL);
        Ok(passed)
    }

    async fn stream(
        &self,
        peer: &Arc<Peer>,
        target: &Target,
        name: &str,
        query: &Query,
        kind: SubKind,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let pod = self.get_object(target.kind, target.namespace.as_deref(), name)?;
        let pod = &pod.object.0;
        let namespace = text(pod, "metadata.namespace");
        let mut parameters = Vec::new();
        let path = if kind == SubKind::PortForward {
            parameters.extend(query.all("ports").flat_map(|p| p.split(',')).map(|p| ("port", p.to_owned())));
            format!("/portForward/{namespace}/{name}")
        } else {
            let container = choose_container(pod, query.get("container").unwrap_or_default())?;
            for (ours, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
                if query.flag(ours) == Some(true) {
                    parameters.push((theirs, "1".to_owned()));
                }
            }
            parameters.extend(query.all("command").map(|c| ("command", c.to_owned())));
            let action = if kind == SubKind::Exec { "exec" } else { "attach" };
            format!("/{action}/{namespace}/{name}/{container}")
        };
        let node = text(pod, "spec.nodeName");
        if node.is_empty() {
            return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
        }
        if !request.headers().contains_key(header::UPGRADE) {
            return Err(ApiError::bad_request("Upgrade request required"));
        }
        let endpoint = self.node_endpoint(node)?;
        let encoded: Vec<String> = parameters.iter().map(|(k, v)| format!("{k}={}", escape(v))).collect();
        let url = if encoded.is_empty() { path } else { format!("{path}?{}", encoded.join("&")) };
        let headers = forwardable(request.headers(), true);
        let client = hyper::upgrade::on(&mut request);
        let outgoing = backend_request(request.method(), endpoint, &url, headers, full(""))?;
        let response = self.nodes.send(self.clock, &peer.tracker, endpoint, outgoing).await?;
        Ok(upgraded(peer, client, response))
    }
}

/// Passes an upgrade through: splices the two connections when the backend switched, else hands on its refusal.
pub(super) fn upgraded(peer: &Arc<Peer>, client: OnUpgrade, mut response: Response<Incoming>) -> Response<Body> {
    let status = response.status();
    let headers = response.headers().clone();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let mut passed = Response::new(relay(response.into_body()));
        *passed.status_mut() = status;
        *passed.headers_mut() = forwardable(&headers, false);
        return passed;
    }
    let backend = hyper::upgrade::on(&mut response);
    let shutdown = peer.shutdown.clone();
    peer.tracker.spawn(async move {
        let (Ok(client), Ok(backend)) = futures::join!(client, backend) else {
            tracing::debug!("an upgrade was agreed on and did not happen");
            return;
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        tokio::select! {
            _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut backend, 32 << 10, 32 << 10) => {}
            () = shutdown.cancelled() => {}
        }
    });
    let mut passed = Response::new(full(""));
    *passed.status_mut() = status;
    *passed.headers_mut() = headers;
    passed
}

/// A response body as one of ours.
pub(super) fn relay(incoming: Incoming) -> Body {
    body::stream(
        BodyStream::new(incoming.map_err(std::io::Error::other))
            .filter_map(|frame| async { frame.map(|f| f.into_data().ok()).transpose() }),
    )
}

/// A request to a backend.
pub(super) fn backend_request(
    method: &Method,
    to: Endpoint,
    path: &str,
    headers: http::HeaderMap,
    body: Body,
) -> Result<Request<Body>, ApiError> {
    let host = std::net::SocketAddr::new(to.ip, to.port).to_string();
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .body(body)
        .map_err(|e| ApiError::bad_request(format!("request to the backend: {e}")))?;
    request.headers_mut().extend(headers);
    Ok(request)
}

/// Percent-encodes everything that is not unreserved.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The container a client means.
///
/// # Errors
/// 400 when it must say, and when the one it says is none of the Pod's.
fn choose_container(pod: &Value, asked: &str) -> Result<String, ApiError> {
    let name = text(pod, "metadata.name");
    let names = |field: &str| list(pod, &format!("spec.{field}")).iter().map(|c| text(c, "name")).collect::<Vec<_>>();
    let regular = names("containers");
    if !asked.is_empty() {
        let known = ["containers", "initContainers", "ephemeralContainers"].iter().any(|f| names(f).contains(&asked));
        let invalid = || ApiError::bad_request(format!("container {asked} is not valid for pod {name}"));
        return known.then(|| asked.to_owned()).ok_or_else(invalid);
    }
    match regular[..] {
        [one] => Ok(one.to_owned()),
        [] => Err(ApiError::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let mut message =
                format!("a container name must be specified for pod {name}, choose one of: [{}]", regular.join(" "));
            let init = names("initContainers");
            if !init.is_empty() {
                message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(ApiError::bad_request(message))
        }
    }
}

fn check_log_options(query: &Query, name: &str) -> Result<(), ApiError> {
    let mut errors = Errors::default();
    let number = |key: &str| query.number::<i64>(key);
    if let Some(lines) = number("tailLines")?.filter(|n| *n < 0) {
        errors.invalid("tailLines", lines, "must be greater than or equal to 0");
    }
    if let Some(bytes) = number("limitBytes")?.filter(|n| *n < 1) {
        errors.invalid("limitBytes", bytes, "must be greater than 0");
    }
    match (number("sinceSeconds")?, query.get("sinceTime").filter(|t| !t.is_empty())) {
        (Some(_), Some(_)) => errors.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"),
        (Some(seconds), None) if seconds < 1 => errors.invalid("sinceSeconds", seconds, "must be greater than 0"),
        _ => {}
    }
    errors.into_result("PodLogOptions", "", name)
}
