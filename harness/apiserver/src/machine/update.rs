//! Update and patch, of an object or one of its subresources: one compare-and-swap loop.

use std::sync::Arc;

use podlab_api::{ApiError, Object, Reason, request::PatchKind};
use podlab_store::{StoreError, Stored};
use podlab_timeline::Stage;
use serde_json::Value;

use super::{
    create::{dry, pod_key},
    meta,
};
use crate::{
    context::Context,
    errors::{MODIFIED, conflict, from_store, not_found},
    field::Errors,
    kinds::{Kind, SubKind, event_from_storage, event_to_storage},
    normalize::normalize,
    patch::{self, managed},
    pod,
    server::ApiServer,
    tree::{at, copy, has, int, list, map_at, text},
};

/// How often a write without a resourceVersion is tried anew after losing a race.
/// Upstream stops a patch at 5; its storage layer retries an unconditional update until it wins.
const TRIES: usize = 64;

/// What to do to an object.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put(Value),
    Patch(PatchKind, Value),
}

/// The outcome of an update.
#[derive(Debug)]
pub(crate) struct Written {
    pub stored: Arc<Stored>,
    /// Whether an apply made the object.
    pub created: bool,
}

impl ApiServer {
    /// Changes an object (`sub` none) or a part of it. Dropping the future may still write.
    ///
    /// # Errors
    /// What the patch, decoding, admission, validation or the store say; 409 when the given resourceVersion is not the
    /// newest.
    pub(crate) async fn update_object(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        sub: Option<SubKind>,
        change: &Change,
    ) -> Result<Written, ApiError> {
        let key = kind.key(namespace, name);
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let Some(current) = self.store.get(&key) else {
                return match (change, sub) {
                    (Change::Patch(PatchKind::Apply { manager, .. }, body), None) => {
                        self.create_applied(cx, kind, namespace, name, manager, body).await
                    }
                    _ => Err(not_found(kind, name)),
                };
            };
            match self.update_once(cx, kind, namespace, name, sub, change, &key, &current).await {
                Err(Retry::Raced) if tries > 0 => {}
                Err(Retry::Raced) => return Err(conflict(kind, name, MODIFIED)),
                Err(Retry::Failed(e)) => return Err(*e),
                Ok(stored) => return Ok(Written { stored, created: false }),
            }
        }
    }

    /// An apply to an object that is not there creates it.
    async fn create_applied(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        manager: &str,
        body: &Value,
    ) -> Result<Written, ApiError> {
        let mut body = patch::apply::for_create(body)?;
        meta::match_url(kind, &mut body, namespace, Some(name))?;
        let mut applying = Context::new(cx.user.clone(), manager);
        (applying.dry_run, applying.field_validation) = (cx.dry_run, cx.field_validation);
        applying.applied = Some(body.clone());
        let stored = self.create_object(&applying, kind, namespace, body).await?;
        applying.warnings().into_iter().for_each(|w| cx.warn(w));
        Ok(Written { stored, created: true })
    }

    #[expect(clippy::too_many_arguments, reason = "one step of the loop above, not called from elsewhere")]
    async fn update_once(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        sub: Option<SubKind>,
        change: &Change,
        key: &str,
        current: &Arc<Stored>,
    ) -> Result<Arc<Stored>, Retry> {
        let converted;
        let old: &Value = if kind.converted() {
            converted = event_from_storage(&current.object.0);
            &converted
        } else {
            &current.object.0
        };
        let mut body = match change {
            Change::Put(body) => body.clone(),
            Change::Patch(how, patch) => patch::apply(kind, old, how, patch, sub, &self.now_text())?,
        };
        meta::match_url(kind, &mut body, namespace, Some(name))?;
        let conditional = self.check_preconditions(kind, name, sub, change, old, &body)?;
        let mut new = normalize(cx, kind, &body)?;
        managed::keep(change, &body, old, &mut new);
        self.restore(kind, sub, old, &mut new);
        if sub != Some(SubKind::Status) {
            (kind.strategy.default)(&mut new);
        }
        self.admit_update(cx, kind, namespace, sub, old, &mut new)?;
        if kind.strategy.generation && sub != Some(SubKind::Status) && spec_changed(old, &new) {
            let generation = int(old, "metadata.generation").unwrap_or(0) + 1;
            map_at(&mut new, "metadata").insert("generation".into(), generation.into());
        }
        let mut errors = Errors::default();
        if sub == Some(SubKind::Status) {
            (kind.strategy.validate_status)(&new, old, &mut errors);
        } else {
            meta::validate_update(&new, old, &mut errors);
            pod::subresource::validate(sub, &new, old, &mut errors);
            if sub.is_none() || sub == Some(SubKind::Finalize) {
                (kind.strategy.validate_update)(&new, old, &mut errors);
            }
            if errors.is_empty() {
                meta::validate(kind, &new, &mut errors);
                (kind.strategy.validate)(&new, &mut errors);
            }
        }
        errors.into_result(kind.resource.kind, kind.resource.group, name)?;
        if !matches!(change, Change::Patch(PatchKind::Apply { .. }, _)) {
            managed::on_update(cx, sub, old, &mut new, &self.now_text());
        }
        if same(old, &new) {
            return Ok(super::read::convert(kind, current.clone()));
        }
        if cx.dry_run {
            return Ok(dry(new));
        }
        self.commit_update(kind, name, sub, key, current, old, new).await.map_err(|e| match e {
            StoreError::Conflict { .. } if !conditional => Retry::Raced,
            e => Retry::Failed(Box::new(from_store(kind, name, e))),
        })
    }

    /// Compares what the body says about the stored object; true when the client named a revision.
    fn check_preconditions(
        &self,
        kind: &Kind,
        name: &str,
        sub: Option<SubKind>,
        change: &Change,
        old: &Value,
        body: &Value,
    ) -> Result<bool, ApiError> {
        let (given, stored) = (text(body, "metadata.resourceVersion"), text(old, "metadata.resourceVersion"));
        let uid = text(body, "metadata.uid");
        if !uid.is_empty() && uid != text(old, "metadata.uid") {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                text(old, "metadata.uid")
            );
            return Err(conflict(kind, name, &why));
        }
        let named = match change {
            Change::Put(_) => !matches!(given, "" | "0"),
            Change::Patch(PatchKind::Json, _) => given != stored,
            Change::Patch(_, patch) => !text(patch, "metadata.resourceVersion").is_empty(),
        };
        if named && given != stored {
            return Err(conflict(kind, name, MODIFIED));
        }
        if !named && matches!(change, Change::Put(_)) && !kind.strategy.unconditional && sub.is_none() {
            let mut errors = Errors::default();
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update");
            errors.into_result(kind.resource.kind, kind.resource.group, name)?;
        }
        Ok(named)
    }

    /// Puts back everything that this (sub)resource does not write.
    fn restore(&self, kind: &Kind, sub: Option<SubKind>, old: &Value, new: &mut Value) {
        match sub {
            Some(SubKind::Status) => {
                let status = at(new, "status").clone();
                let metadata = at(new, "metadata").clone();
                let mut whole = old.clone();
                let map = crate::tree::map(&mut whole);
                map.insert("metadata".into(), metadata);
                if !status.is_null() {
                    map.insert("status".into(), status);
                } else {
                    map.remove("status");
                }
                if kind.resource.kind != "Pod" {
                    meta::keep_for_status(old, &mut whole);
                }
                *new = whole;
                (kind.strategy.prepare_update)(old, new);
            }
            Some(SubKind::Finalize) => {
                let finalizers = at(new, "spec.finalizers").clone();
                *new = old.clone();
                crate::tree::put(new, "spec.finalizers", finalizers);
            }
            Some(SubKind::Ephemeral) => pod::subresource::restore_ephemeral(old, new),
            Some(SubKind::Resize) => pod::subresource::restore_resize(old, new),
            _ => {
                if kind.strategy.status {
                    copy(old, new, "status");
                }
                (kind.strategy.prepare_update)(old, new);
            }
        }
        meta::keep_immutable(old, new);
    }

    /// Writes the new state, or removes the object when this write was what kept it.
    #[expect(clippy::too_many_arguments, reason = "the tail of the step above")]
    async fn commit_update(
        &self,
        kind: &Kind,
        name: &str,
        sub: Option<SubKind>,
        key: &str,
        current: &Arc<Stored>,
        old: &Value,
        new: Value,
    ) -> Result<Arc<Stored>, StoreError> {
        if has(&new, "metadata.deletionTimestamp") && finished(&new) {
            let gone = self.store.delete(key, Some(current.revision)).await?;
            self.after_delete(kind, &gone.object.0);
            tracing::debug!(kind = kind.resource.kind, name, "the last finalizer was removed");
            return Ok(Arc::new(Stored::detached(Object(new), gone.revision)));
        }
        let became_ready =
            kind.resource.kind == "Pod" && sub == Some(SubKind::Status) && pod::is_ready(&new) && !pod::is_ready(old);
        let stored_form = if kind.converted() { event_to_storage(&new) } else { new };
        let stored = self.store.update(key, current.revision, Object(stored_form)).await?;
        if kind.resource.plural == "services" && kind.resource.group.is_empty() {
            self.release_service(old);
            self.services.lock().note(&stored.object.0);
        }
        if became_ready {
            self.recorder.stage(&pod_key(&stored.object.0), Stage::StatusWritten);
        }
        Ok(super::read::convert(kind, stored))
    }
}

/// Why a step of the loop did not write.
enum Retry {
    /// Somebody else wrote in between.
    Raced,
    Failed(Box<ApiError>),
}

impl From<ApiError> for Retry {
    fn from(e: ApiError) -> Self {
        Self::Failed(Box::new(e))
    }
}

/// Whether nothing keeps an object that is being deleted.
pub(crate) fn finished(object: &Value) -> bool {
    let namespace = text(object, "kind") == "Namespace" && text(object, "apiVersion") == "v1";
    list(object, "metadata.finalizers").is_empty()
        && int(object, "metadata.deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (!namespace || list(object, "spec.finalizers").is_empty())
}

/// Whether anything outside metadata and status differs.
pub(crate) fn spec_changed(old: &Value, new: &Value) -> bool {
    let relevant = |v: &Value| {
        let keys = v.as_object().into_iter().flatten();
        keys.filter(|(k, _)| *k != "metadata" && *k != "status")
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    if old.get("spec") != new.get("spec") {
        return true;
    }
    let without_spec = |v: &Value| relevant(v).into_iter().filter(|(k, _)| k != "spec").collect::<Vec<_>>();
    without_spec(old) != without_spec(new)
}

/// Whether two states differ in nothing but the bookkeeping of field managers' times.
fn same(old: &Value, new: &Value) -> bool {
    let (Some(a), Some(b)) = (old.as_object(), new.as_object()) else { return false };
    let body = |m: &serde_json::Map<String, Value>| m.len() - usize::from(m.contains_key("metadata"));
    if body(a) != body(b) || a.iter().any(|(k, v)| k != "metadata" && b.get(k) != Some(v)) {
        return false;
    }
    let (Some(a), Some(b)) = (at(old, "metadata").as_object(), at(new, "metadata").as_object()) else { return false };
    let rest = |m: &serde_json::Map<String, Value>| m.len() - usize::from(m.contains_key("managedFields"));
    rest(a) == rest(b)
        && a.iter().all(|(k, v)| k == "managedFields" || b.get(k) == Some(v))
        && managed::same(at(old, "metadata.managedFields"), at(new, "metadata.managedFields"))
}

/// The error of a patch or update whose kind of body is not known.
pub(crate) fn unsupported_media_type(given: &str, accepted: &[&str]) -> ApiError {
    let accepted = accepted.join(", ");
    let message =
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    tracing::debug!(given, "unsupported media type");
    ApiError::new(Reason::UnsupportedMediaType, message)
}
