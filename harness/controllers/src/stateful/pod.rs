//! The Pods and claims of a set, by ordinal. Pure. Source: k/k pkg/controller/statefulset/stateful_set_utils.go.

use podlab_api::{
    apps::StatefulSet,
    core::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
    meta::ObjectMeta,
};

use crate::{replicaset::owner, revision::HASH};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// What a name ends with: `web-2` is the third of `web`.
pub(super) fn parent_and_ordinal(name: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = name.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| ordinal.parse().ok()).flatten().map(|n| (parent, n))
}

/// A Pod's ordinal in the set of this name.
pub(super) fn ordinal_in(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, ordinal) = parent_and_ordinal(pod.metadata.name.as_deref()?)?;
    (Some(parent) == set.metadata.name.as_deref()).then_some(ordinal)
}

/// The first ordinal.
pub(super) fn first(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.ordinals.as_ref()?.start).unwrap_or(0)
}

/// How many are wanted.
pub(super) fn wanted(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1).max(0)
}

/// Whether an ordinal is among those that are wanted.
pub(super) fn in_range(set: &StatefulSet, ordinal: i32) -> bool {
    (first(set)..first(set).saturating_add(wanted(set))).contains(&ordinal)
}

fn set_name(set: &StatefulSet) -> String {
    set.metadata.name.clone().unwrap_or_default()
}

/// Name of the claim of a template.
fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.metadata.name.clone().unwrap_or_default(), set_name(set))
}

/// The claims of an ordinal, in the order of their templates.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let of = |template: &PersistentVolumeClaim| {
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name(set, template, ordinal)),
                namespace: set.metadata.namespace.clone(),
                labels: Some(labels),
                annotations: template.metadata.annotations.clone(),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    };
    spec.volume_claim_templates.iter().flatten().map(of).collect()
}

/// Volumes of the claims first, then the template's that none of them replaces.
fn volumes(set: &StatefulSet, ordinal: i32, own: Vec<Volume>) -> Vec<Volume> {
    let templates = set.spec.iter().flat_map(|s| s.volume_claim_templates.iter().flatten());
    let mut all: Vec<Volume> = templates
        .map(|t| Volume {
            name: t.metadata.name.clone().unwrap_or_default(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(set, t, ordinal),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    let claimed: Vec<String> = all.iter().map(|v| v.name.clone()).collect();
    all.extend(own.into_iter().filter(|v| !claimed.contains(&v.name)));
    all
}

/// The Pod of an ordinal, made from a template of the set's.
pub(super) fn make(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let name = format!("{}-{ordinal}", set_name(set));
    let mut spec = template.spec.clone().unwrap_or_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|s| s.service_name.clone()).filter(|s| !s.is_empty());
    let all = volumes(set, ordinal, spec.volumes.take().unwrap_or_default());
    spec.volumes = (!all.is_empty()).then_some(all);
    let mut labels = meta.labels.unwrap_or_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(HASH.to_owned(), revision.to_owned());
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner("apps/v1", "StatefulSet", &set.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Whether a Pod bears the labels of its identity. Source: identityMatches.
pub(super) fn has_identity(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|l| l.get(key)).map(String::as_str);
    let name = pod.metadata.name.as_deref();
    label(POD_NAME) == name && label(POD_INDEX) == name.and_then(|n| n.rsplit_once('-')).map(|(_, n)| n)
}

/// Gives a Pod the labels of its identity.
pub(super) fn identify(pod: &mut Pod) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let index = name.rsplit_once('-').map(|(_, n)| n.to_owned()).unwrap_or_default();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_INDEX.to_owned(), index);
    labels.insert(POD_NAME.to_owned(), name);
}

/// The revision a Pod was made from.
pub(super) fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get(HASH)).map(String::as_str).unwrap_or_default()
}
