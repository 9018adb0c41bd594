//! Delete: preconditions, grace, finalizers, propagation.
//! Source: k/k staging/src/k8s.io/apiserver/pkg/registry/{rest/delete.go,generic/registry/store.go}.

use std::{sync::Arc, time::Duration};

use podlab_api::{ApiError, Object, Reason, jiff::Timestamp};
use podlab_mutant::{self as mutant, Mutant};
use podlab_store::{StoreError, Stored};
use serde_json::Value;

use super::{ListQuery, update::finished};
use crate::{
    context::Context,
    errors::{conflict, from_store, not_found},
    kinds::Kind,
    server::ApiServer,
    tree::{has, int, list, list_at, map_at, put, text},
};

/// How to delete; a `DeleteOptions` that has been read.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteRequest {
    /// Seconds.
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    pub propagation: Option<String>,
}

/// The outcome of a delete.
#[derive(Debug)]
pub(crate) struct Deleted {
    /// The object as it was left, or its last state.
    pub stored: Arc<Stored>,
    /// Whether it is gone; else it only carries a deletionTimestamp.
    pub gone: bool,
}

/// What a delete means for an object.
enum Plan {
    /// Mark it and leave it to whoever holds it.
    Mark(Value),
    /// Mark it, so that watchers see the mark, and remove it.
    MarkAndRemove(Value),
    Remove,
    /// It is being deleted already and this request changes nothing.
    Pending,
}

impl ApiServer {
    /// Deletes an object, or begins to. Dropping the future may still delete.
    ///
    /// # Errors
    /// 404, 409 for preconditions that do not hold, 403 from admission.
    pub(crate) async fn delete_object(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        request: &DeleteRequest,
    ) -> Result<Deleted, ApiError> {
        let key = kind.key(namespace, name);
        loop {
            let current = self.store.get(&key).ok_or_else(|| not_found(kind, name))?;
            check(kind, name, &current.object.0, request)?;
            self.admit_delete(kind, name)?;
            let plan = self.plan(kind, &current.object.0, request)?;
            if cx.dry_run {
                return Ok(Deleted { stored: current, gone: matches!(plan, Plan::Remove | Plan::MarkAndRemove(_)) });
            }
            let (marked, remove) = match plan {
                Plan::Pending => return Ok(Deleted { stored: current, gone: false }),
                Plan::Remove => (current, true),
                Plan::Mark(new) | Plan::MarkAndRemove(new) if new == current.object.0 => {
                    let remove = finished(&new);
                    (current, remove)
                }
                Plan::Mark(new) => match self.store.update(&key, current.revision, Object(new)).await {
                    Ok(stored) => (stored, false),
                    Err(StoreError::Conflict { .. }) => continue,
                    Err(e) => return Err(from_store(kind, name, e)),
                },
                Plan::MarkAndRemove(new) => match self.store.update(&key, current.revision, Object(new)).await {
                    Ok(stored) => (stored, true),
                    Err(StoreError::Conflict { .. }) => continue,
                    Err(e) => return Err(from_store(kind, name, e)),
                },
            };
            if !remove {
                return Ok(Deleted { stored: marked, gone: false });
            }
            match self.store.delete(&key, Some(marked.revision)).await {
                Ok(stored) => {
                    self.after_delete(kind, &stored.object.0);
                    return Ok(Deleted { stored, gone: true });
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(StoreError::NotFound { .. }) => return Ok(Deleted { stored: marked, gone: true }),
                Err(e) => return Err(from_store(kind, name, e)),
            }
        }
    }

    /// Deletes what a collection holds and the query matches; returns what was deleted.
    ///
    /// # Errors
    /// Those of listing, and the first one of deleting that is not "already gone".
    pub(crate) async fn delete_objects(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        query: &ListQuery,
        request: &DeleteRequest,
    ) -> Result<Vec<Arc<Stored>>, ApiError> {
        let mut out = Vec::new();
        for stored in self.list_objects(kind, namespace, query)?.items {
            let (ns, name) = (stored.object.namespace(), stored.object.name());
            match self.delete_object(cx, kind, ns, name, request).await {
                Ok(deleted) => out.push(deleted.stored),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(out)
    }

    fn plan(&self, kind: &Kind, old: &Value, request: &DeleteRequest) -> Result<Plan, ApiError> {
        let deleting = has(old, "metadata.deletionTimestamp");
        let stored_grace = int(old, "metadata.deletionGracePeriodSeconds");
        let mut new = old.clone();
        let mut graceful = false;
        if deleting {
            if let (Some(stored), true) = (stored_grace, kind.resource.kind == "Pod") {
                match request.grace.map(|g| if g < 0 { 1 } else { g }) {
                    Some(shorter) if shorter < stored => {
                        put(&mut new, "metadata.deletionGracePeriodSeconds", shorter);
                        if let Ok(at) = text(old, "metadata.deletionTimestamp").parse::<Timestamp>() {
                            let moved = Timestamp::from_second(at.as_second() - stored + shorter).unwrap_or(at);
                            put(&mut new, "metadata.deletionTimestamp", moved.to_string());
                        }
                        graceful = true;
                    }
                    _ => return Ok(if finished(old) { Plan::Remove } else { Plan::Pending }),
                }
            }
        } else if kind.resource.kind == "Pod" {
            let grace = if mutant::is(Mutant::DeletesAtOnce) { 0 } else { pod_grace(old, request.grace) };
            self.mark(&mut new, grace);
            graceful = true;
        }
        let changed = finalizers(&mut new, request)?;
        if !deleting && !graceful && (changed || !finished(&new)) {
            self.mark(&mut new, 0);
            if kind.resource.kind == "Namespace" {
                put(&mut new, "status.phase", "Terminating");
            }
        }
        if !graceful && !changed && finished(&new) {
            return Ok(Plan::Remove);
        }
        Ok(if finished(&new) { Plan::MarkAndRemove(new) } else { Plan::Mark(new) })
    }

    /// Sets the deletion timestamp `grace` seconds from now.
    fn mark(&self, object: &mut Value, grace: i64) {
        let wait = Duration::from_secs(grace.unsigned_abs());
        let when = self.clock.wall_secs();
        let when = when.checked_add(wait).unwrap_or(when);
        let generation = int(object, "metadata.generation");
        let meta = map_at(object, "metadata");
        meta.insert("deletionTimestamp".into(), when.to_string().into());
        meta.insert("deletionGracePeriodSeconds".into(), grace.into());
        if let Some(generation) = generation {
            meta.insert("generation".into(), (generation + 1).into());
        }
    }

    /// Gives back what a removed object held.
    pub(crate) fn after_delete(&self, kind: &Kind, object: &Value) {
        if kind.resource.plural == "services" && kind.resource.group.is_empty() {
            self.release_service(object);
        }
    }
}

fn check(kind: &Kind, name: &str, object: &Value, request: &DeleteRequest) -> Result<(), ApiError> {
    let uid = text(object, "metadata.uid");
    if let Some(wanted) = request.uid.as_deref().filter(|w| *w != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        );
        return Err(conflict(kind, name, &why));
    }
    let revision = text(object, "metadata.resourceVersion");
    if let Some(wanted) = request.revision.as_deref().filter(|w| *w != revision) {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({revision}). The object might have been modified"
        );
        return Err(conflict(kind, name, &why));
    }
    Ok(())
}

/// Seconds a Pod is given. Source: k/k pkg/registry/core/pod/strategy.go CheckGracefulDelete.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let period = asked.or_else(|| int(pod, "spec.terminationGracePeriodSeconds")).unwrap_or(0);
    if text(pod, "spec.nodeName").is_empty() || matches!(text(pod, "status.phase"), "Failed" | "Succeeded") {
        return 0;
    }
    if period < 0 { 1 } else { period }
}

/// Adds or removes the garbage collector's finalizers; true when that changed something.
fn finalizers(object: &mut Value, request: &DeleteRequest) -> Result<bool, ApiError> {
    let wanted = match request.propagation.as_deref() {
        None => return Ok(false),
        Some("Background") => None,
        Some("Orphan") => Some("orphan"),
        Some("Foreground") => Some("foregroundDeletion"),
        Some(other) => {
            let message = format!(
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {other:?}: supported \
                 values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            return Err(ApiError::new(Reason::Invalid, message));
        }
    };
    let before = list(object, "metadata.finalizers").to_vec();
    if before.is_empty() && wanted.is_none() {
        return Ok(false);
    }
    let held = list_at(object, "metadata.finalizers");
    held.retain(|f| !matches!(f.as_str(), Some("orphan" | "foregroundDeletion")));
    if let Some(finalizer) = wanted {
        held.push(finalizer.into());
    }
    Ok(*held != before)
}
