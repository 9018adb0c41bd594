//! Requests about objects: verb by verb.

use std::sync::Arc;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use podlab_api::{ApiError, Reason, request::PatchKind};
use serde_json::{Value, json};

use super::{
    answer::{self, Wish},
    body::{self, Body},
    dispatch::header_text,
    request::{Query, Target, list_query, watch_query},
    serve::Peer,
};
use crate::{
    context::Context,
    errors::method_not_allowed,
    kinds::{SubKind, Verbs},
    machine::{Change, DeleteRequest, unsupported_media_type},
    server::ApiServer,
    tree::{at, has, int, list, text},
};

impl ApiServer {
    #[expect(clippy::too_many_arguments, reason = "everything a request is made of, taken apart once by the caller")]
    pub(super) async fn resource_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        cx: &Context,
        target: &Target,
        verb: &str,
        query: &Query,
        wish: Wish,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let (kind, namespace) = (target.kind, target.namespace.as_deref());
        let now = self.clock.wall();
        let sub = match &target.subresource {
            None => None,
            Some(name) => Some(kind.sub(name).ok_or_else(no_such_resource)?.kind),
        };
        if kind.verbs == Verbs::CreateOnly {
            if verb != "create" {
                return Err(method_not_allowed(kind, verb));
            }
            let body = self.body(request).await?;
            let review = self.review(cx, kind, namespace, &body)?;
            return Ok(answer::tree(wish, StatusCode::CREATED, &review));
        }
        let name = || target.name.as_deref().ok_or_else(|| method_not_allowed(kind, verb));
        match (verb, sub) {
            ("get", Some(SubKind::Scale)) => {
                let scale = self.get_scale(kind, namespace, name()?)?;
                Ok(answer::tree(wish, StatusCode::OK, &scale.object.0))
            }
            ("get", _) => {
                let stored = self.get_object(kind, namespace, name()?)?;
                Ok(answer::object(wish, StatusCode::OK, kind, &stored, now))
            }
            ("list", None) => {
                let listed = self.list_objects(kind, namespace, &list_query(target, query)?)?;
                Ok(answer::list(wish, kind, &listed, now))
            }
            ("watch", None) => self.watch_response(peer, target, watch_query(target, query)?, query, wish),
            ("create", None) if target.name.is_none() => {
                let mut body = self.body(request).await?;
                // Namespaced objects may be posted to the collection of all only if they say where they belong.
                let mut namespace = namespace.map(str::to_owned);
                if kind.resource.namespaced && namespace.is_none() {
                    namespace = Some(text(&body, "metadata.namespace").to_owned()).filter(|n| !n.is_empty());
                    if namespace.is_none() {
                        return Err(ApiError::bad_request("an empty namespace may not be set during creation"));
                    }
                }
                if kind.resource.kind == "Event" {
                    default_event_namespace(&mut body, namespace.as_deref());
                }
                let stored = self.create_object(cx, kind, namespace.as_deref(), body).await?;
                Ok(answer::object(wish, StatusCode::CREATED, kind, &stored, now))
            }
            ("create", Some(sub)) => {
                let body = self.body(request).await?;
                let made = self.create_subresource(cx, kind, namespace, name()?, sub, body).await?;
                Ok(answer::tree(wish, StatusCode::CREATED, &made))
            }
            ("update" | "patch", sub) => {
                let change = self.requested_change(verb, query, request).await?;
                if sub == Some(SubKind::Scale) {
                    let scale = self.update_scale(cx, kind, namespace, name()?, &change).await?;
                    return Ok(answer::tree(wish, StatusCode::OK, &scale.object.0));
                }
                let written = self.update_object(cx, kind, namespace, name()?, sub, &change).await?;
                let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
                Ok(answer::object(wish, status, kind, &written.stored, now))
            }
            ("delete", None) => self.delete_request(cx, target, name()?, query, wish, request).await,
            ("deletecollection", None) => {
                let wanted = list_query(target, query)?;
                let options = self.delete_options(cx, query, request).await?;
                let gone = self.delete_objects(&options.1, kind, namespace, &wanted, &options.0).await?;
                let listed = crate::machine::Listed {
                    items: gone,
                    revision: self.store.revision(),
                    token: None,
                    remaining: None,
                };
                Ok(answer::list(wish, kind, &listed, now))
            }
            _ => Err(method_not_allowed(kind, verb)),
        }
    }

    async fn delete_request(
        &self,
        cx: &Context,
        target: &Target,
        name: &str,
        query: &Query,
        wish: Wish,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ApiError> {
        let kind = target.kind;
        let (options, cx) = self.delete_options(cx, query, request).await?;
        let deleted = self.delete_object(&cx, kind, target.namespace.as_deref(), name, &options).await?;
        if !deleted.gone || kind.strategy.returns_deleted {
            return Ok(answer::object(wish, StatusCode::OK, kind, &deleted.stored, self.clock.wall()));
        }
        let mut details = crate::errors::details(kind.resource.plural, kind.resource.group, name);
        details["uid"] = deleted.stored.object.uid().into();
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(answer::tree(Wish { form: answer::Form::Plain, ..wish }, StatusCode::OK, &status))
    }

    /// The DeleteOptions of a body, or of the query.
    async fn delete_options(
        &self,
        cx: &Context,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<(DeleteRequest, Context), ApiError> {
        let content_type = header_text(&request, header::CONTENT_TYPE);
        let bytes = body::read(request.into_body()).await?;
        let tree = if bytes.is_empty() { json!({}) } else { body::parse(&content_type, &bytes)? };
        let owned = |path: &str| at(&tree, path).as_str().map(str::to_owned);
        let mut options = DeleteRequest {
            grace: int(&tree, "gracePeriodSeconds"),
            uid: owned("preconditions.uid"),
            revision: owned("preconditions.resourceVersion"),
            propagation: owned("propagationPolicy"),
        };
        if bytes.is_empty() {
            options.grace = query.number("gracePeriodSeconds")?;
            options.propagation = query.get("propagationPolicy").map(str::to_owned);
        }
        if options.propagation.is_none() && crate::tree::yes(&tree, "orphanDependents") {
            options.propagation = Some("Orphan".into());
        }
        let mut own = Context::new(cx.user.clone(), &cx.manager);
        own.dry_run = cx.dry_run || list(&tree, "dryRun").iter().any(|v| v == "All");
        Ok((options, own))
    }

    async fn body(&self, request: Request<Incoming>) -> Result<Value, ApiError> {
        let content_type = header_text(&request, header::CONTENT_TYPE);
        let bytes = body::read(request.into_body()).await?;
        if bytes.is_empty() {
            return Err(ApiError::bad_request("the body of the request is empty"));
        }
        body::parse(&content_type, &bytes)
    }

    /// What an update or patch wants.
    async fn requested_change(
        &self,
        verb: &str,
        query: &Query,
        request: Request<Incoming>,
    ) -> Result<Change, ApiError> {
        if verb == "update" {
            return Ok(Change::Put(self.body(request).await?));
        }
        let content_type = header_text(&request, header::CONTENT_TYPE);
        let bytes = body::read(request.into_body()).await?;
        let media = content_type.split(';').next().unwrap_or_default().trim();
        let kind = match media {
            "application/json-patch+json" => PatchKind::Json,
            "application/merge-patch+json" => PatchKind::Merge,
            "application/strategic-merge-patch+json" => PatchKind::Strategic,
            "application/apply-patch+yaml" => {
                let manager = query.get("fieldManager").unwrap_or_default().to_owned();
                if manager.is_empty() {
                    let body = "Required value: is required for apply patch";
                    return Err(crate::errors::invalid_options("PatchOptions", "fieldManager", body));
                }
                PatchKind::Apply { manager, force: query.flag("force") == Some(true) }
            }
            other => {
                let known = [
                    "application/json-patch+json",
                    "application/merge-patch+json",
                    "application/apply-patch+yaml",
                    "application/strategic-merge-patch+json",
                ];
                return Err(unsupported_media_type(other, &known));
            }
        };
        let patch = if matches!(kind, PatchKind::Apply { .. }) { body::yaml(&bytes)? } else { body::json(&bytes)? };
        Ok(Change::Patch(kind, patch))
    }
}

/// 404 for a subresource that a kind does not have.
fn no_such_resource() -> ApiError {
    ApiError::new(Reason::NotFound, "the server could not find the requested resource")
}

/// Recorders leave the namespace of what they report on empty for cluster-scoped objects.
fn default_event_namespace(event: &mut Value, namespace: Option<&str>) {
    if !has(event, "metadata.namespace")
        && let Some(namespace) = namespace
    {
        crate::tree::put(event, "metadata.namespace", namespace);
    }
}
