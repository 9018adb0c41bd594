//! ControllerRevisions: what DaemonSets and StatefulSets remember of their templates.
//! Source: k/k pkg/controller/history/controller_history.go, pkg/controller/daemon/update.go.

use std::collections::BTreeMap;

use podlab_api::{
    ApiError,
    apps::ControllerRevision,
    core::PodTemplateSpec,
    k8s_openapi::apimachinery::pkg::runtime::RawExtension,
    meta::{ObjectMeta, OwnerReference},
};
use podlab_client::{Client, DeleteOptions, ListOptions};
use serde_json::{Value, json};

use crate::{deployment::hash, replicaset::controlled_by};

/// Which revision a Pod was made from; DaemonSets write the hash there, StatefulSets the revision's name.
pub(crate) const HASH: &str = "controller-revision-hash";
/// Of a StatefulSet's revision.
const REVISION_HASH: &str = "controller.kubernetes.io/hash";

/// The object whose templates are remembered.
pub(crate) struct Parent<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) owner: OwnerReference,
    pub(crate) template: &'a PodTemplateSpec,
    pub(crate) collisions: i32,
}

/// What is remembered, with the revision of the template as it is now.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) current: ControllerRevision,
    /// The others, the oldest first.
    pub(crate) old: Vec<ControllerRevision>,
    /// Names that were taken by something else.
    pub(crate) collisions: i32,
}

/// The patch that brings the template back; also what revisions are compared by.
fn patch(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(map) = template.as_object_mut() {
        map.insert("$patch".to_owned(), "replace".into());
    }
    json!({"spec": {"template": template}})
}

/// The template a revision remembers.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// The value of the Pods' [`HASH`] label for a DaemonSet's revision.
pub(crate) fn hash_of(revision: &ControllerRevision) -> String {
    revision.metadata.labels.as_ref().and_then(|l| l.get(HASH)).cloned().unwrap_or_default()
}

impl History {
    /// Finds or makes the revision of the template as it is now; one that comes back gets the highest number.
    pub(crate) async fn of(client: &Client, parent: &Parent<'_>) -> Result<Self, ApiError> {
        let namespace = parent.meta.namespace.clone().unwrap_or_default();
        let api = client.namespaced::<ControllerRevision>(&namespace);
        let (all, _) = api.list(&ListOptions::default()).await?;
        let mine = |r: &ControllerRevision| controlled_by(&r.metadata, parent.meta.uid.as_ref());
        let mut all: Vec<ControllerRevision> = all.into_iter().filter(mine).collect();
        all.sort_by(|a, b| (a.revision, &a.metadata.name).cmp(&(b.revision, &b.metadata.name)));
        let wanted = patch(parent.template);
        let newest = all.last().map_or(0, |r| r.revision);
        let same = all.iter().rposition(|r| r.data.as_ref().is_some_and(|d| d.0 == wanted));
        let Some(i) = same else {
            let (current, collisions) = create(client, parent, wanted, newest + 1).await?;
            return Ok(Self { current, old: all, collisions });
        };
        let mut current = all.remove(i);
        if current.revision < newest {
            current.revision = newest + 1;
            current = api.update(&current).await?;
        }
        Ok(Self { current, old: all, collisions: parent.collisions })
    }

    /// The remembered revision of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&ControllerRevision> {
        std::iter::once(&self.current).chain(&self.old).find(|r| r.metadata.name.as_deref() == Some(name))
    }

    /// Deletes the oldest that nobody uses until only `keep` of those are left.
    pub(crate) async fn truncate(
        &self,
        client: &Client,
        keep: Option<i32>,
        used: impl Fn(&ControllerRevision) -> bool,
    ) -> Result<(), ApiError> {
        let unused: Vec<&ControllerRevision> = self.old.iter().filter(|r| !used(r)).collect();
        let keep = usize::try_from(keep.unwrap_or(10)).unwrap_or(usize::MAX);
        for revision in unused.iter().take(unused.len().saturating_sub(keep)) {
            let (namespace, name) = crate::work::key_of(*revision);
            let api = client.namespaced::<ControllerRevision>(&namespace);
            match api.delete(&name, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

async fn create(
    client: &Client,
    parent: &Parent<'_>,
    data: Value,
    revision: i64,
) -> Result<(ControllerRevision, i32), ApiError> {
    let namespace = parent.meta.namespace.clone().unwrap_or_default();
    let api = client.namespaced::<ControllerRevision>(&namespace);
    let mut collisions = parent.collisions;
    loop {
        let hash = hash(parent.template, collisions);
        let name = format!("{}-{hash}", parent.meta.name.clone().unwrap_or_default());
        let mut labels: BTreeMap<String, String> =
            parent.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        let key = if parent.owner.kind == "DaemonSet" { HASH } else { REVISION_HASH };
        labels.insert(key.to_owned(), hash);
        let wanted = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels),
                annotations: parent.meta.annotations.clone(),
                owner_references: Some(vec![parent.owner.clone()]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data.clone())),
            revision,
        };
        match api.create(&wanted).await {
            Err(e) if e.is_already_exists() && collisions < parent.collisions + 100 => {
                let there = api.get_opt(&name).await?;
                let free = |r: &ControllerRevision| r.metadata.owner_references.iter().flatten().next().is_none();
                match there {
                    // Left behind by a parent of this name that was deleted without its dependents.
                    Some(mut orphan) if free(&orphan) && orphan.data.as_ref().is_some_and(|d| d.0 == data) => {
                        orphan.metadata.owner_references = Some(vec![parent.owner.clone()]);
                        return Ok((api.update(&orphan).await?, collisions));
                    }
                    Some(_) => collisions += 1,
                    None => {}
                }
            }
            other => return other.map(|made| (made, collisions)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_gives_its_template_back() {
        let template: PodTemplateSpec = serde_json::from_value(json!({
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .unwrap();
        let revision = ControllerRevision { data: Some(RawExtension(patch(&template))), ..Default::default() };
        assert_eq!(template_of(&revision), Some(template.clone()));
        assert_eq!(patch(&template).pointer("/spec/template/$patch"), Some(&json!("replace")));
        assert_eq!(template_of(&ControllerRevision::default()), None);
    }
}
