//! `cri` and `csi`: one part alone, in the caller's own namespaces.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use podlab_clock::Clock;
use podlab_cni::chain::Mode;
use podlab_cri::{CniConfig, CniNetwork, standalone};
use podlab_csi::driver::{Driver, DriverConfig};
use tokio_util::sync::CancellationToken;

/// Where a standalone runtime finds its network.
#[derive(Debug)]
pub(crate) struct Cni {
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dirs: Vec<PathBuf>,
}

pub(crate) fn cri(listen: PathBuf, root: PathBuf, cni: &Cni, plain_http: Vec<String>) -> Result<ExitCode> {
    std::fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let cache_dir = root.join("cni-results");
    let mut config = standalone::config(listen, root);
    config.registries.plain_http.extend(plain_http);
    let network = |clock: Clock| -> Arc<dyn podlab_cri::NetworkPlugin> {
        Mode::Linked.set_for_process();
        let config = CniConfig {
            conf_dir: cni.conf_dir.clone(),
            bin_dirs: cni.bin_dirs.clone(),
            cache_dir: cache_dir.clone(),
            mode: Mode::Linked,
        };
        Arc::new(CniNetwork::new(config, clock))
    };
    let code = standalone::serve(config, network).context("run the CRI runtime")?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(2)))
}

pub(crate) fn csi(listen: PathBuf, root: PathBuf, node: String) -> Result<ExitCode> {
    let driver = Driver::new(DriverConfig { socket: listen, root, node_id: node }).context("open the CSI driver")?;
    super::cluster::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = driver.run(stop.clone()) => result.context("run the CSI driver")?,
            _ = term.recv() => stop.cancel(),
            _ = tokio::signal::ctrl_c() => stop.cancel(),
        }
        Ok(ExitCode::SUCCESS)
    })
}
