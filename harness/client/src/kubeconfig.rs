//! Reading a kubeconfig: the parts this client understands (server, CA, token, client certificate).

use std::path::{Path, PathBuf};

use base64::Engine;
use serde::{Deserialize, de::IgnoredAny};

/// Why a kubeconfig could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file could not be read.
    #[error("read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not a kubeconfig.
    #[error("parse kubeconfig: {0}")]
    Parse(String),
    /// It names something it does not hold.
    #[error("kubeconfig has no {what} {name:?}")]
    Missing {
        /// context, cluster or user.
        what: &'static str,
        /// The name looked for.
        name: String,
    },
    /// It asks for something this client does not do.
    #[error("kubeconfig {what} {name:?} has {field}, which is not done here: {instead}")]
    Unsupported {
        /// cluster or user.
        what: &'static str,
        /// Which.
        name: String,
        /// The field.
        field: &'static str,
        /// What to give instead.
        instead: &'static str,
    },
    /// A base64 field is not base64.
    #[error("kubeconfig field {0} is not base64")]
    Base64(&'static str),
}

/// What is needed to talk to one cluster as one user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterAccess {
    /// `https://host:port`.
    pub server: String,
    /// CA bundle, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Bearer token.
    pub token: Option<String>,
    /// Client certificate, PEM.
    pub cert_pem: Option<Vec<u8>>,
    /// Client key, PEM.
    pub key_pem: Option<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    contexts: Vec<Named<Context>>,
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
}
#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}
#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<IgnoredAny>,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    token: Option<String>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    #[serde(alias = "tokenFile")]
    token_file: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
    username: Option<IgnoredAny>,
}

/// Reads the current context of a kubeconfig file. Relative paths in it are relative to the file.
///
/// # Errors
/// [`KubeconfigError`] naming what is missing or malformed.
pub fn load(path: &Path) -> Result<ClusterAccess, KubeconfigError> {
    load_context(path, None)
}

/// The same of the context of a name; of the current one when absent.
///
/// # Errors
/// As [`load`].
pub fn load_context(path: &Path, context: Option<&str>) -> Result<ClusterAccess, KubeconfigError> {
    let text = read(path)?;
    let text = String::from_utf8(text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
    let base = path.parent().unwrap_or_else(|| Path::new("."));
    let file: File = serde_saphyr::from_str(&text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
    let context = find(file.contexts, "context", context.unwrap_or(&file.current_context))?;
    let cluster = find(file.clusters, "cluster", &context.cluster)?;
    let user = find(file.users, "user", &context.user)?;
    let unsupported = |what, name: &str, field, instead| {
        Err(KubeconfigError::Unsupported { what, name: name.to_owned(), field, instead })
    };
    // Left out, each of these would end in a refusal that names nothing.
    if cluster.insecure_skip_tls_verify {
        return unsupported("cluster", &context.cluster, "insecure-skip-tls-verify", "give its CA");
    }
    if cluster.proxy_url.is_some() {
        return unsupported("cluster", &context.cluster, "proxy-url", "name an address that is reached without");
    }
    let odd = [
        (user.exec.is_some(), "exec"),
        (user.auth_provider.is_some(), "auth-provider"),
        (user.username.is_some(), "username"),
        (user.token_file.is_some(), "tokenFile"),
    ];
    if let Some((_, field)) = odd.iter().find(|(there, _)| *there) {
        return unsupported("user", &context.user, field, "give a token or a client certificate");
    }
    Ok(ClusterAccess {
        server: cluster.server,
        ca_pem: pick(
            base,
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            "certificate-authority-data",
        )?,
        token: user.token,
        cert_pem: pick(base, user.client_certificate_data, user.client_certificate, "client-certificate-data")?,
        key_pem: pick(base, user.client_key_data, user.client_key, "client-key-data")?,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}

fn find<T>(items: Vec<Named<T>>, what: &'static str, name: &str) -> Result<T, KubeconfigError> {
    let found = items.into_iter().find(|i| i.name == name).map(|i| i.value);
    found.ok_or_else(|| KubeconfigError::Missing { what, name: name.to_owned() })
}

fn pick(
    base: &Path,
    data: Option<String>,
    file: Option<PathBuf>,
    field: &'static str,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    match (data, file) {
        (Some(data), _) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim());
            bytes.map(Some).map_err(|_| KubeconfigError::Base64(field))
        }
        (None, Some(file)) => read(&base.join(file)).map(Some),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cluster: &str, user: &str, context: Option<&str>) -> Result<ClusterAccess, KubeconfigError> {
        let text = format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}, {{name: b, context: {{cluster: d, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://c'{cluster}}}}}, {{name: d, cluster: {{server: 'https://d'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        let path = std::env::temp_dir().join(format!("podlab-kubeconfig-{}-{:p}", std::process::id(), &raw const text));
        std::fs::write(&path, text).unwrap();
        let access = load_context(&path, context);
        std::fs::remove_file(&path).unwrap();
        access
    }

    #[test]
    fn a_context_is_the_current_one_unless_another_is_named() {
        assert_eq!(read("", "token: t", None).unwrap().server, "https://c");
        assert_eq!(read("", "token: t", Some("b")).unwrap().server, "https://d");
        assert!(matches!(read("", "", Some("z")), Err(KubeconfigError::Missing { what: "context", .. })));
    }

    #[test]
    fn what_this_client_cannot_do_is_said_and_not_left_out() {
        for (cluster, user, field) in [
            (", insecure-skip-tls-verify: true", "token: t", "insecure-skip-tls-verify"),
            (", proxy-url: 'http://p'", "token: t", "proxy-url"),
            ("", "exec: {command: aws}", "exec"),
            ("", "auth-provider: {name: gcp}", "auth-provider"),
            ("", "username: a, password: b", "username"),
            ("", "tokenFile: /t", "tokenFile"),
        ] {
            let why = read(cluster, user, None).unwrap_err().to_string();
            assert!(why.contains(field), "{field}: {why}");
        }
        assert!(read(", insecure-skip-tls-verify: false", "token: t", None).is_ok());
    }
}
