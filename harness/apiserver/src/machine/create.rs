//! Create: complete, default, admit, validate, store.

use std::sync::Arc;

use podlab_api::{ApiError, Object};
use podlab_store::Stored;
use podlab_timeline::{PodKey, Stage};
use serde_json::Value;

use super::meta;
use crate::{
    context::Context,
    errors::{already_exists, from_store},
    field::Errors,
    kinds::{Kind, event_from_storage, event_to_storage},
    normalize::normalize,
    patch::managed,
    server::ApiServer,
    tree::{map_at, remove, text},
};

/// How often a generated name may collide. Source: k/k apiserver/pkg/registry/generic/registry/store.go.
const NAME_TRIES: usize = 8;

impl ApiServer {
    /// Creates an object and returns it as stored. Dropping the future may still create it.
    ///
    /// # Errors
    /// What decoding, admission, validation or the store say.
    pub(crate) async fn create_object(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        mut body: Value,
    ) -> Result<Arc<Stored>, ApiError> {
        meta::match_url(kind, &mut body, namespace, None)?;
        if !text(&body, "metadata.resourceVersion").is_empty() {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let mut object = normalize(cx, kind, &body)?;
        meta::strip_for_create(&mut object);
        let generate = text(&object, "metadata.generateName").to_owned();
        let generated = text(&object, "metadata.name").is_empty() && !generate.is_empty();
        let mut tries = if generated { NAME_TRIES } else { 1 };
        loop {
            if generated {
                let name = format!("{}{}", cut(&generate, 58), self.rng.name_suffix(5));
                map_at(&mut object, "metadata").insert("name".into(), name.into());
            }
            tries -= 1;
            match self.create_named(cx, kind, namespace, object.clone()).await {
                Err(e) if e.is_already_exists() && generated && tries > 0 => {}
                Err(mut e) if e.is_already_exists() && generated => {
                    e.message.push_str(", the server was not able to generate a unique name for the object");
                    return Err(e);
                }
                done => return done,
            }
        }
    }

    async fn create_named(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        mut object: Value,
    ) -> Result<Arc<Stored>, ApiError> {
        let strategy = &kind.strategy;
        let name = text(&object, "metadata.name").to_owned();
        let key = kind.key(namespace, &name);
        {
            let meta = map_at(&mut object, "metadata");
            meta.insert("uid".into(), self.rng.uuid().into());
            meta.insert("creationTimestamp".into(), self.now_text().into());
            if strategy.generation {
                meta.insert("generation".into(), 1.into());
            }
        }
        if strategy.status && !strategy.status_at_create {
            remove(&mut object, "status");
        }
        (strategy.default)(&mut object);
        self.admit_create(kind, namespace, &mut object).await?;
        (strategy.prepare_create)(&mut object);
        let mut errors = Errors::default();
        meta::validate(kind, &object, &mut errors);
        (strategy.validate)(&object, &mut errors);
        errors.into_result(kind.resource.kind, kind.resource.group, &name)?;
        self.check_create(cx, kind, namespace, &object)?;
        if kind.resource.plural == "services" {
            return self.create_service(cx, kind, &key, object).await;
        }
        self.store_new(cx, kind, &key, object).await
    }

    /// Writes a new object that has passed everything.
    pub(crate) async fn store_new(
        &self,
        cx: &Context,
        kind: &Kind,
        key: &str,
        mut object: Value,
    ) -> Result<Arc<Stored>, ApiError> {
        let name = text(&object, "metadata.name").to_owned();
        if self.store.get(key).is_some() {
            return Err(already_exists(kind, &name));
        }
        managed::on_create(cx, &mut object, &self.now_text());
        if cx.dry_run {
            return Ok(dry(object));
        }
        let _quota = self.charge_quota(kind, &object)?;
        if kind.resource.kind == "Pod" {
            self.recorder.stage(&pod_key(&object), Stage::Accepted);
        }
        let stored_form = if kind.converted() { event_to_storage(&object) } else { object };
        match self.store.create(key, Object(stored_form)).await {
            Ok(stored) if kind.converted() => {
                let converted = Object(event_from_storage(&stored.object.0));
                Ok(Arc::new(Stored::detached(converted, stored.revision)))
            }
            Ok(stored) => Ok(stored),
            Err(e) => Err(from_store(kind, &name, e)),
        }
    }
}

/// The timeline's key of a Pod.
pub(crate) fn pod_key(object: &Value) -> PodKey {
    PodKey {
        namespace: text(object, "metadata.namespace").into(),
        name: text(object, "metadata.name").into(),
        uid: text(object, "metadata.uid").into(),
    }
}

/// The answer to a dry run: the object as it would be, at no revision.
pub(crate) fn dry(object: Value) -> Arc<Stored> {
    Arc::new(Stored::detached(Object(object), 0))
}

/// At most `max` bytes of an ASCII name.
fn cut(text: &str, max: usize) -> &str {
    text.get(..max).unwrap_or(text)
}
