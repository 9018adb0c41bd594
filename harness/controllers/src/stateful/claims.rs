//! The claims of a set's Pods: made before the Pod, kept or taken along as the retention policy says.
//! Source: k/k pkg/controller/statefulset/{stateful_pod_control,stateful_set_utils}.go.

use podlab_api::{
    ApiError,
    apps::StatefulSet,
    core::{PersistentVolumeClaim, Pod},
    meta::OwnerReference,
};

use super::pod::{claims, in_range};
use crate::replicaset::owner;

/// Whether claims go with the set, and with a Pod that is too many.
fn goes(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    let delete = |w: Option<&String>| w.map(String::as_str) == Some("Delete");
    (delete(policy.and_then(|p| p.when_deleted.as_ref())), delete(policy.and_then(|p| p.when_scaled.as_ref())))
}

/// Who shall own the claims of an ordinal, so that they go with it.
pub(super) fn owner_of_claims(set: &StatefulSet, ordinal: i32, pod: Option<&Pod>) -> Option<OwnerReference> {
    let (with_set, with_pod) = goes(set);
    if with_pod && !in_range(set, ordinal) {
        return pod.map(|p| owner("v1", "Pod", &p.metadata));
    }
    with_set.then(|| owner("apps/v1", "StatefulSet", &set.metadata))
}

/// The claim with the owner it shall have; `None` when it has it, or belongs to somebody else.
pub(super) fn with_owner(
    set: &StatefulSet,
    claim: &PersistentVolumeClaim,
    ordinal: i32,
    pod: Option<&Pod>,
) -> Option<PersistentVolumeClaim> {
    let wanted = owner_of_claims(set, ordinal, pod);
    let pod_name = format!("{}-{ordinal}", set.metadata.name.clone().unwrap_or_default());
    let ours = |o: &OwnerReference| {
        let of_set = o.kind == "StatefulSet" && Some(&o.uid) == set.metadata.uid.as_ref();
        of_set || (o.kind == "Pod" && o.name == pod_name && Some(&o.uid) == pod.and_then(|p| p.metadata.uid.as_ref()))
    };
    let before = claim.metadata.owner_references.clone().unwrap_or_default();
    if before.iter().any(|o| o.controller == Some(true) && !ours(o)) {
        return None;
    }
    let mut after: Vec<OwnerReference> = before.iter().filter(|o| !ours(o)).cloned().collect();
    after.extend(wanted);
    if after == before {
        return None;
    }
    let mut claim = claim.clone();
    claim.metadata.owner_references = Some(after);
    Some(claim)
}

/// A claim that goes with an earlier Pod of this name has to be gone first. Source: PodClaimIsStale.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod: &str) -> bool {
    let of_pod = |o: &OwnerReference| o.kind == "Pod" && o.name == pod;
    claim.metadata.owner_references.iter().flatten().any(of_pod)
}

/// What is missing of an ordinal's claims.
///
/// # Errors
/// A sentence about a claim that is there and on its way out.
pub(super) fn missing(
    set: &StatefulSet,
    ordinal: i32,
    there: &[PersistentVolumeClaim],
) -> (Vec<PersistentVolumeClaim>, Result<(), ApiError>) {
    let (mut missing, mut leaving) = (Vec::new(), Vec::new());
    for mut claim in claims(set, ordinal) {
        match there.iter().find(|c| c.metadata.name == claim.metadata.name) {
            Some(old) if old.metadata.deletion_timestamp.is_some() => {
                leaving.push(format!("pvc {} is being deleted", old.metadata.name.clone().unwrap_or_default()));
            }
            Some(_) => {}
            None => {
                claim.metadata.owner_references = owner_of_claims(set, ordinal, None).map(|o| vec![o]);
                missing.push(claim);
            }
        }
    }
    let verdict = match leaving.as_slice() {
        [] => Ok(()),
        [one] => Err(ApiError::internal(one.clone())),
        many => Err(ApiError::internal(format!("[{}]", many.join(", ")))),
    };
    (missing, verdict)
}
