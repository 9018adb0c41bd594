//! Starts an API server alone on a loopback port and writes a kubeconfig: `serve KUBECONFIG [STATE_DIR]`.

use std::{net::TcpListener, path::PathBuf, sync::Arc};

use anyhow::Context;
use podlab_apiserver::{ApiServer, ApiServerConfig, Tls, pki::Authority};
use podlab_clock::{Clock, Rng};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_timeline::Recorder;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let mut arguments = std::env::args().skip(1);
    let kubeconfig: PathBuf = arguments.next().context("usage: serve KUBECONFIG [STATE_DIR]")?.into();
    let state: Option<PathBuf> = arguments.next().map(Into::into);
    let clock = Clock::real();
    let authority = Arc::new(match &state {
        Some(dir) => Authority::load(&dir.join("pki"))?,
        None => Authority::new()?,
    });
    let durable = if state.is_some() { Durable::Batch } else { Durable::Off };
    let store = Store::open(StoreConfig { dir: state, durable, ..StoreConfig::default() })?;
    let config = ApiServerConfig::new(authority.clone());
    let server = ApiServer::new(store.clone(), config, clock, Rng::from_entropy(), Recorder::disabled(clock)).await?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://127.0.0.1:{}", listener.local_addr()?.port());
    let identity = authority.client_cert("kubernetes-admin", &["system:masters"])?;
    std::fs::write(&kubeconfig, authority.kubeconfig(&url, "podlab", "kubernetes-admin", &identity))?;
    let serving = authority.server_cert(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
    let tls = Tls(Arc::new(authority.server_config(&serving)?));
    println!("{url} {}", kubeconfig.display());
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::select! {
        served = server.serve(vec![listener], tls, shutdown) => served?,
        _ = tokio::signal::ctrl_c() => stop.cancel(),
    }
    store.close();
    Ok(())
}
