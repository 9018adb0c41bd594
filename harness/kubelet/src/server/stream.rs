//! Exec, attach and port-forward: the upgraded connection of the client and that of the runtime's streaming server,
//! joined byte by byte. What is spoken over them is nobody's business here.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::route::{Body, full, text};
use crate::agent::Agent;

/// Forwards an upgrade request to `url` and splices the two connections once it is accepted.
pub(super) async fn splice(agent: &Arc<Agent>, url: &str, mut request: Request<Incoming>) -> Response<Body> {
    match try_splice(agent, url, &mut request).await {
        Ok(response) => response,
        Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

async fn try_splice(agent: &Arc<Agent>, url: &str, request: &mut Request<Incoming>) -> Result<Response<Body>, String> {
    let uri: Uri = url.parse().map_err(|e| format!("bad streaming URL {url}: {e}"))?;
    let host = uri.host().ok_or_else(|| format!("streaming URL {url} has no host"))?;
    let port = uri.port_u16().unwrap_or(80);
    let tcp = TcpStream::connect((host.trim_matches(['[', ']']), port))
        .await
        .map_err(|e| format!("dial {host}:{port}: {e}"))?;
    let _ = tcp.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|e| e.to_string())?;
    let shutdown = agent.shutdown.clone();
    agent.tasks.spawn(async move {
        let _ = shutdown.run_until_cancelled(connection.with_upgrades()).await;
    });
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut upstream = Request::builder().method(request.method().clone()).uri(path);
    for (name, value) in request.headers().iter().filter(|(n, _)| **n != header::HOST && **n != header::AUTHORIZATION) {
        upstream = upstream.header(name, value);
    }
    let upstream = upstream
        .header(header::HOST, format!("{host}:{port}"))
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let mut answer = sender.send_request(upstream).await.map_err(|e| e.to_string())?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (head, body) = answer.into_parts();
        let bytes = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        return Ok(Response::from_parts(head, full(bytes)));
    }
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in answer.headers() {
        response.headers_mut().append(name, value.clone());
    }
    let theirs = hyper::upgrade::on(&mut answer);
    let ours = hyper::upgrade::on(request);
    let shutdown = agent.shutdown.clone();
    agent.tasks.spawn(async move {
        let join = async {
            if let Ok((theirs, ours)) = futures::future::try_join(theirs, ours).await {
                let (mut a, mut b) = (TokioIo::new(theirs), TokioIo::new(ours));
                // Either side may leave at any time; that ends the session.
                let _ = tokio::io::copy_bidirectional(&mut a, &mut b).await;
            }
        };
        let _ = shutdown.run_until_cancelled(join).await;
    });
    Ok(response)
}
