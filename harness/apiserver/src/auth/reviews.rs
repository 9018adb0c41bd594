//! The review kinds and TokenRequest: questions about identity and rights, answered at create.
//! Source: k/k pkg/registry/{authentication,authorization}, pkg/registry/core/serviceaccount/storage/token.go.

use podlab_api::{ApiError, Reason, jiff::Timestamp};
use serde_json::{Value, json};

use super::rbac::Attributes;
use crate::{
    context::{Context, User},
    errors::{forbidden, not_found},
    field::Errors,
    kinds::{Kind, registry},
    normalize::normalize,
    server::ApiServer,
    tree::{at, has, int, list, put, text},
};

const MIN_SECONDS: i64 = 600;
/// Tokens that node agents ask for are warned about after this; they are replaced long before they end.
const WARN_AFTER: i64 = 3607;

impl ApiServer {
    /// Answers a review.
    ///
    /// # Errors
    /// 400 for a review that does not decode.
    pub(crate) fn review(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let mut review = normalize(cx, kind, body)?;
        let status = match kind.resource.kind {
            "TokenReview" => self.token_review(&review),
            "SelfSubjectReview" => json!({"userInfo": user_info(&cx.user)}),
            "SelfSubjectAccessReview" => self.access(&cx.user, at(&review, "spec"), None),
            "SelfSubjectRulesReview" => {
                let all = ["system:masters", "system:nodes"].iter().any(|g| cx.user.in_group(g));
                let star = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
                let rules = if all { json!([star]) } else { json!([]) };
                json!({"resourceRules": rules, "nonResourceRules": [], "incomplete": !all})
            }
            _ => {
                let spec = at(&review, "spec");
                let groups = list(spec, "groups").iter().filter_map(Value::as_str).map(str::to_owned).collect();
                let user = User { name: text(spec, "user").into(), groups, ..User::default() };
                self.access(&user, spec, namespace)
            }
        };
        put(&mut review, "status", status);
        Ok(review)
    }

    fn access(&self, user: &User, spec: &Value, namespace: Option<&str>) -> Value {
        let resource = at(spec, "resourceAttributes");
        let wanted = if resource.is_null() {
            let url = at(spec, "nonResourceAttributes");
            Attributes { verb: text(url, "verb").into(), path: text(url, "path").into(), ..Attributes::default() }
        } else {
            Attributes {
                verb: text(resource, "verb").into(),
                group: text(resource, "group").into(),
                resource: text(resource, "resource").into(),
                subresource: text(resource, "subresource").into(),
                namespace: namespace.unwrap_or(text(resource, "namespace")).into(),
                name: text(resource, "name").into(),
                path: String::new(),
            }
        };
        json!({"allowed": self.may(user, &wanted)})
    }

    fn token_review(&self, review: &Value) -> Value {
        let asked: Vec<&str> = list(review, "spec.audiences").iter().filter_map(Value::as_str).collect();
        let default = [self.tokens.issuer()];
        let audiences = if asked.is_empty() { &default[..] } else { &asked[..] };
        match self.token_user(text(review, "spec.token"), audiences) {
            Ok(user) => json!({"authenticated": true, "user": user_info(&user), "audiences": audiences}),
            Err(_) => json!({"authenticated": false, "user": {}, "error": "token is not valid"}),
        }
    }

    /// Issues a token for a ServiceAccount.
    ///
    /// # Errors
    /// 404 for an account or bound object that is not there, 422 for a lifetime out of range.
    pub(crate) fn issue_token(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let account = self.get_object(kind, namespace, name)?;
        let seconds = int(body, "spec.expirationSeconds").unwrap_or(3600);
        let mut errors = Errors::default();
        if seconds < MIN_SECONDS {
            errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > 1 << 32 {
            errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
        }
        errors.into_result("TokenRequest", "authentication.k8s.io", "")?;
        let mut audiences: Vec<Value> = list(body, "spec.audiences").to_vec();
        if audiences.is_empty() {
            audiences.push(self.tokens.issuer().into());
        }
        let now = self.clock.wall().as_second();
        let mut private = json!({
            "namespace": namespace, "serviceaccount": {"name": name, "uid": account.object.uid()},
        });
        let bound = at(body, "spec.boundObjectRef");
        if !bound.is_null() {
            self.bind_claims(kind, namespace, name, bound, &mut private)?;
        }
        // Node agents renew their tokens; those of an hour live on for a year so that old clients keep working.
        // Source: k/k pkg/serviceaccount/claims.go WarnOnlyBoundTokenExpiration.
        let mut lifetime = seconds;
        if seconds == WARN_AFTER && text(bound, "kind") == "Pod" {
            private["warnafter"] = (now + WARN_AFTER).into();
            lifetime = 365 * 24 * 3600;
        }
        let claims = json!({
            "aud": audiences, "exp": now + lifetime, "iat": now, "iss": self.tokens.issuer(), "jti": self.rng.uuid(),
            "kubernetes.io": private, "nbf": now,
            "sub": format!("system:serviceaccount:{}:{name}", namespace.unwrap_or_default()),
        });
        let token = self.tokens.sign(&claims)?;
        let expires = Timestamp::from_second(now + seconds).map_err(|e| ApiError::internal(e.to_string()))?;
        let mut spec = at(body, "spec").clone();
        put(&mut spec, "audiences", audiences);
        put(&mut spec, "expirationSeconds", seconds);
        crate::tree::fill(&mut spec, "boundObjectRef", Value::Null);
        Ok(json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": self.now_text()},
            "spec": spec, "status": {"token": token, "expirationTimestamp": expires.to_string()},
        }))
    }

    /// Puts what a token is bound to into its claims.
    fn bind_claims(
        &self,
        account: &Kind,
        namespace: Option<&str>,
        name: &str,
        bound: &Value,
        private: &mut Value,
    ) -> Result<(), ApiError> {
        let bound_name = text(bound, "name");
        let (plural, field) = match (text(bound, "apiVersion"), text(bound, "kind")) {
            ("v1", "Pod") => ("pods", "pod"),
            ("v1", "Secret") => ("secrets", "secret"),
            ("v1", "Node") => ("nodes", "node"),
            (version, kind) => {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {version}, Kind={kind}"
                )));
            }
        };
        let kind = registry().core(plural);
        let scope = kind.resource.namespaced.then_some(namespace).flatten();
        let found = self.store.get(&kind.key(scope, bound_name)).ok_or_else(|| not_found(kind, bound_name))?;
        let uid = text(bound, "uid");
        if !uid.is_empty() && uid != found.object.uid() {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            );
            return Err(crate::errors::conflict(kind, bound_name, &why));
        }
        private[field] = json!({"name": bound_name, "uid": found.object.uid()});
        if plural == "pods" {
            if text(&found.object.0, "spec.serviceAccountName") != name {
                let why = format!(
                    "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                );
                return Err(ApiError::bad_request(why));
            }
            let node = text(&found.object.0, "spec.nodeName");
            if !node.is_empty() {
                let uid = self.store.get(&registry().core("nodes").key(None, node)).map(|n| n.object.uid().to_owned());
                private["node"] = json!({"name": node, "uid": uid.unwrap_or_default()});
            }
        }
        if has(&found.object.0, "metadata.deletionTimestamp") && plural == "secrets" {
            return Err(forbidden(account, name, "the bound object is being deleted"));
        }
        Ok(())
    }

    /// POST to a subresource.
    ///
    /// # Errors
    /// Those of the subresource; 405 for one that takes no POST.
    pub(crate) async fn create_subresource(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        sub: crate::kinds::SubKind,
        body: Value,
    ) -> Result<Value, ApiError> {
        use crate::kinds::SubKind;
        match sub {
            SubKind::Binding => self.bind_pod(cx, kind, namespace, name, &body).await,
            SubKind::Eviction => self.evict_pod(cx, kind, namespace, name, &body).await,
            SubKind::Token => self.issue_token(kind, namespace, name, &body),
            _ => Err(ApiError::new(
                Reason::MethodNotAllowed,
                "the server does not allow this method on the requested resource",
            )),
        }
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
