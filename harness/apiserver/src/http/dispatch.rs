//! One request from its head to its answer: who, what, may they, then to whom it belongs.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use podlab_api::{ApiError, Reason};

use super::{
    answer::{self, Wish},
    body::Body,
    discovery, health, openapi,
    request::{Query, Target, verb},
    serve::Peer,
};
use crate::{
    auth::rbac::Attributes,
    context::{Context, FieldValidation, User},
    server::ApiServer,
};

impl ApiServer {
    /// Answers one request. Never fails: errors are answers.
    pub(crate) async fn handle(self: &Arc<Self>, peer: &Arc<Peer>, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let begun = self.clock.now();
        let mut response = self.route(peer, request).await;
        let id = HeaderValue::from_str(&self.rng.uuid());
        if let Ok(id) = id {
            response.headers_mut().insert("audit-id", id);
        }
        let took = self.clock.now().since(begun);
        tracing::debug!(%method, path, status = response.status().as_u16(), ?took, "request");
        response
    }

    async fn route(self: &Arc<Self>, peer: &Arc<Peer>, request: Request<Incoming>) -> Response<Body> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let accept = header_text(&request, header::ACCEPT);
        let plain = Wish::plain();
        let user = match self.identify(peer, &request).and_then(|user| self.impersonate(user, &request)) {
            Ok(user) => user,
            Err(e) => return answer::error(plain, &e),
        };
        let path = request.uri().path().to_owned();
        let Some(target) = Target::parse(&path) else {
            let wanted = Attributes {
                verb: request.method().as_str().to_lowercase(),
                path: path.clone(),
                ..Attributes::default()
            };
            if let Err(e) = self.authorize(&user, &wanted) {
                return answer::error(plain, &e);
            }
            return self.other_path(&path, &accept, &query, &request).await;
        };
        let verb = verb(request.method(), &target, &query);
        let upgrade = request.headers().contains_key(header::UPGRADE);
        // Opening a stream by GET is as strong as by POST. Source: AuthorizePodWebsocketUpgradeCreatePermission.
        let streaming = matches!(target.subresource.as_deref(), Some("exec" | "attach" | "portforward"));
        let asked = if upgrade && streaming && verb == "get" { "create" } else { verb };
        if let Err(e) = self.authorize(&user, &target.attributes(asked)) {
            return answer::error(plain, &e);
        }
        let cx = match context(user, &request, &query) {
            Ok(cx) => cx,
            Err(e) => return answer::error(plain, &e),
        };
        if target.kind.resource.kind == "Endpoints" {
            cx.warn("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
        }
        let wish = Wish::parse(&accept, &query);
        let raw = matches!(target.subresource.as_deref(), Some("log" | "exec" | "attach" | "portforward" | "proxy"));
        let wish = match wish {
            Ok(wish) => wish,
            Err(_) if raw => plain,
            Err(e) => return answer::error(plain, &e),
        };
        let result = if raw {
            self.stream_request(peer, &cx, &target, &query, request).await
        } else {
            self.resource_request(peer, &cx, &target, verb, &query, wish, request).await
        };
        let mut response = result.unwrap_or_else(|e| answer::error(wish, &e));
        answer::warn(&mut response, &cx.warnings());
        response
    }

    /// Who sends this.
    fn identify(&self, peer: &Peer, request: &Request<Incoming>) -> Result<User, ApiError> {
        let authorization = header_text(request, header::AUTHORIZATION);
        if let Some(token) = authorization.strip_prefix("Bearer ").or_else(|| authorization.strip_prefix("bearer ")) {
            return self.token_user(token.trim(), &[self.tokens.issuer()]);
        }
        // Browsers and kube-rs can only send a token as a WebSocket protocol.
        let protocols = header_text(request, header::SEC_WEBSOCKET_PROTOCOL);
        let offered =
            protocols.split(',').find_map(|p| p.trim().strip_prefix("base64url.bearer.authorization.k8s.io."));
        if let Some(encoded) = offered {
            use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
            let token =
                URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok().and_then(|b| String::from_utf8(b).ok());
            let unauthorized = || ApiError::new(Reason::Unauthorized, "Unauthorized");
            return self.token_user(&token.ok_or_else(unauthorized)?, &[self.tokens.issuer()]);
        }
        Ok(peer.user.clone().unwrap_or_else(User::anonymous))
    }

    /// Whom the user wants to be instead, if they may.
    fn impersonate(&self, user: User, request: &Request<Incoming>) -> Result<User, ApiError> {
        let values = |name: &str| -> Vec<String> {
            let all = request.headers().get_all(name).iter();
            all.filter_map(|v| v.to_str().ok()).map(str::to_owned).collect()
        };
        let (names, groups) = (values("impersonate-user"), values("impersonate-group"));
        let Some(name) = names.into_iter().next() else { return Ok(user) };
        let ask = |resource: &str, name: &str| Attributes {
            verb: "impersonate".into(),
            resource: resource.into(),
            name: name.into(),
            ..Attributes::default()
        };
        let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
        match account {
            Some((namespace, account)) => {
                let wanted = Attributes { namespace: namespace.into(), ..ask("serviceaccounts", account) };
                self.authorize(&user, &wanted)?;
            }
            None => self.authorize(&user, &ask("users", &name))?,
        }
        for group in &groups {
            self.authorize(&user, &ask("groups", group))?;
        }
        let mut assumed = User { name: name.clone(), groups, ..User::default() };
        if let (Some((namespace, _)), true) = (account, assumed.groups.is_empty()) {
            assumed.groups.push("system:serviceaccounts".into());
            assumed.groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        if name != "system:anonymous" && !assumed.in_group("system:authenticated") {
            assumed.groups.push("system:authenticated".into());
        }
        assumed.uid = values("impersonate-uid").into_iter().next().unwrap_or_default();
        Ok(assumed)
    }

    /// Paths that are no resources.
    async fn other_path(&self, path: &str, accept: &str, query: &Query, request: &Request<Incoming>) -> Response<Body> {
        let trimmed = path.trim_end_matches('/');
        let etag = header_text(request, header::IF_NONE_MATCH);
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return not_found();
        }
        let found = match trimmed {
            "" => Some(discovery::root()),
            "/version" => Some(health::version(self)),
            "/metrics" => Some(health::metrics(self)),
            "/.well-known/openid-configuration" => Some(health::oidc(self)),
            "/openid/v1/jwks" => Some(health::jwks(self)),
            _ if trimmed.starts_with("/healthz") || trimmed.starts_with("/livez") || trimmed.starts_with("/readyz") => {
                health::check(self, trimmed, query)
            }
            _ if trimmed.starts_with("/openapi") => openapi::answer(trimmed, accept, query, &etag),
            _ if trimmed.starts_with("/api") => discovery::answer(trimmed, accept, &etag),
            _ => None,
        };
        found.unwrap_or_else(not_found)
    }
}

fn not_found() -> Response<Body> {
    answer::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// A header as text, or the empty string.
pub(super) fn header_text<B>(request: &Request<B>, name: header::HeaderName) -> String {
    request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

/// The context of a request: its user, manager and options.
fn context(user: User, request: &Request<Incoming>, query: &Query) -> Result<Context, ApiError> {
    let agent = header_text(request, header::USER_AGENT);
    let manager = match query.get("fieldManager").filter(|m| !m.is_empty()) {
        Some(manager) => manager.to_owned(),
        None => agent.split('/').next().unwrap_or_default().to_owned(),
    };
    let manager = if manager.is_empty() { "unknown".to_owned() } else { manager };
    let mut cx = Context::new(user, &manager);
    for value in query.all("dryRun") {
        if value != "All" {
            let body = format!("Unsupported value: {value:?}: supported values: \"All\"");
            return Err(crate::errors::invalid_options("CreateOptions", "dryRun", &body));
        }
        cx.dry_run = true;
    }
    cx.field_validation = match query.get("fieldValidation").unwrap_or_default() {
        "" | "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        "Strict" => FieldValidation::Strict,
        other => {
            let body = format!("Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\"");
            return Err(crate::errors::invalid_options("CreateOptions", "fieldValidation", &body));
        }
    };
    Ok(cx)
}
