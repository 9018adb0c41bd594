//! The bridge: both services on a unix socket, the streaming server, and the ends that init reports.

use std::{os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    config::BridgeConfig,
    error::Error,
    images::Store,
    runtime::{BridgeDeps, Runtime},
    service,
    v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};

/// Largest gRPC message, both ways. Source: k/k staging/src/k8s.io/cri-client/pkg/remote_runtime.go.
const MAX_MESSAGE: usize = 16 << 20;
/// How long a bridge that is told to end waits for what it has begun.
const LINGER: Duration = Duration::from_secs(10);

/// A CRI runtime. See [`Bridge::run`].
#[derive(Debug)]
pub struct Bridge {
    runtime: Arc<Runtime>,
}

impl Bridge {
    /// Opens the state. The calling process must be a child of the init whose socket the configuration names.
    ///
    /// # Errors
    /// Directories that cannot be made, an init that does not answer or is not our parent.
    pub fn new(config: BridgeConfig, deps: BridgeDeps) -> Result<Self, Error> {
        Ok(Self { runtime: Runtime::open(config, deps)? })
    }

    /// The image store, for imports by the same process.
    pub fn images(&self) -> Arc<Store> {
        Arc::clone(&self.runtime.images)
    }

    /// Adopts what runs, then serves until `shutdown`. Containers live on; a bridge started later adopts them. `Ok`
    /// after a shutdown; the sockets accept connections once this future has been polled for the first time and
    /// restoring is done.
    ///
    /// # Errors
    /// Sockets that cannot be opened, an init that has gone.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let runtime = self.runtime;
        let exits = runtime.init.events()?;
        runtime.restore().await;
        let listener = listen(&runtime.config)?;
        let stream = TcpListener::bind(runtime.config.stream_address)
            .await
            .map_err(Error::io("open the streaming server's port"))?;
        let stream_base =
            format!("http://{}", stream.local_addr().map_err(Error::io("read the streaming server's port"))?);

        let server = service::Server { runtime: Arc::clone(&runtime), stream_base };
        let images = service::Images(Arc::clone(&runtime));
        let mut routes = Routes::builder();
        routes
            .add_service(
                RuntimeServiceServer::new(server)
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE),
            )
            .add_service(
                ImageServiceServer::new(images)
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE),
            );
        let result = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            r = serve_grpc(listener, routes.routes()) => r,
            r = follow_exits(&runtime, exits) => r,
            r = crate::streaming::serve(Arc::clone(&runtime), stream) => r,
        };
        runtime.outputs_end.cancel();
        runtime.tasks.close();
        let _ = runtime.clock.timeout(LINGER, runtime.tasks.wait()).await;
        result
    }
}

/// Serves gRPC over HTTP/2. Deadlines are the client's: a call it gives up is cancelled here, and what it is told is
/// what it measured itself (tonic's own server would answer `Cancelled` a moment before).
async fn serve_grpc(listener: UnixListener, routes: Routes) -> Result<(), Error> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.map_err(Error::io("accept a CRI connection"))?;
                let service = TowerToHyperService::new(routes.clone());
                connections.spawn(async move {
                    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                    if let Err(error) = serving.await {
                        tracing::debug!(%error, "a CRI connection broke");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn listen(config: &BridgeConfig) -> Result<UnixListener, Error> {
    let path = &config.listen;
    let fail = || Error::io(format!("listen at {}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(fail())?;
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(fail())?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(fail())?;
    Ok(listener)
}

/// Passes every end on to whom it concerns. Ends only with init.
async fn follow_exits(runtime: &Arc<Runtime>, mut exits: crate::init::ExitStream) -> Result<(), Error> {
    loop {
        let exit = exits.next().await.map_err(Error::io("follow the exits of containers"))?;
        let (kind, id) = exit.key.split_once('/').unwrap_or(("", ""));
        match kind {
            "c" => {
                let (runtime, id) = (Arc::clone(runtime), id.to_owned());
                let tasks = runtime.tasks.clone();
                tasks.spawn(async move { runtime.container_exited(&id, exit).await });
            }
            "s" => {
                let (runtime, id) = (Arc::clone(runtime), id.to_owned());
                let tasks = runtime.tasks.clone();
                tasks.spawn(async move {
                    runtime.sandbox_exited(&id).await;
                    runtime.acknowledge(exit.pid, exit.start);
                });
            }
            "e" => {
                runtime.acknowledge(exit.pid, exit.start);
                let waiter = runtime.execs.lock().remove(&exit.key);
                if let Some(waiter) = waiter {
                    let _ = waiter.send(exit);
                }
            }
            // Not registered yet, or an orphan: init keeps a bounded number of these by itself.
            _ => {}
        }
    }
}
