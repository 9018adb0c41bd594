//! Registry credentials from image pull secrets. Source: k/k pkg/credentialprovider/{config,keyring}.go.

use base64::Engine;
use podlab_api::core::Secret;
use podlab_cri::v1;
use podlab_lifecycle::image::ImageName;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Largest docker configuration read.
const MAX_CONFIG: usize = 1 << 20;

/// One way to log in. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    pattern: String,
    username: String,
    password: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl Credential {
    /// For the CRI.
    pub(crate) fn auth(&self) -> v1::AuthConfig {
        let server = self.pattern.split('/').next().unwrap_or_default();
        v1::AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            server_address: server.to_owned(),
            ..Default::default()
        }
    }

    /// What is remembered of it: enough to recognise it, not enough to use it.
    pub(crate) fn hash(&self) -> String {
        let text = format!("{}\0{}\0{}", self.pattern, self.username, self.password);
        Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// Credentials of a Pod, the most specific first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keyring(Vec<Credential>);

impl Keyring {
    /// Adds what a pull secret holds; a secret that does not parse adds nothing.
    pub(crate) fn add(&mut self, secret: &Secret) {
        let data = |key: &str| {
            secret.data.as_ref().and_then(|d| d.get(key)).map(|v| v.0.as_slice()).filter(|b| b.len() <= MAX_CONFIG)
        };
        let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        let auths = match secret.type_.as_deref() {
            Some("kubernetes.io/dockerconfigjson") => {
                data(".dockerconfigjson").and_then(parsed).and_then(|v| v.get("auths").cloned())
            }
            Some("kubernetes.io/dockercfg") => data(".dockercfg").and_then(parsed),
            _ => None,
        };
        for (server, entry) in auths.as_ref().and_then(Value::as_object).into_iter().flatten() {
            if let Some((username, password)) = login(entry) {
                self.0.push(Credential { pattern: normalize(server), username, password });
            }
        }
        self.0.sort_by(|a, b| b.pattern.cmp(&a.pattern));
    }

    /// Credentials that match an image, the most specific first.
    pub(crate) fn lookup(&self, image: &str) -> Vec<Credential> {
        let Ok(name) = ImageName::parse(image) else { return Vec::new() };
        let domain = if name.domain == "docker.io" { "index.docker.io" } else { &name.domain };
        let full = format!("{domain}/{}", name.path);
        let mut out: Vec<Credential> = Vec::new();
        for c in self.0.iter().filter(|c| matches(&c.pattern, &full)) {
            if !out.iter().any(|o| o.username == c.username && o.password == c.password) {
                out.push(c.clone());
            }
        }
        out
    }
}

fn login(entry: &Value) -> Option<(String, String)> {
    let text = |k: &str| entry.get(k).and_then(Value::as_str).unwrap_or_default().to_owned();
    let auth = text("auth");
    if !auth.is_empty() {
        let raw = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
        let (user, password) =
            String::from_utf8(raw).ok().and_then(|s| s.split_once(':').map(|(u, p)| (u.to_owned(), p.to_owned())))?;
        return Some((user, password));
    }
    let user = text("username");
    (!user.is_empty()).then(|| (user, text("password")))
}

/// Host and path without a scheme or a version suffix.
fn normalize(server: &str) -> String {
    let bare = server.strip_prefix("https://").or_else(|| server.strip_prefix("http://")).unwrap_or(server);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = path.trim_end_matches('/');
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Host labels may be globs (`*.example.com`); the path is a prefix.
fn matches(pattern: &str, image: &str) -> bool {
    let (p_host, p_path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (host, path) = image.split_once('/').unwrap_or((image, ""));
    let port =
        |h: &str| h.rsplit_once(':').map_or((h.to_owned(), String::new()), |(h, p)| (h.to_owned(), p.to_owned()));
    let ((ph, pp), (h, hp)) = (port(p_host), port(host));
    let labels = |s: &str| s.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (pl, hl) = (labels(&ph), labels(&h));
    pp == hp && pl.len() == hl.len() && pl.iter().zip(&hl).all(|(p, h)| glob(p, h)) && path.starts_with(p_path)
}

/// `*` inside one label.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => {
            text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use podlab_api::k8s_openapi::ByteString;

    use super::*;

    fn keyring(json: &str) -> Keyring {
        let mut k = Keyring::default();
        k.add(&Secret {
            type_: Some("kubernetes.io/dockerconfigjson".into()),
            data: Some([(".dockerconfigjson".to_owned(), ByteString(json.as_bytes().to_vec()))].into()),
            ..Secret::default()
        });
        k
    }

    #[test]
    fn the_most_specific_match_comes_first_and_others_do_not_match() {
        let k = keyring(
            r#"{"auths":{"https://r.test/v1/":{"username":"a","password":"1"},"r.test/team":{"auth":"Yjoy"},"*.x.test":{"username":"c","password":"3"}}}"#,
        );
        let users = |image: &str| k.lookup(image).into_iter().map(|c| c.username).collect::<Vec<_>>();
        assert_eq!(users("r.test/team/app:1"), ["b", "a"]);
        assert_eq!(users("r.test/app:1"), ["a"]);
        assert_eq!(users("a.x.test/app"), ["c"]);
        assert!(users("other.test/app").is_empty());
        assert!(!format!("{k:?}").contains('1'));
    }
}
