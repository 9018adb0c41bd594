//! The server as a value: what it is made of and how it starts.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use podlab_api::ApiError;
use podlab_clock::{Clock, Rng};
use podlab_store::Store;
use podlab_timeline::{Lane, Recorder};

use crate::{
    admission::InFlight,
    auth::token::TokenSigner,
    http::node_client::NodeClient,
    pki::{Authority, PkiError},
};

/// How the server is to behave.
#[derive(Debug, Clone)]
pub struct ApiServerConfig {
    /// The cluster's certificate authority and token key.
    pub authority: Arc<Authority>,
    /// Network of Service addresses: first address and prefix length.
    pub service_range: (Ipv4Addr, u8),
    /// Ports handed to NodePort Services.
    pub node_ports: RangeInclusive<u16>,
    /// Where Pods reach the server: the endpoint behind the `kubernetes` Service. `None` leaves it without one.
    pub advertise: Option<(IpAddr, u16)>,
    /// Issuer (`iss`) of ServiceAccount tokens, also their default audience.
    pub issuer: String,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// The reported version, `v1.36.x`.
    pub version: String,
}

impl ApiServerConfig {
    /// The defaults of a Kubernetes cluster under `authority`.
    pub fn new(authority: Arc<Authority>) -> Self {
        Self {
            authority,
            service_range: (Ipv4Addr::new(10, 96, 0, 0), 16),
            node_ports: 30_000..=32_767,
            advertise: None,
            issuer: "https://kubernetes.default.svc.cluster.local".into(),
            event_ttl: Duration::from_secs(3600),
            version: "v1.36.3".into(),
        }
    }
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Certificates or keys are not usable.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// An object that every cluster has could not be made.
    #[error("create {what}: {source}")]
    Bootstrap {
        /// Which object.
        what: String,
        /// Why.
        #[source]
        source: ApiError,
    },
}

/// Addresses and ports in use by Services.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    pub addresses: BTreeSet<Ipv4Addr>,
    pub node_ports: BTreeSet<u16>,
}

/// The API server. Serves any number of listeners and in-process callers at the same time.
#[derive(Debug)]
pub struct ApiServer {
    pub(crate) store: Arc<Store>,
    pub(crate) config: ApiServerConfig,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) recorder: Recorder,
    pub(crate) tokens: TokenSigner,
    pub(crate) nodes: NodeClient,
    pub(crate) services: Mutex<Allocations>,
    pub(crate) in_flight: Mutex<InFlight>,
}

impl ApiServer {
    /// Makes the server and the objects every cluster has: system namespaces, the `kubernetes` Service, the priority
    /// classes, roles. Doing so again on the same store changes nothing.
    ///
    /// # Errors
    /// [`StartError`] when keys are not usable or the store refuses a write.
    pub async fn new(
        store: Arc<Store>,
        config: ApiServerConfig,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
    ) -> Result<Arc<Self>, StartError> {
        let tokens = TokenSigner::new(config.authority.service_account_key_pem(), &config.issuer)?;
        let client = config.authority.client_cert("kube-apiserver-kubelet-client", &["system:masters"])?;
        let nodes = NodeClient::new(config.authority.client_config(Some(&client))?);
        let recorder = recorder.lane(Lane::Api);
        let (services, in_flight) = (Mutex::default(), Mutex::default());
        let server = Arc::new(Self { store, config, clock, rng, recorder, tokens, nodes, services, in_flight });
        server.load_service_allocations();
        server.bootstrap().await?;
        Ok(server)
    }

    /// Now, as Kubernetes writes it: whole seconds, UTC.
    pub(crate) fn now_text(&self) -> String {
        self.clock.wall_secs().to_string()
    }
}
