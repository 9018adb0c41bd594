//! The server over HTTPS, with a node agent behind it that is a fake.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{net::TcpListener, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::SendRequest, service::service_fn};
use hyper_util::rt::TokioIo;
use podlab_apiserver::{ApiServer, ApiServerConfig, Tls, pki::Authority};
use podlab_clock::{Clock, Rng};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_timeline::Recorder;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

struct World {
    authority: Arc<Authority>,
    port: u16,
    node_port: u16,
    tasks: JoinSet<()>,
}

async fn world() -> World {
    let clock = Clock::real();
    let authority = Arc::new(Authority::new().unwrap());
    let store = Store::open(StoreConfig { durable: Durable::Off, ..StoreConfig::default() }).unwrap();
    let config = ApiServerConfig::new(authority.clone());
    let server = ApiServer::new(store, config, clock, Rng::seeded(1), Recorder::disabled(clock)).await.unwrap();
    let identity = authority.server_cert(&["127.0.0.1"]).unwrap();
    let tls = Tls(Arc::new(authority.server_config(&identity).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { server.serve(vec![listener], tls, CancellationToken::new()).await.unwrap() });
    let node = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node_port = node.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(authority.server_config(&identity).unwrap()));
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = node.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            // Only the server's own client certificate is good enough for a node.
            assert!(stream.get_ref().1.peer_certificates().is_some());
            connections.spawn(async move {
                let service = service_fn(node_agent);
                let http = hyper::server::conn::http1::Builder::new();
                http.serve_connection(TokioIo::new(stream), service).with_upgrades().await.unwrap();
            });
        }
    });
    World { authority, port, node_port, tasks }
}

/// Answers with what it was asked, and echoes over an upgraded connection.
async fn node_agent(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    assert!(!request.headers().contains_key("authorization"));
    let asked = request.uri().to_string();
    if asked.contains("bad") {
        let mut refused = Response::new(Full::from("container \"c\" is waiting to start: ContainerCreating"));
        *refused.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(refused);
    }
    if !request.headers().contains_key("upgrade") {
        return Ok(Response::new(Full::from(asked)));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    #[expect(clippy::disallowed_methods, reason = "the echo ends with its connection, inside the test's runtime")]
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).await.unwrap();
        stream.write_all(&buffer).await.unwrap();
    });
    let mut switched = Response::new(Full::default());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    switched.headers_mut().insert("connection", "Upgrade".parse().unwrap());
    switched.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
    Ok(switched)
}

impl World {
    async fn connect(&mut self) -> SendRequest<Full<Bytes>> {
        let config = self.authority.client_config(None).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        self.tasks.spawn(async move { connection.with_upgrades().await.unwrap_or_default() });
        sender
    }

    async fn send(&mut self, method: &str, path: &str, token: &str, body: Value) -> (StatusCode, String) {
        let mut sender = self.connect().await;
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let request =
            if token.is_empty() { request } else { request.header("authorization", format!("Bearer {token}")) };
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { Full::default() } else { Full::from(body.to_string()) };
        let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// A Pod `a` on a node whose agent is the fake one.
    async fn pod_on_node(&mut self) -> String {
        let token = self.authority.admin_token().to_owned();
        let ns = "/api/v1/namespaces/default";
        let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.node_port}}}});
        let pod =
            json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}});
        for (path, body) in [
            ("/api/v1/nodes".to_owned(), node),
            (format!("{ns}/serviceaccounts"), json!({"metadata": {"name": "default"}})),
            (format!("{ns}/pods"), pod),
        ] {
            let (status, text) = self.send("POST", &path, &token, body).await;
            assert_eq!(status, StatusCode::CREATED, "{text}");
        }
        token
    }
}

#[tokio::test]
async fn health_is_open_and_everything_else_is_not() {
    let mut w = world().await;
    assert_eq!(w.send("GET", "/readyz", "", Value::Null).await, (StatusCode::OK, "ok".into()));
    let (status, text) = w.send("GET", "/api/v1/pods", "", Value::Null).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(text.contains("User \\\"system:anonymous\\\" cannot list resource \\\"pods\\\""), "{text}");
    assert_eq!(w.send("GET", "/api/v1/pods", "nonsense", Value::Null).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_service_account_may_do_what_its_role_says() {
    let mut w = world().await;
    let admin = w.pod_on_node().await;
    let token_path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let (status, text) = w.send("POST", token_path, &admin, json!({"spec": {}})).await;
    assert_eq!(status, StatusCode::CREATED, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let pods = "/api/v1/namespaces/default/pods";
    let (status, text) = w.send("GET", pods, &token, Value::Null).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(text.contains("system:serviceaccount:default:default"), "{text}");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role =
        json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    assert_eq!(w.send("POST", &format!("{rbac}/roles"), &admin, role).await.0, StatusCode::CREATED);
    assert_eq!(w.send("POST", &format!("{rbac}/rolebindings"), &admin, binding).await.0, StatusCode::CREATED);
    assert_eq!(w.send("GET", pods, &token, Value::Null).await.0, StatusCode::OK);
    assert_eq!(w.send("GET", "/api/v1/pods", &token, Value::Null).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn logs_come_from_the_node_and_its_refusals_become_statuses() {
    let mut w = world().await;
    let token = w.pod_on_node().await;
    let logs = "/api/v1/namespaces/default/pods/a/log";
    let (status, text) = w.send("GET", &format!("{logs}?tailLines=3&follow=true"), &token, Value::Null).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "/containerLogs/default/a/c?follow=true&tailLines=3"));
    let (status, text) = w.send("GET", &format!("{logs}?container=nope"), &token, Value::Null).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("container nope is not valid for pod a"), "{text}");
    let (status, text) = w.send("GET", &format!("{logs}?sinceTime=bad"), &token, Value::Null).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("is waiting to start: ContainerCreating"), "{text}");
}

#[tokio::test]
async fn logs_can_be_had_over_a_websocket() {
    let mut w = world().await;
    let token = w.pod_on_node().await;
    let mut sender = w.connect().await;
    let request = Request::builder()
        .uri("/api/v1/namespaces/default/pods/a/log?container=c")
        .header("host", "x")
        .header("authorization", format!("Bearer {token}"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-protocol", "binary.k8s.io")
        .body(Full::default())
        .unwrap();
    let mut response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers()["sec-websocket-protocol"], "binary.k8s.io");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut all = Vec::new();
    Clock::real().timeout(Duration::from_secs(5), stream.read_to_end(&mut all)).await.unwrap().unwrap();
    let line = b"/containerLogs/default/a/c";
    let length = u8::try_from(line.len()).unwrap();
    let expected = [&[0x82, 0, 0x82, length][..], line, &[0x88, 2, 3, 232]].concat();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn an_exec_stream_is_spliced_to_the_node() {
    let mut w = world().await;
    let token = w.pod_on_node().await;
    let mut sender = w.connect().await;
    let request = Request::builder()
        .method("POST")
        .uri("/api/v1/namespaces/default/pods/a/exec?command=sh&command=-c&command=a%20b&stdout=true&stdin=true")
        .header("host", "x")
        .header("authorization", format!("Bearer {token}"))
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(Full::default())
        .unwrap();
    let mut response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let asked = "/exec/default/a/c?input=1&output=1&command=sh&command=-c&command=a%20b";
    let mut seen = vec![0; asked.len()];
    let reading = Clock::real().timeout(Duration::from_secs(5), stream.read_exact(&mut seen)).await;
    reading.unwrap().unwrap();
    assert_eq!(String::from_utf8(seen).unwrap(), asked);
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
}
