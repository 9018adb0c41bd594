//! Mirror Pods: what the API shows of static ones. Source: k/k pkg/kubelet/pod/mirror_client.go, kubelet.go
//! tryReconcileMirrorPods.

use std::{sync::Arc, time::Duration};

use podlab_api::{ApiError, core::Pod, meta::OwnerReference};
use podlab_client::{DeleteOptions, reflector::Cache};
use podlab_lifecycle::spec::{self, CONFIG_HASH, CONFIG_MIRROR};

use super::full_name;
use crate::agent::Agent;

fn note<'a>(pod: &'a Pod, key: &str) -> Option<&'a String> {
    pod.metadata.annotations.as_ref()?.get(key)
}

/// Whether a mirror shows this very static Pod.
pub(super) fn shows(mirror: &Pod, pod: &Pod) -> bool {
    note(mirror, CONFIG_MIRROR).is_some_and(|m| Some(m) == note(pod, CONFIG_HASH))
}

/// Makes the API show each static Pod, once. False when a write failed or must be followed by another.
pub(super) async fn reconcile(agent: &Arc<Agent>, cache: &Cache<Pod>) -> bool {
    let pods: Vec<Arc<Pod>> = agent.statics.running.lock().values().cloned().collect();
    let mut settled = true;
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if agent.workers.is_ending(&uid) {
            continue;
        }
        let (namespace, name) = full_name(&pod);
        let shown = cache.get(&namespace, &name);
        if let Some(m) = &shown {
            if shows(m, &pod) && !spec::is_deleting(m) {
                agent.status.observe_mirror(&uid, m);
                continue;
            }
            if let Err(error) = delete(agent, m).await {
                tracing::warn!(pod = name, %error, "outdated mirror not deleted");
                settled = false;
                continue;
            }
        }
        match create(agent, &pod).await {
            Ok(made) => agent.status.observe_mirror(&uid, &made),
            Err(e) if e.is_already_exists() => settled = false,
            Err(error) => {
                tracing::warn!(pod = name, %error, "mirror not made");
                settled = false;
            }
        }
    }
    settled
}

/// Deletes mirrors of Pods that are no more.
pub(super) async fn remove_strays(agent: &Arc<Agent>, cache: &Cache<Pod>) {
    for m in cache.list().iter().filter(|p| spec::is_mirror(p)) {
        let known = agent.statics.running.lock().contains_key(&full_name(m));
        if !known && let Err(error) = delete(agent, m).await {
            tracing::warn!(pod = full_name(m).1, %error, "stray mirror not deleted");
        }
    }
}

async fn delete(agent: &Agent, mirror: &Pod) -> Result<(), ApiError> {
    let (namespace, name) = full_name(mirror);
    let options = DeleteOptions {
        grace_period: Some(Duration::ZERO),
        uid: mirror.metadata.uid.clone(),
        ..DeleteOptions::default()
    };
    match agent.client.namespaced::<Pod>(&namespace).delete(&name, &options).await {
        Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
        other => other,
    }
}

async fn create(agent: &Agent, pod: &Pod) -> Result<Pod, ApiError> {
    let mut mirror = pod.clone();
    let m = &mut mirror.metadata;
    m.uid = None;
    let hash = note(pod, CONFIG_HASH).cloned().unwrap_or_default();
    m.annotations.get_or_insert_default().insert(CONFIG_MIRROR.to_owned(), hash);
    let node = agent.node.lock().metadata.clone();
    m.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: agent.config.node_name.clone(),
        uid: node.uid.unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    mirror.status = None;
    let namespace = full_name(pod).0;
    agent.client.namespaced::<Pod>(&namespace).create(&mirror).await
}
