//! gRPC over a unix socket, both ends.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{net::UnixListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Channel, Endpoint},
};

/// Why a socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error("listen at {path}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A connection cannot be accepted.
    #[error("accept a connection")]
    Accept(#[source] io::Error),
    /// The driver's directory cannot be used.
    #[error("use the driver's directory {path}")]
    Root {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Opens a socket, in place of what a dead process left there.
pub(crate) fn listen(path: &Path, mode: u32) -> Result<UnixListener, ServeError> {
    let open = || {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(listener)
    };
    open().map_err(|source| ServeError::Listen { path: path.to_owned(), source })
}

/// Serves gRPC until `shutdown`; then the connections are dropped and the socket is removed. The calls' deadlines are
/// the client's.
pub(crate) async fn serve(
    path: &Path,
    listener: UnixListener,
    routes: Routes,
    shutdown: &CancellationToken,
) -> Result<(), ServeError> {
    let mut connections = JoinSet::new();
    let result = loop {
        tokio::select! {
            () = shutdown.cancelled() => break Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let service = TowerToHyperService::new(routes.clone());
                    connections.spawn(async move {
                        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                            tracing::debug!(%error, "a CSI connection broke");
                        }
                    });
                }
                Err(e) => break Err(ServeError::Accept(e)),
            },
            Some(_) = connections.join_next() => {}
        }
    };
    connections.shutdown().await;
    let _ = std::fs::remove_file(path);
    result
}

/// A channel to a plugin's socket: connects on first use and again after a loss. Must be called inside a runtime.
///
/// # Errors
/// A path that makes no URI.
pub fn connect(socket: &Path) -> Result<Channel, tonic::Status> {
    let uri = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(uri).map_err(|e| tonic::Status::invalid_argument(e.to_string()))?;
    Ok(endpoint.connect_lazy())
}
