//! Measures creates and the watch behind them, in process and over HTTPS: `latency [COUNT] [STATE_DIR]`.

use std::{net::TcpListener, path::PathBuf, sync::Arc};

use anyhow::Context;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use podlab_api::request::WatchOptions;
use podlab_api::{Object, ResourceRef, core};
use podlab_apiserver::{ApiServer, ApiServerConfig, Tls, pki::Authority};
use podlab_clock::{Clock, Rng};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_timeline::Recorder;
use serde_json::json;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

fn report(what: &str, mut nanos: Vec<u128>) {
    nanos.sort_unstable();
    let at = |q: usize| nanos.get((nanos.len() * q / 100).min(nanos.len().saturating_sub(1))).copied().unwrap_or(0);
    println!("{what:<28} p50 {:>7.3} ms   p99 {:>7.3} ms", at(50) as f64 / 1e6, at(99) as f64 / 1e6);
}

fn pod(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [
        {"name": "c", "image": "registry.test/testimage:1", "command": ["sleep", "1000"],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": 80}}}]}})
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(1000), |a| a.parse())?;
    let dir: Option<PathBuf> = arguments.next().map(Into::into);
    let clock = Clock::real();
    let authority = Arc::new(Authority::new()?);
    let durable = if dir.is_some() { Durable::Batch } else { Durable::Off };
    let store = Store::open(StoreConfig { dir, durable, ..StoreConfig::default() })?;
    let config = ApiServerConfig::new(authority.clone());
    let begun = clock.now();
    let server = ApiServer::new(store.clone(), config, clock, Rng::seeded(1), Recorder::disabled(clock)).await?;
    println!("start with bootstrap          {:?}", clock.now().since(begun));
    let accounts = ResourceRef::of::<core::ServiceAccount>();
    server.create(&accounts, Some("default"), None, Object(json!({"metadata": {"name": "default"}}))).await?;

    let pods = ResourceRef::of::<core::Pod>();
    let mut watch = server.watch(&pods, None, &WatchOptions::default())?;
    let (mut created, mut seen) = (Vec::new(), Vec::new());
    for n in 0..count {
        let begun = clock.now();
        server.create(&pods, Some("default"), None, Object(pod(&format!("local-{n}")))).await?;
        created.push(clock.now().since(begun).as_nanos());
        watch.next().await.context("watch ended")??;
        seen.push(clock.now().since(begun).as_nanos());
    }
    report("create, in process", created);
    report("create to watch, in process", seen);

    let serving = authority.server_cert(&["127.0.0.1"])?;
    let tls = Tls(Arc::new(authority.server_config(&serving)?));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shutdown = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    let stop = shutdown.clone();
    tasks.spawn(async move {
        if let Err(e) = server.serve(vec![listener], tls, stop).await {
            eprintln!("{e}");
        }
    });
    let identity = authority.client_cert("kubernetes-admin", &["system:masters"])?;
    let connector = TlsConnector::from(Arc::new(authority.client_config(Some(&identity))?));
    let name = rustls_pki_types::ServerName::try_from("127.0.0.1")?;
    let mut connect = async || -> anyhow::Result<_> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(name.clone(), stream).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tasks.spawn(async move { drop(connection.await) });
        Ok(sender)
    };
    let (mut writer, mut reader) = (connect().await?, connect().await?);
    let request = |method: &str, path: &str, body: String| {
        let request = http::Request::builder().method(method).uri(path).header("host", "x");
        request.header("content-type", "application/json").body(Full::<Bytes>::from(body))
    };
    let path = "/api/v1/namespaces/default/pods";
    let revision = store.revision();
    let watching = format!("{path}?watch=1&resourceVersion={revision}");
    let mut body = reader.send_request(request("GET", &watching, String::new())?).await?.into_body();
    let (mut created, mut seen) = (Vec::new(), Vec::new());
    for n in 0..count {
        let text = pod(&format!("https-{n}")).to_string();
        let begun = clock.now();
        writer.ready().await?;
        let response = writer.send_request(request("POST", path, text)?).await?;
        anyhow::ensure!(response.status() == 201, "status {}", response.status());
        response.into_body().collect().await?;
        created.push(clock.now().since(begun).as_nanos());
        body.frame().await.context("watch ended")??;
        seen.push(clock.now().since(begun).as_nanos());
    }
    report("create, HTTPS", created);
    report("create to watch, HTTPS", seen);
    shutdown.cancel();
    Ok(())
}
