//! Garbage collection by owner references: dependents of absent owners go; foreground and orphan deletions are finished.
//! Source: k/k pkg/controller/garbagecollector.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::StreamExt;
use podlab_api::{ApiError, Object, ResourceRef, meta::OwnerReference};
use podlab_client::{Client, Collection, DeleteOptions, ListOptions, PatchKind, Target, WatchOptions, WatchType};
use podlab_clock::Clock;
use podlab_mutant::{self as mutant, Mutant};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::work::{Again, Key, Queue, Reconcile};

macro_rules! kinds {
    ($($group:literal $plural:literal $kind:literal $namespaced:literal),* $(,)?) => {
        &[$(ResourceRef { group: $group, version: "v1", plural: $plural, kind: $kind, namespaced: $namespaced }),*]
    };
}

/// What is followed: everything that commonly owns or is owned.
pub(crate) const FOLLOWED: &[ResourceRef] = kinds![
    "" "pods" "Pod" true,
    "" "configmaps" "ConfigMap" true,
    "" "secrets" "Secret" true,
    "" "services" "Service" true,
    "" "serviceaccounts" "ServiceAccount" true,
    "" "persistentvolumeclaims" "PersistentVolumeClaim" true,
    "" "replicationcontrollers" "ReplicationController" true,
    "" "nodes" "Node" false,
    "apps" "replicasets" "ReplicaSet" true,
    "apps" "deployments" "Deployment" true,
    "apps" "statefulsets" "StatefulSet" true,
    "apps" "daemonsets" "DaemonSet" true,
    "apps" "controllerrevisions" "ControllerRevision" true,
    "batch" "jobs" "Job" true,
    "batch" "cronjobs" "CronJob" true,
    "discovery.k8s.io" "endpointslices" "EndpointSlice" true,
];

#[derive(Debug, Clone)]
struct Known {
    resource: ResourceRef,
    namespace: Option<String>,
    name: String,
    owners: Vec<OwnerReference>,
    finalizers: BTreeSet<String>,
    deleting: bool,
}

/// The graph: objects by UID. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph(Arc<Mutex<BTreeMap<String, Known>>>);

impl Known {
    fn of(resource: ResourceRef, object: &Object) -> Result<Self, ApiError> {
        let meta = object.meta()?;
        Ok(Self {
            resource,
            namespace: meta.namespace,
            name: meta.name.unwrap_or_default(),
            owners: meta.owner_references.unwrap_or_default(),
            finalizers: meta.finalizers.unwrap_or_default().into_iter().collect(),
            deleting: meta.deletion_timestamp.is_some(),
        })
    }
}

impl Graph {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, resource: ResourceRef, object: &Object) {
        let Ok(known) = Known::of(resource, object) else { return };
        self.lock().insert(object.uid().to_owned(), known);
    }

    fn dependents(&self, uid: &str) -> Vec<(String, Known)> {
        let all = self.lock();
        all.iter().filter(|(_, k)| k.owners.iter().any(|o| o.uid == uid)).map(|(u, k)| (u.clone(), k.clone())).collect()
    }
}

/// Keys of this controller are `("", uid)`.
fn key(uid: &str) -> Key {
    (String::new(), uid.to_owned())
}

/// Follows one resource into the graph and queues what may have to go.
pub(crate) async fn follow(
    client: Client,
    resource: ResourceRef,
    graph: Graph,
    queue: Queue,
    clock: Clock,
    shutdown: CancellationToken,
) {
    let run = async {
        loop {
            if let Err(error) = follow_once(&client, resource, &graph, &queue).await {
                tracing::debug!(resource = resource.plural, %error, "garbage collector follows again");
                clock.sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    };
    let _: Option<()> = shutdown.run_until_cancelled(run).await;
}

async fn follow_once(client: &Client, resource: ResourceRef, graph: &Graph, queue: &Queue) -> Result<(), ApiError> {
    let collection = Collection { resource, namespace: None };
    let list = client.raw().list(&collection, &ListOptions::default()).await?;
    let present: BTreeSet<String> = list.items.iter().map(|o| o.uid().to_owned()).collect();
    let gone: Vec<String> = {
        let known = graph.lock();
        known.iter().filter(|(u, k)| k.resource == resource && !present.contains(*u)).map(|(u, _)| u.clone()).collect()
    };
    for object in &list.items {
        graph.set(resource, object);
        queue.add(key(object.uid()));
    }
    gone.iter().for_each(|uid| forget(graph, queue, uid));
    let options = WatchOptions { resource_version: Some(list.resource_version), ..WatchOptions::default() };
    let mut stream = client.raw().watch(&collection, &options).await?;
    while let Some(event) = stream.next().await {
        let event = event?;
        let uid = event.object.uid().to_owned();
        match event.kind {
            WatchType::Bookmark => {}
            WatchType::Deleted => forget(graph, queue, &uid),
            WatchType::Added | WatchType::Modified => {
                graph.set(resource, &event.object);
                queue.add(key(&uid));
            }
        }
    }
    Ok(())
}

/// An object went: its dependents, and owners that waited for it, are looked at.
fn forget(graph: &Graph, queue: &Queue, uid: &str) {
    let known = graph.lock().remove(uid);
    for (dependent, _) in graph.dependents(uid) {
        queue.add(key(&dependent));
    }
    for owner in known.into_iter().flat_map(|k| k.owners) {
        queue.add(key(&owner.uid));
    }
}

/// The controller.
pub(crate) struct Collector {
    pub(crate) client: Client,
    pub(crate) graph: Graph,
}

#[async_trait]
impl Reconcile for Collector {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    async fn reconcile(&self, (_, uid): &Key) -> Result<Again, ApiError> {
        let Some(known) = self.graph.lock().get(uid).cloned() else { return Ok(Again::OnChange) };
        if known.deleting {
            self.finish_deletion(uid, &known).await?;
            return Ok(Again::OnChange);
        }
        if known.owners.is_empty() || mutant::is(Mutant::OrphansStay) {
            return Ok(Again::OnChange);
        }
        let mut waiting = false;
        for owner in &known.owners {
            match self.owner_state(&known, owner).await? {
                OwnerState::There => return Ok(Again::OnChange),
                OwnerState::Foreground => waiting = true,
                OwnerState::Gone => {}
            }
        }
        // The graph may be behind: an object that was orphaned a moment ago still has an owner there. The watch brings it.
        let Some((now, version)) = self.live(uid, &known).await? else { return Ok(Again::OnChange) };
        if now.deleting || now.owners != known.owners {
            return Ok(Again::OnChange);
        }
        let propagation = if waiting { "Foreground" } else { "Background" };
        let options = DeleteOptions {
            uid: Some(uid.clone()),
            resource_version: Some(version),
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        ignore_gone(self.client.raw().delete(&target(&known), &options).await)
    }
}

enum OwnerState {
    There,
    Foreground,
    Gone,
}

impl Collector {
    /// The object as the API has it now, with its version; `None` when it is gone or another has its name.
    /// Source: k/k pkg/controller/garbagecollector/garbagecollector.go attemptToDeleteItem.
    async fn live(&self, uid: &str, known: &Known) -> Result<Option<(Known, u64)>, ApiError> {
        match self.client.raw().get(&target(known)).await {
            Ok(object) if object.uid() == uid => {
                Ok(Some((Known::of(known.resource, &object)?, object.resource_version())))
            }
            Ok(_) => Ok(None),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn owner_state(&self, dependent: &Known, owner: &OwnerReference) -> Result<OwnerState, ApiError> {
        let state = |deleting: bool, foreground: bool| match (deleting, foreground) {
            (true, true) => OwnerState::Foreground,
            _ => OwnerState::There,
        };
        if let Some(k) = self.graph.lock().get(&owner.uid) {
            return Ok(state(k.deleting, k.finalizers.contains("foregroundDeletion")));
        }
        // Not in the graph (yet): ask before deleting anything.
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let Some(resource) = FOLLOWED.iter().find(|r| r.group == group && r.version == version && r.kind == owner.kind)
        else {
            return Ok(OwnerState::There);
        };
        let namespace = dependent.namespace.clone().filter(|_| resource.namespaced);
        let target = Target {
            collection: Collection { resource: *resource, namespace },
            name: owner.name.clone(),
            subresource: None,
        };
        match self.client.raw().get(&target).await {
            Ok(object) if object.uid() == owner.uid => {
                let meta = object.meta()?;
                let foreground = meta.finalizers.iter().flatten().any(|f| f == "foregroundDeletion");
                Ok(state(meta.deletion_timestamp.is_some(), foreground))
            }
            Ok(_) => Ok(OwnerState::Gone),
            Err(e) if e.is_not_found() => Ok(OwnerState::Gone),
            Err(e) => Err(e),
        }
    }

    /// Removes the collector's own finalizers once their work is done.
    async fn finish_deletion(&self, uid: &str, known: &Known) -> Result<(), ApiError> {
        let dependents = self.graph.dependents(uid);
        if known.finalizers.contains("orphan") {
            for (dependent_uid, dependent) in &dependents {
                let Some((dependent, _)) = self.live(dependent_uid, dependent).await? else { continue };
                let rest: Vec<_> = dependent.owners.iter().filter(|o| o.uid != uid).collect();
                let body = json!({"metadata": {"ownerReferences": rest}});
                ignore_gone(self.client.raw().patch(&target(&dependent), &PatchKind::Merge, &body).await)?;
            }
            return self.remove_finalizer(known, "orphan").await;
        }
        if known.finalizers.contains("foregroundDeletion") {
            let blocking = |k: &Known| k.owners.iter().any(|o| o.uid == uid && o.block_owner_deletion == Some(true));
            for (dependent_uid, dependent) in dependents.iter().filter(|(_, k)| !k.deleting) {
                let others = dependent.owners.iter().any(|o| o.uid != uid && self.graph.lock().contains_key(&o.uid));
                if !others {
                    let options = DeleteOptions {
                        uid: Some(dependent_uid.clone()),
                        propagation: Some("Foreground"),
                        ..DeleteOptions::default()
                    };
                    ignore_gone(self.client.raw().delete(&target(dependent), &options).await)?;
                }
            }
            if !dependents.iter().any(|(_, k)| blocking(k)) {
                return self.remove_finalizer(known, "foregroundDeletion").await;
            }
        }
        Ok(())
    }

    async fn remove_finalizer(&self, known: &Known, finalizer: &str) -> Result<(), ApiError> {
        let rest: Vec<_> = known.finalizers.iter().filter(|f| *f != finalizer).collect();
        let body = json!({"metadata": {"finalizers": rest}});
        ignore_gone(self.client.raw().patch(&target(known), &PatchKind::Merge, &body).await).map(drop)
    }
}

fn target(known: &Known) -> Target {
    let collection = Collection { resource: known.resource, namespace: known.namespace.clone() };
    Target { collection, name: known.name.clone(), subresource: None }
}

fn ignore_gone(result: Result<Arc<Object>, ApiError>) -> Result<Again, ApiError> {
    match result {
        Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
        _ => Ok(Again::OnChange),
    }
}
