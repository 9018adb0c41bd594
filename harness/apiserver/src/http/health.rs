//! Health, version, metrics and the token issuer's documents.

use http::{Response, StatusCode};
use serde_json::json;

use super::{
    answer::{self, Wish},
    body::Body,
    request::Query,
};
use crate::{kinds::registry, server::ApiServer};

/// `/version`.
pub(super) fn version(server: &ApiServer) -> Response<Body> {
    let git = server.config.version.as_str();
    let mut numbers = git.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("36"));
    let previous = minor.parse::<u32>().map_or_else(|_| minor.to_owned(), |n| n.saturating_sub(1).to_string());
    let value = json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": previous, "gitVersion": git, "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    });
    answer::tree(Wish::plain(), StatusCode::OK, &value)
}

/// `/healthz`, `/livez`, `/readyz` and their single checks.
pub(super) fn check(server: &ApiServer, path: &str, query: &Query) -> Option<Response<Body>> {
    let mut parts = path.trim_matches('/').split('/');
    let endpoint = parts.next().filter(|e| matches!(*e, "healthz" | "livez" | "readyz"))?;
    let checks = [("ping", true), ("log", true), ("store", server.store.revision() > 0)];
    let single: Option<&str> = parts.next();
    if let Some(name) = single {
        let (_, good) = checks.iter().find(|(n, _)| *n == name)?;
        return Some(if *good {
            answer::text(StatusCode::OK, "ok")
        } else {
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error: reason withheld\n")
        });
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let relevant: Vec<_> = checks.iter().filter(|(n, _)| !excluded.contains(n)).collect();
    let good = relevant.iter().all(|(_, good)| *good);
    let lines: String = relevant
        .iter()
        .map(
            |(name, good)| {
                if *good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: reason withheld\n") }
            },
        )
        .collect();
    Some(match (good, query.flag("verbose")) {
        (true, Some(true)) => answer::text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
        (true, _) => answer::text(StatusCode::OK, "ok"),
        (false, _) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n")),
    })
}

/// `/metrics`, in the text format of Prometheus.
pub(super) fn metrics(server: &ApiServer) -> Response<Body> {
    let mut out = String::from(
        "# HELP apiserver_storage_objects Number of stored objects at the time of last check split by kind.\n\
         # TYPE apiserver_storage_objects gauge\n",
    );
    for kind in registry().all().iter().filter(|k| k.verbs == crate::kinds::Verbs::All && !k.converted()) {
        let count = server.store.count(&kind.prefix);
        out.push_str(&format!("apiserver_storage_objects{{resource=\"{}\"}} {count}\n", kind.qualified()));
    }
    out.push_str("# TYPE apiserver_storage_revision counter\n");
    out.push_str(&format!("apiserver_storage_revision {}\n", server.store.revision()));
    answer::text(StatusCode::OK, out)
}

/// The issuer's discovery document.
pub(super) fn oidc(server: &ApiServer) -> Response<Body> {
    let issuer = server.tokens.issuer();
    let value = json!({
        "issuer": issuer, "jwks_uri": format!("{issuer}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    });
    answer::tree(Wish::plain(), StatusCode::OK, &value)
}

/// The issuer's public keys.
pub(super) fn jwks(server: &ApiServer) -> Response<Body> {
    answer::tree(Wish::plain(), StatusCode::OK, &server.tokens.jwks())
}
