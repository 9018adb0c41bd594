//! Plugin registration: sockets that appear in the registration directory are asked who they are, and their drivers are
//! written into the node's CSINode object. Source: k/k pkg/kubelet/pluginmanager, pkg/volume/csi/nodeinfomanager.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podlab_api::{
    ApiError,
    core::Node,
    meta::{ObjectMeta, OwnerReference},
    storage::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources},
};
use podlab_client::PatchKind;
use serde_json::json;

use super::{CsiError, CsiNodeInfo, Driver, Plugins};
use crate::{agent::Agent, host::FileKind};

/// How long a change of the directory may go unnoticed at most.
const PERIOD: Duration = Duration::from_secs(5);
/// Pause before a plugin that failed to register is asked again; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);
/// How deep sockets may lie below the directory.
const MAX_DEPTH: usize = 3;

/// Follows the registration directory until the agent stops.
pub(crate) async fn watch_plugins(agent: Arc<Agent>, plugins: Arc<dyn Plugins>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown.run_until_cancelled(follow(&agent, plugins.as_ref())).await;
}

async fn follow(agent: &Arc<Agent>, plugins: &dyn Plugins) {
    let dir = agent.config.plugin_registry();
    let mut changes = agent.host.watch(&dir);
    let mut registered: BTreeSet<PathBuf> = BTreeSet::new();
    let mut failed: BTreeMap<PathBuf, (podlab_clock::Mono, Duration)> = BTreeMap::new();
    loop {
        let present: BTreeSet<PathBuf> = sockets(agent, &dir, MAX_DEPTH).into_iter().collect();
        for gone in registered.difference(&present).cloned().collect::<Vec<_>>() {
            registered.remove(&gone);
            if let Some(name) = agent.drivers.remove(&gone)
                && let Err(error) = forget(agent, &name).await
            {
                tracing::warn!(driver = name, %error, "driver not removed from CSINode");
            }
        }
        failed.retain(|p, _| present.contains(p));
        for socket in present.difference(&registered).cloned().collect::<Vec<_>>() {
            let now = agent.clock.now();
            let wait = failed.get(&socket).copied();
            if wait.is_some_and(|(at, _)| now < at) {
                continue;
            }
            match register(agent, plugins, &socket).await {
                Ok(()) => {
                    failed.remove(&socket);
                    registered.insert(socket);
                }
                Err(error) => {
                    tracing::info!(socket = %socket.display(), %error, "plugin not registered");
                    let pause = wait.map_or(RETRY_FIRST, |(_, p)| (p * 2).min(RETRY_MAX));
                    failed.insert(socket, (now.after(pause), pause));
                }
            }
        }
        changes.next(PERIOD).await;
    }
}

fn sockets(agent: &Agent, dir: &Path, depth: usize) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for name in agent.host.list(dir).unwrap_or_default().into_iter().filter(|n| !n.starts_with('.')) {
        let path = dir.join(name);
        match agent.host.stat(&path).map(|s| s.kind) {
            Ok(FileKind::Socket) => out.push(path),
            Ok(FileKind::Dir) if depth > 1 => out.extend(sockets(agent, &path, depth - 1)),
            _ => {}
        }
    }
    out
}

/// Why a plugin was not registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("{0}")]
    Plugin(#[from] CsiError),
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("{0}")]
    Refused(String),
}

async fn register(agent: &Arc<Agent>, plugins: &dyn Plugins, socket: &Path) -> Result<(), RegisterError> {
    let info = plugins.info(socket).await?;
    if info.kind != "CSIPlugin" {
        let why = format!("no handler registered for plugin type: {} at socket {}", info.kind, socket.display());
        let _ = plugins.notify(socket, &why).await;
        return Err(RegisterError::Refused(why));
    }
    let speaks = info
        .versions
        .iter()
        .any(|v| v.trim_start_matches('v').split('.').next().and_then(|m| m.parse::<u32>().ok()) == Some(1));
    if !speaks {
        let why = format!("None of the versions specified {:?} are supported", info.versions);
        let _ = plugins.notify(socket, &why).await;
        return Err(RegisterError::Refused(why));
    }
    let endpoint = if info.endpoint.is_empty() {
        socket.to_owned()
    } else {
        PathBuf::from(info.endpoint.trim_start_matches("unix://"))
    };
    let done = async {
        let node = plugins.connect(&endpoint).await?;
        let about = node.info().await?;
        let capabilities = node.capabilities().await?;
        remember(agent, &info.name, &about).await?;
        agent.drivers.add(&info.name, Driver { node, capabilities, socket: socket.to_owned() });
        Ok::<(), RegisterError>(())
    };
    match done.await {
        Ok(()) => {
            plugins.notify(socket, "").await?;
            tracing::info!(driver = info.name, "driver registered");
            Ok(())
        }
        Err(e) => {
            let _ = plugins.notify(socket, &e.to_string()).await;
            Err(e)
        }
    }
}

/// Writes the driver into CSINode, and its topology and id onto the node.
async fn remember(agent: &Agent, name: &str, about: &CsiNodeInfo) -> Result<(), RegisterError> {
    if about.node_id.is_empty() {
        return Err(RegisterError::Refused(format!(
            "error updating CSINode object with CSI driver node info: nodeID of driver {name} is empty"
        )));
    }
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: about.node_id.clone(),
        topology_keys: Some(about.topology.keys().cloned().collect()),
        allocatable: (about.max_volumes > 0)
            .then(|| VolumeNodeResources { count: i32::try_from(about.max_volumes).ok() }),
    };
    let mut drivers = current(agent).await?;
    drivers.retain(|d| d.name != name);
    drivers.push(driver);
    write(agent, drivers).await?;
    let node = &agent.config.node_name;
    let nodes = agent.client.all::<Node>();
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    let shown = nodes.get(node).await?;
    let before =
        shown.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID)).and_then(|t| serde_json::from_str(t).ok());
    ids.extend::<BTreeMap<String, String>>(before.unwrap_or_default());
    ids.insert(name.to_owned(), about.node_id.clone());
    let text = serde_json::to_string(&ids).map_err(|e| RegisterError::Refused(e.to_string()))?;
    let body = json!({"metadata": {"annotations": {NODE_ID: text}, "labels": about.topology}});
    nodes.patch(node, &PatchKind::Merge, &body).await?;
    Ok(())
}

const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

async fn forget(agent: &Agent, name: &str) -> Result<(), ApiError> {
    let mut drivers = current(agent).await?;
    drivers.retain(|d| d.name != name);
    write(agent, drivers).await
}

async fn current(agent: &Agent) -> Result<Vec<CSINodeDriver>, ApiError> {
    let found = agent.client.all::<CSINode>().get_opt(&agent.config.node_name).await?;
    Ok(found.map(|n| n.spec.drivers).unwrap_or_default())
}

async fn write(agent: &Agent, drivers: Vec<CSINodeDriver>) -> Result<(), ApiError> {
    let name = &agent.config.node_name;
    let all = agent.client.all::<CSINode>();
    let body = json!({"spec": {"drivers": drivers}});
    match all.patch(name, &PatchKind::Merge, &body).await {
        Err(e) if e.is_not_found() => {}
        other => return other.map(drop),
    }
    let owner = agent.node.lock().metadata.uid.clone().map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid,
        ..OwnerReference::default()
    });
    let node = CSINode {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: owner.map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers },
    };
    all.create(&node).await.map(drop)
}
