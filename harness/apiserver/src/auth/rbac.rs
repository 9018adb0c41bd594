//! Authorization: a few groups may do everything, everybody else what roles allow.
//! Source: k/k pkg/registry/rbac/validation, plugin/pkg/auth/authorizer/rbac.

use serde_json::Value;

use crate::{
    context::User,
    errors::forbidden_resource,
    kinds::registry,
    server::ApiServer,
    tree::{list, text},
};
use podlab_api::{ApiError, Reason};

/// What a request wants to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes {
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Set for URLs that are no resources; the rest is then empty.
    pub path: String,
}

const GROUP: &str = "rbac.authorization.k8s.io";

impl ApiServer {
    /// Whether the user may.
    pub(crate) fn may(&self, user: &User, attributes: &Attributes) -> bool {
        let component = user.name.starts_with("system:") && !user.name.starts_with("system:serviceaccount:");
        let trusted = ["system:masters", "system:nodes"].iter().any(|g| user.in_group(g))
            || (component && user.name != "system:anonymous");
        if trusted {
            return true;
        }
        if !attributes.path.is_empty() && self.public(user, attributes) {
            return true;
        }
        // Everyone may ask about themselves. Source: cluster role system:basic-user.
        let own_review = matches!(
            attributes.resource.as_str(),
            "selfsubjectaccessreviews" | "selfsubjectrulesreviews" | "selfsubjectreviews"
        );
        if own_review && attributes.verb == "create" && user.in_group("system:authenticated") {
            return true;
        }
        self.allowed_by_binding("clusterrolebindings", None, user, attributes)
            || (!attributes.namespace.is_empty()
                && self.allowed_by_binding("rolebindings", Some(&attributes.namespace), user, attributes))
    }

    /// 403 in upstream's words, unless the user may.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), ApiError> {
        if self.may(user, attributes) {
            return Ok(());
        }
        let Attributes { verb, group, namespace, .. } = attributes;
        if !attributes.path.is_empty() {
            let path = &attributes.path;
            let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
            return Err(ApiError::new(Reason::Forbidden, message));
        }
        let resource = match attributes.subresource.as_str() {
            "" => attributes.resource.clone(),
            sub => format!("{}/{sub}", attributes.resource),
        };
        let scope = match namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            ns => format!("in the namespace {ns:?}"),
        };
        let why = format!("User {:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}", user.name);
        Err(forbidden_resource(&attributes.resource, group, &attributes.name, &why))
    }

    /// URLs open to all, and discovery, open to the authenticated.
    fn public(&self, user: &User, attributes: &Attributes) -> bool {
        let path = attributes.path.as_str();
        let health = ["/healthz", "/livez", "/readyz"].iter().any(|p| path == *p || path.starts_with(&format!("{p}/")));
        if attributes.verb != "get" {
            return false;
        }
        if health || path == "/version" || path == "/version/" {
            return true;
        }
        let discovery = ["/api", "/apis", "/openapi", "/.well-known"]
            .iter()
            .any(|p| path == *p || path.starts_with(&format!("{p}/")));
        user.in_group("system:authenticated") && discovery
    }

    fn allowed_by_binding(&self, plural: &str, namespace: Option<&str>, user: &User, wanted: &Attributes) -> bool {
        let registry = registry();
        let Some(kind) = registry.by_plural(GROUP, "v1", plural) else { return false };
        let Ok(listing) = self.store.list(&kind.prefix_of(namespace), None) else { return false };
        listing.items.iter().any(|(_, binding)| {
            let binding = &binding.object.0;
            list(binding, "subjects").iter().any(|s| is_subject(s, namespace, user))
                && self.role_allows(binding, namespace, wanted)
        })
    }

    fn role_allows(&self, binding: &Value, namespace: Option<&str>, wanted: &Attributes) -> bool {
        let plural = if text(binding, "roleRef.kind") == "Role" { "roles" } else { "clusterroles" };
        let Some(kind) = registry().by_plural(GROUP, "v1", plural) else { return false };
        let scope = if plural == "roles" { namespace } else { None };
        let Some(role) = self.store.get(&kind.key(scope, text(binding, "roleRef.name"))) else { return false };
        list(&role.object.0, "rules").iter().any(|rule| rule_allows(rule, wanted))
    }
}

fn is_subject(subject: &Value, namespace: Option<&str>, user: &User) -> bool {
    let name = text(subject, "name");
    match text(subject, "kind") {
        "User" => user.name == name,
        "Group" => user.in_group(name),
        "ServiceAccount" => {
            let ns = match text(subject, "namespace") {
                "" => namespace.unwrap_or_default(),
                ns => ns,
            };
            user.name == format!("system:serviceaccount:{ns}:{name}")
        }
        _ => false,
    }
}

fn rule_allows(rule: &Value, wanted: &Attributes) -> bool {
    let has = |field: &str, value: &str| list(rule, field).iter().any(|v| v == value || v == "*");
    if !has("verbs", &wanted.verb) {
        return false;
    }
    if !wanted.path.is_empty() {
        return list(rule, "nonResourceURLs").iter().filter_map(Value::as_str).any(|url| match url.strip_suffix('*') {
            Some(prefix) => wanted.path.starts_with(prefix),
            None => wanted.path == url,
        });
    }
    let resource = match wanted.subresource.as_str() {
        "" => wanted.resource.clone(),
        sub => format!("{}/{sub}", wanted.resource),
    };
    let any_parent = format!("*/{}", wanted.subresource);
    let named = list(rule, "resourceNames");
    has("apiGroups", &wanted.group)
        && (has("resources", &resource) || (!wanted.subresource.is_empty() && has("resources", &any_parent)))
        && (named.is_empty() || named.iter().any(|n| *n == wanted.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_allows_what_it_lists_and_nothing_else() {
        let rule = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]});
        let wanted = |verb: &str, resource: &str, sub: &str| Attributes {
            verb: verb.into(),
            resource: resource.into(),
            subresource: sub.into(),
            ..Attributes::default()
        };
        assert!(rule_allows(&rule, &wanted("get", "pods", "")));
        assert!(rule_allows(&rule, &wanted("get", "pods", "log")));
        assert!(!rule_allows(&rule, &wanted("get", "pods", "exec")));
        assert!(!rule_allows(&rule, &wanted("delete", "pods", "")));
        let named = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]});
        assert!(!rule_allows(&named, &wanted("get", "pods", "")));
        assert!(rule_allows(&named, &Attributes { name: "a".into(), ..wanted("get", "pods", "") }));
        let urls = json!({"verbs": ["get"], "nonResourceURLs": ["/logs/*"]});
        assert!(rule_allows(
            &urls,
            &Attributes { verb: "get".into(), path: "/logs/x".into(), ..Attributes::default() }
        ));
    }
}
