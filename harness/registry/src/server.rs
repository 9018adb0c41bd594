//! Serving the storage over HTTP/1.1.

use std::{net::TcpListener, sync::Arc};

use base64::Engine;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Storage, routes};

/// Who may use the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Open,
    /// Who knows this user and password.
    Basic {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
}

impl Access {
    /// Whether an `Authorization` header suffices.
    pub(crate) fn allows(&self, header: Option<&str>) -> bool {
        match self {
            Self::Open => true,
            Self::Basic { user, password } => {
                let expected = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                header.and_then(|h| h.strip_prefix("Basic ")).is_some_and(|got| got.trim() == expected)
            }
        }
    }
}

/// The registry stopped serving.
#[derive(Debug, thiserror::Error)]
#[error("registry listener")]
pub struct RegistryError(#[source] std::io::Error);

/// One registry on one listener.
#[derive(Debug)]
pub struct Registry {
    storage: Storage,
    access: Access,
    listener: TcpListener,
}

impl Registry {
    /// A registry over a bound listener.
    pub fn new(storage: Storage, access: Access, listener: TcpListener) -> Self {
        Self { storage, access, listener }
    }

    /// Serves until `shutdown`; connections end with it.
    ///
    /// # Errors
    /// [`RegistryError`] when the listener cannot be used.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RegistryError> {
        self.listener.set_nonblocking(true).map_err(RegistryError)?;
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(RegistryError)?;
        let (storage, access) = (self.storage, Arc::new(self.access));
        let uploads = routes::Uploads::default();
        let mut connections = JoinSet::new();
        loop {
            let stream = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    // Out of descriptors or a client that went away: neither is the registry's end.
                    Err(error) => {
                        tracing::debug!(%error, "accept");
                        continue;
                    }
                },
            };
            let (storage, access, uploads) = (storage.clone(), access.clone(), uploads.clone());
            connections.spawn(async move {
                let service = service_fn(move |request| {
                    let (storage, access, uploads) = (storage.clone(), access.clone(), uploads.clone());
                    async move { routes::handle(request, &storage, &access, &uploads).await }
                });
                if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(%error, "registry connection");
                }
            });
        }
    }
}
