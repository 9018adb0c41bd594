//! `proxy` subresources: HTTP to a node agent, a Pod or a Service through the API server.
//! Source: k/k pkg/registry/core/{node,pod,service}/rest, staging/src/k8s.io/apimachinery/pkg/util/proxy.

use std::{net::IpAddr, sync::Arc};

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use podlab_api::{ApiError, Reason};
use serde_json::Value;
use tokio::net::TcpStream;

use super::{
    body::{self, Body, full},
    node_client::{Endpoint, forwardable},
    request::Target,
    serve::Peer,
    streams::{backend_request, relay, upgraded},
};
use crate::{
    errors::not_found,
    kinds::registry,
    server::ApiServer,
    tree::{int, list, text},
};

impl ApiServer {
    pub(super) async fn proxy_request(
        &self,
        peer: &Arc<Peer>,
        target: &Target,
        name: &str,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let (node, endpoint) = match target.kind.resource.kind {
            "Node" => (true, self.node_endpoint(part(name).0)?),
            "Pod" => (false, self.pod_endpoint(target, name)?),
            _ => (false, self.service_endpoint(target, name)?),
        };
        // What follows `proxy/` travels on as it was sent, still encoded.
        let before = if target.kind.resource.namespaced { 7 } else { 5 };
        let raw = request.uri().path().trim_start_matches('/');
        let mut path = format!("/{}", raw.splitn(before + 1, '/').nth(before).unwrap_or_default());
        if let Some(query) = request.uri().query() {
            path.push('?');
            path.push_str(query);
        }
        let upgrade = request.headers().contains_key(header::UPGRADE);
        let headers = forwardable(request.headers(), upgrade);
        let client = upgrade.then(|| hyper::upgrade::on(&mut request));
        let method = request.method().clone();
        let body = if upgrade { full("") } else { full(body::read(request.into_body()).await?) };
        let outgoing = backend_request(&method, endpoint, &path, headers, body)?;
        let response = if node {
            self.nodes.send(self.clock, &peer.tracker, endpoint, outgoing).await?
        } else {
            send_plain(peer, endpoint, outgoing).await?
        };
        if let Some(client) = client {
            return Ok(upgraded(peer, client, response));
        }
        let (status, headers) = (response.status(), forwardable(response.headers(), false));
        let mut passed = Response::new(relay(response.into_body()));
        (*passed.status_mut(), *passed.headers_mut()) = (status, headers);
        Ok(passed)
    }

    fn pod_endpoint(&self, target: &Target, name: &str) -> Result<Endpoint, ApiError> {
        let (name, port) = part(name);
        let pod = self.get_object(target.kind, target.namespace.as_deref(), name)?;
        let pod = &pod.object.0;
        let first = list(pod, "spec.containers").iter().flat_map(|c| list(c, "ports")).next();
        let port = match port {
            "" => first.and_then(|p| int(p, "containerPort")).unwrap_or(80),
            port => number_or_named(pod, port)?,
        };
        endpoint(text(pod, "status.podIP"), port)
    }

    fn service_endpoint(&self, target: &Target, name: &str) -> Result<Endpoint, ApiError> {
        let (name, port) = part(name);
        let service = self.get_object(target.kind, target.namespace.as_deref(), name)?;
        let ports = list(&service.object.0, "spec.ports");
        let found = match port {
            "" if ports.len() == 1 => ports.first(),
            port => {
                ports.iter().find(|p| text(p, "name") == port || int(p, "port").is_some_and(|n| n.to_string() == port))
            }
        };
        let unavailable = |why: String| ApiError::new(Reason::ServiceUnavailable, why);
        let found = found.ok_or_else(|| unavailable(format!("no service port {port:?} found for service {name:?}")))?;
        let slices = registry().by_plural("discovery.k8s.io", "v1", "endpointslices");
        let slices = slices.ok_or_else(|| not_found(target.kind, name))?;
        let listing = self.store.list(&slices.prefix_of(target.namespace.as_deref()), None);
        let listing = listing.map_err(|e| ApiError::internal(e.to_string()))?;
        for (_, slice) in &listing.items {
            let slice = &slice.object.0;
            let owner = slice.pointer("/metadata/labels/kubernetes.io~1service-name").and_then(Value::as_str);
            let port = list(slice, "ports").iter().find(|p| text(p, "name") == text(found, "name"));
            let (Some(port), true) = (port.and_then(|p| int(p, "port")), owner == Some(name)) else { continue };
            let ready =
                list(slice, "endpoints").iter().find(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false)));
            if let Some(address) = ready.and_then(|e| list(e, "addresses").first()).and_then(Value::as_str) {
                return endpoint(address, port);
            }
        }
        Err(unavailable(format!("no endpoints available for service {name:?}")))
    }
}

/// `[scheme:]name[:port]` without its scheme.
fn part(name: &str) -> (&str, &str) {
    let parts: Vec<&str> = name.split(':').collect();
    match parts[..] {
        [name] => (name, ""),
        [name, port] => (name, port),
        [_, name, port] => (name, port),
        _ => (name, ""),
    }
}

fn number_or_named(pod: &Value, port: &str) -> Result<i64, ApiError> {
    let named = list(pod, "spec.containers").iter().flat_map(|c| list(c, "ports")).find(|p| text(p, "name") == port);
    let number = port.parse().ok().or_else(|| named.and_then(|p| int(p, "containerPort")));
    number.ok_or_else(|| ApiError::bad_request(format!("invalid port {port:?}")))
}

fn endpoint(ip: &str, port: i64) -> Result<Endpoint, ApiError> {
    let not_allowed = || ApiError::bad_request("address not allowed");
    let ip: IpAddr = ip.parse().map_err(|_| not_allowed())?;
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return Err(not_allowed());
    }
    let port = u16::try_from(port).map_err(|_| ApiError::bad_request(format!("invalid port {port}")))?;
    Ok(Endpoint { ip, port })
}

async fn send_plain(peer: &Peer, to: Endpoint, request: Request<Body>) -> Result<Response<Incoming>, ApiError> {
    let failed = |why: String| {
        ApiError::new(
            Reason::ServiceUnavailable,
            format!("error trying to reach service: dial tcp {}:{}: {why}", to.ip, to.port),
        )
    };
    let stream = TcpStream::connect((to.ip, to.port)).await.map_err(|e| failed(e.to_string()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(e.to_string()))?;
    peer.tracker.spawn(async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!(error = %e, "proxied connection ended");
        }
    });
    sender.send_request(request).await.map_err(|e| failed(e.to_string()))
}
