//! `registry`: the bundled registry by itself, with the test image in it.

use std::{
    net::{SocketAddr, TcpListener},
    process::ExitCode,
};

use anyhow::{Context, Result};
use podlab_registry::{Access, Registry, Storage};
use podlab_testimage::Image;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::out::say;

/// Serves until somebody ends it.
pub(crate) fn run(listen: SocketAddr, user: Option<(String, String)>, suffixes: bool) -> Result<ExitCode> {
    let storage = Storage::in_memory().with_suffixes(suffixes);
    storage.put_image("testimage", "1", &Image::testimage()).context("put the test image into the registry")?;
    let access = user.map_or(Access::Open, |(user, password)| Access::Basic { user, password });
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    let at = listener.local_addr().context("ask for the port")?;
    let registry = Registry::new(storage, access, listener);
    super::cluster::runtime()?.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let shutdown = CancellationToken::new();
        say!("registry of testimage:1 on http://{at}");
        tokio::select! {
            done = registry.run(shutdown) => done.context("serve"),
            _ = term.recv() => Ok(()),
            _ = int.recv() => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
