//! The plane: API server with its store, scheduler, controllers, registries and cluster DNS in one process of the
//! capsule. It may be killed and comes back with what it had acknowledged.

pub(crate) mod defaults;
pub(crate) mod dns;
mod local_api;
mod publish;

use std::{io, net::TcpListener, sync::Arc};

use nix::sched::{CloneFlags, unshare};
use podlab_apiserver::{ApiServer, ApiServerConfig, pki::Authority};
use podlab_client::{Api, Client};
use podlab_clock::{Clock, Rng};
use podlab_controllers::{Controllers, ControllersConfig};
use podlab_fault::Plan;
use podlab_registry::{Access, Registry, Storage};
use podlab_scheduler::{Scheduler, SchedulerConfig};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_testimage::Image;
use podlab_timeline::Recorder;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    api_tap::ApiTap,
    capsule::Capsule,
    node::tap::ApiGate,
    process,
    spec::{Durability, address},
    telemetry,
};
pub use local_api::LocalApi;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The body of the plane, in a fresh child of capsule init.
pub(crate) fn main(capsule: &Capsule) -> i32 {
    let prepared = process::redirect_stdio(&capsule.state.join("logs/plane.log"))
        .and_then(|()| unshare(CloneFlags::CLONE_NEWCGROUP).map_err(io::Error::from));
    if let Err(e) = prepared {
        crate::telemetry::say(format_args!("plane: {e}"));
        return 1;
    }
    telemetry::init();
    podlab_mutant::for_process(capsule.spec.mutant);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            crate::telemetry::say(format_args!("plane: {e}"));
            return 1;
        }
    };
    match runtime.block_on(run(capsule)) {
        Ok(()) => 0,
        Err(e) => {
            tracing::error!(error = %chain(&*e), "plane ended");
            1
        }
    }
}

/// An error with all its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn run(capsule: &Capsule) -> Result<(), Failure> {
    let (state, spec) = (&capsule.state, &capsule.spec);
    let clock = Clock::real();
    let rng = telemetry::rng(spec.seed, "plane", &state.join("plane-lives"))?;
    let log = spec.run_log.clone().unwrap_or_else(|| state.join("run.jsonl"));
    let recorder = spec.recorder(Recorder::to_file(&log, clock)?, clock);
    let shutdown = CancellationToken::new();
    let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();

    // The sockets first: whoever connects while the rest starts waits in the backlog instead of being refused.
    let api = TcpListener::bind((address::PLANE, address::API_PORT))?;
    let registry = TcpListener::bind((address::REGISTRY, 80))?;
    let private = TcpListener::bind((address::PRIVATE_REGISTRY, 80))?;
    let storages = (Storage::in_dir(&state.join("registry"))?, Storage::in_dir(&state.join("private-registry"))?);
    if storages.0.repositories().is_empty() {
        let image = Image::testimage();
        storages.0.put_image("testimage", "1", &image)?;
        storages.1.put_image("testimage", "1", &image)?;
    }
    let password = Access::Basic { user: spec.registry_user.clone(), password: spec.registry_password.clone() };
    for (storage, access, listener) in [(storages.0, Access::Open, registry), (storages.1, password, private)] {
        let token = shutdown.clone();
        tasks.spawn(async move { Ok(Registry::new(storage, access, listener).run(token).await?) });
    }

    let server = api_server(capsule, clock, &rng, &recorder).await?;
    let authority = Arc::new(Authority::load(&state.join("pki"))?);
    let identity = podlab_apiserver::pki::Identity {
        certificate: std::fs::read_to_string(state.join("pki/apiserver.crt"))?,
        key: std::fs::read_to_string(state.join("pki/apiserver.key"))?,
    };
    let tls = authority.server_config(&identity)?;
    let mut listeners = vec![api];
    for listener in &capsule.sockets.api {
        listeners.push(listener.try_clone()?);
    }
    let (serving, token) = (server.clone(), shutdown.clone());
    tasks.spawn(async move { Ok(serving.serve(listeners, podlab_apiserver::Tls(Arc::new(tls)), token).await?) });

    let api: Arc<dyn Api> = Arc::new(LocalApi::new(server));
    let client = Client::new(api.clone());
    defaults::create(&client).await?;
    let plan = Arc::new(Plan::new(spec.faults.clone()));
    let tapped = |who: &str| match plan.at("api") {
        true => Client::new(Arc::new(ApiTap::new(api.clone(), ApiGate::of_plane(&plan, &recorder, clock, who)))),
        false => client.clone(),
    };
    components(authority.ca_pem().to_owned(), &mut tasks, tapped, clock, &rng, &recorder, &shutdown);
    let (dns, token) = (dns::server(&client, clock)?, shutdown.clone());
    tasks.spawn(async move { Ok(dns.run(token).await?) });
    dns::ensure_service(&client).await?;
    for listener in &capsule.sockets.published {
        let (listener, token) = (listener.try_clone()?, shutdown.clone());
        tasks.spawn(async move { Ok(publish::forward(listener, token).await?) });
    }
    finish(tasks, &shutdown).await
}

/// Scheduler and controllers, each on its own client.
fn components(
    ca: String,
    tasks: &mut JoinSet<Result<(), Failure>>,
    client: impl Fn(&str) -> Client,
    clock: Clock,
    rng: &Rng,
    recorder: &Recorder,
    shutdown: &CancellationToken,
) {
    let scheduler =
        Scheduler::new(SchedulerConfig::default(), client("scheduler"), clock, rng.fork("scheduler"), recorder);
    let token = shutdown.clone();
    tasks.spawn(async move {
        scheduler.run(token).await;
        Ok(())
    });
    let controllers = Controllers::new(ControllersConfig { ca }, client("controllers"), clock, rng.fork("controllers"));
    let token = shutdown.clone();
    tasks.spawn(async move {
        controllers.run(token).await;
        Ok(())
    });
}

async fn api_server(
    capsule: &Capsule,
    clock: Clock,
    rng: &Rng,
    recorder: &Recorder,
) -> Result<Arc<ApiServer>, Failure> {
    let durable = match capsule.spec.durable {
        Durability::Off => Durable::Off,
        Durability::Batch => Durable::Batch,
        Durability::Always => Durable::Always,
    };
    let store = Store::open(StoreConfig { dir: Some(capsule.state.join("store")), durable, ..StoreConfig::default() })?;
    let authority = Arc::new(Authority::load(&capsule.state.join("pki"))?);
    let mut config = ApiServerConfig::new(authority);
    config.advertise = Some((address::PLANE.into(), address::API_PORT));
    Ok(ApiServer::new(store, config, clock, rng.fork("apiserver"), recorder.clone()).await?)
}

/// Waits for SIGTERM or for the first task that ends; then stops the rest.
pub(crate) async fn finish(
    mut tasks: JoinSet<Result<(), Failure>>,
    shutdown: &CancellationToken,
) -> Result<(), Failure> {
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let first = tokio::select! {
        _ = term.recv() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(e))) => Err(e),
            Some(Err(e)) => Err(Failure::from(e)),
            Some(Ok(Ok(()))) => Err("a component stopped by itself".into()),
            None => Ok(()),
        },
    };
    shutdown.cancel();
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "while stopping");
        }
    }
    first
}
