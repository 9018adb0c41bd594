//! Finding out who sends a request: client certificate, bearer token, or nobody.

use std::collections::BTreeMap;

use podlab_api::{ApiError, Reason};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    context::User,
    kinds::registry,
    server::ApiServer,
    tree::{at, int, list, text},
};

/// The user of a verified client certificate: CN is the name, each O a group.
pub(crate) fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> =
        subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    groups.push("system:authenticated".into());
    Some(User { name, groups, ..User::default() })
}

impl ApiServer {
    /// The user of a bearer token.
    ///
    /// # Errors
    /// 401 for a token that is not valid here and now.
    pub(crate) fn token_user(&self, token: &str, audiences: &[&str]) -> Result<User, ApiError> {
        let unauthorized = || ApiError::new(Reason::Unauthorized, "Unauthorized");
        if same_secret(token, self.config.authority.admin_token()) {
            let groups = vec!["system:masters".into(), "system:authenticated".into()];
            return Ok(User { name: "kubernetes-admin".into(), groups, ..User::default() });
        }
        let claims = self.tokens.verify(token).ok_or_else(unauthorized)?;
        self.claims_user(&claims, audiences).ok_or_else(unauthorized)
    }

    /// The user of verified claims, if they hold now and what they are bound to still exists.
    fn claims_user(&self, claims: &Value, audiences: &[&str]) -> Option<User> {
        let now = self.clock.wall().as_second();
        if int(claims, "exp")? < now || int(claims, "nbf")? > now + 60 {
            return None;
        }
        let given = list(claims, "aud");
        if !given.iter().any(|a| audiences.iter().any(|wanted| a == wanted)) {
            return None;
        }
        let bound = claims.get("kubernetes.io")?;
        let namespace = text(bound, "namespace");
        let account = at(bound, "serviceaccount");
        let name = text(account, "name");
        let registry = registry();
        let same = |plural: &str, reference: &Value| {
            let kind = registry.core(plural);
            let ns = kind.resource.namespaced.then_some(namespace);
            let found = self.store.get(&kind.key(ns, text(reference, "name")));
            found.is_some_and(|s| s.object.uid() == text(reference, "uid"))
        };
        if !same("serviceaccounts", account) {
            return None;
        }
        let mut extra = BTreeMap::new();
        let credential = format!("JTI={}", text(claims, "jti"));
        extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![credential]);
        for (field, plural, label) in [("pod", "pods", "pod"), ("secret", "secrets", ""), ("node", "nodes", "node")] {
            let reference = at(bound, field);
            if reference.is_null() {
                continue;
            }
            // A token of a Pod says on which node it was; only the Pod must still be there.
            if (field != "node" || at(bound, "pod").is_null()) && !same(plural, reference) {
                return None;
            }
            if !label.is_empty() {
                for part in ["name", "uid"] {
                    let key = format!("authentication.kubernetes.io/{label}-{part}");
                    extra.insert(key, vec![text(reference, part).to_owned()]);
                }
            }
        }
        Some(User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: text(account, "uid").to_owned(),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ],
            extra,
        })
    }
}

/// Compares in time that depends on the length alone.
fn same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}
