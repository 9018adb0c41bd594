//! Which Pods are a controller's: those it controls, and orphans it may take over.
//! Source: k/k pkg/controller/controller_ref_manager.go.

use podlab_api::{
    ApiError,
    core::Pod,
    matching::selects,
    meta::{LabelSelector, ObjectMeta, OwnerReference},
};
use podlab_client::{Client, ListOptions};

use crate::replicaset::controlled_by;

/// Whose Pods are wanted.
pub(crate) struct Claimer<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) selector: &'a LabelSelector,
    pub(crate) owner: OwnerReference,
}

/// Lists the Pods, lets go what no longer belongs and takes over what does. `member` says more than the selector can.
pub(crate) async fn claim(
    client: &Client,
    claimer: &Claimer<'_>,
    member: impl Fn(&Pod) -> bool,
) -> Result<Vec<Pod>, ApiError> {
    let namespace = claimer.meta.namespace.clone().unwrap_or_default();
    let api = client.namespaced::<Pod>(&namespace);
    let (all, _) = api.list(&ListOptions::default()).await?;
    let mut mine = Vec::new();
    for mut pod in all {
        let fits = selects(claimer.selector, &pod.metadata.labels.clone().unwrap_or_default()) && member(&pod);
        let deleting = pod.metadata.deletion_timestamp.is_some();
        if controlled_by(&pod.metadata, claimer.meta.uid.as_ref()) {
            if fits {
                mine.push(pod);
            } else if !deleting {
                if let Some(owners) = &mut pod.metadata.owner_references {
                    owners.retain(|o| Some(&o.uid) != claimer.meta.uid.as_ref());
                }
                ignore_missing(api.update(&pod).await)?;
            }
            continue;
        }
        let controlled = pod.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true));
        if fits && !controlled && !deleting && claimer.meta.deletion_timestamp.is_none() {
            pod.metadata.owner_references.get_or_insert_default().push(claimer.owner.clone());
            mine.extend(ignore_missing(api.update(&pod).await)?);
        }
    }
    Ok(mine)
}

/// A thing that has gone in the meantime needs no work.
pub(crate) fn ignore_missing<T>(done: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match done {
        Ok(it) => Ok(Some(it)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}
