//! The registrar: tells the node agent of a driver. Source: kubernetes-csi/node-driver-registrar.

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};

use crate::{
    grpc::{ServeError, listen, serve},
    v1::registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
};

/// Tells the node agent of one driver.
#[derive(Debug, Clone)]
pub struct Registrar {
    /// The registration socket, `<driver>-reg.sock` in the node agent's registration directory.
    pub socket: PathBuf,
    /// Driver name.
    pub name: String,
    /// The driver's own socket, as the node agent sees it.
    pub endpoint: PathBuf,
}

impl Registrar {
    /// Serves the registration until `shutdown`; then the socket goes, and with it the registration.
    ///
    /// # Errors
    /// A socket that cannot be opened.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let listener = listen(&self.socket, 0o700)?;
        let path = self.socket.clone();
        serve(&path, listener, Routes::new(RegistrationServer::new(self)), &shutdown).await
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.name.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        // The node agent asks again by itself; the driver stays where it is.
        if !status.plugin_registered {
            tracing::warn!(driver = self.name, error = status.error, "not registered");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
