//! Credentials of a pull and the challenges of registries.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::v1::AuthConfig;

/// What a pull may present. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: String,
    pub(crate) secret: String,
    /// A refresh token for a token endpoint.
    pub(crate) identity_token: String,
    /// A bearer token for the registry itself.
    pub(crate) registry_token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Credentials {
    /// From CRI. A field `auth` is base64 of `user:secret`.
    pub fn from_cri(auth: Option<&AuthConfig>) -> Self {
        let Some(a) = auth else { return Self::default() };
        let mut c = Self {
            user: a.username.clone(),
            secret: a.password.clone(),
            identity_token: a.identity_token.clone(),
            registry_token: a.registry_token.clone(),
        };
        if c.user.is_empty()
            && let Ok(decoded) = STANDARD.decode(a.auth.trim().trim_end_matches('\0'))
            && let Some((user, secret)) = String::from_utf8_lossy(&decoded).trim_end_matches('\0').split_once(':')
        {
            (c.user, c.secret) = (user.to_owned(), secret.to_owned());
        }
        c
    }

    /// The value of a Basic header, when there is anything to present.
    pub(crate) fn basic(&self) -> Option<String> {
        (!self.user.is_empty()).then(|| format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.secret))))
    }
}

/// A `WWW-Authenticate` challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: String, scope: String },
}

impl Challenge {
    /// Parses one header value; `None` for schemes we do not speak.
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (String::new(), String::new(), String::new());
        for (key, value) in parameters(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = value,
                "service" => service = value,
                "scope" => scope = value,
                _ => {}
            }
        }
        (!realm.is_empty()).then_some(Self::Bearer { realm, service, scope })
    }
}

/// `key="quoted, value",key=token`.
fn parameters(mut rest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',']).to_owned();
        let (value, tail) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key, value.trim().to_owned()));
        rest = tail;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: &str, scope: &str| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.into(), scope: scope.into() })
        };
        for (header, want) in [
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://a/token",service="a, b",scope="repository:x:pull,push""#,
                bearer("https://a/token", "a, b", "repository:x:pull,push"),
            ),
            ("bearer realm=http://a/t, service=s", bearer("http://a/t", "s", "")),
            ("Bearer", None),
            ("Negotiate abc", None),
        ] {
            assert_eq!(Challenge::parse(header), want, "{header}");
        }
    }

    #[test]
    fn the_auth_field_is_user_and_secret_and_nothing_secret_is_printed() {
        let a = AuthConfig { auth: STANDARD.encode("u:p:q"), ..AuthConfig::default() };
        let c = Credentials::from_cri(Some(&a));
        assert_eq!((c.user.as_str(), c.secret.as_str()), ("u", "p:q"));
        assert!(!format!("{c:?}").contains("p:q"));
        assert_eq!(Credentials::default().basic(), None);
    }
}
