//! Discovery: which groups, versions and resources there are, in both forms.
//! Source: k/k staging/src/k8s.io/apiserver/pkg/endpoints/discovery.

use std::sync::LazyLock;

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use super::{
    answer::{self, Wish},
    body::{Body, full},
};
use crate::{
    auth::token::fingerprint,
    kinds::{Kind, Verbs, registry},
};

const ALL: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The list of paths at `/`.
pub(super) fn root() -> Response<Body> {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
    for (group, version) in registry().group_versions().iter().filter(|(g, _)| !g.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.push(format!("/apis/{group}/{version}"));
    }
    paths.extend(
        ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(String::from),
    );
    answer::tree(Wish::plain(), StatusCode::OK, &json!({"paths": paths}))
}

/// `/api`, `/apis` and everything below that is no resource.
pub(super) fn answer(path: &str, accept: &str, etag: &str) -> Option<Response<Body>> {
    let aggregated = accept.split(',').map(|c| c.replace(' ', "")).any(|clause| {
        let has = |part: &str| clause.split(';').any(|p| p == part);
        has("application/json") && has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
    });
    static CORE: LazyLock<(Vec<u8>, String)> = LazyLock::new(|| encoded(true));
    static GROUPS: LazyLock<(Vec<u8>, String)> = LazyLock::new(|| encoded(false));
    let value = match path.trim_matches('/').split('/').collect::<Vec<_>>()[..] {
        ["api"] if aggregated => return Some(tagged(&CORE, etag)),
        ["apis"] if aggregated => return Some(tagged(&GROUPS, etag)),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => {
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups().map(group).collect::<Vec<_>>()})
        }
        ["api", "v1"] => resources("", "v1")?,
        ["apis", name] => {
            let mut found = groups().find(|g| *g == name).map(group)?;
            found["kind"] = "APIGroup".into();
            found["apiVersion"] = "v1".into();
            found
        }
        ["apis", group, version] => resources(group, version)?,
        _ => return None,
    };
    let mut response = answer::tree(Wish::plain(), StatusCode::OK, &value);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    Some(response)
}

fn groups() -> impl Iterator<Item = &'static str> {
    let mut names: Vec<&str> = registry().group_versions().iter().map(|(g, _)| *g).filter(|g| !g.is_empty()).collect();
    names.dedup();
    names.into_iter()
}

fn group(name: &str) -> Value {
    let versions: Vec<Value> = registry()
        .group_versions()
        .iter()
        .filter(|(g, _)| *g == name)
        .map(|(g, v)| json!({"groupVersion": format!("{g}/{v}"), "version": v}))
        .collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

fn rows(group: &str, version: &str) -> Vec<&'static Kind> {
    registry().all().iter().filter(|k| k.resource.group == group && k.resource.version == version).collect()
}

fn verbs(kind: &Kind) -> Vec<&'static str> {
    match kind.verbs {
        Verbs::All => ALL.to_vec(),
        Verbs::CreateOnly => vec!["create"],
    }
}

fn resources(group: &str, version: &str) -> Option<Value> {
    let rows = rows(group, version);
    if rows.is_empty() {
        return None;
    }
    let mut list = Vec::new();
    for kind in rows {
        let r = &kind.resource;
        let mut entry = json!({
            "name": r.plural, "singularName": kind.singular, "namespaced": r.namespaced, "kind": r.kind,
            "verbs": verbs(kind),
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        if kind.verbs == Verbs::All {
            entry["storageVersionHash"] = fingerprint(kind.prefix.as_bytes())[..16].into();
        }
        list.push(entry);
        for sub in kind.subresources {
            let name = format!("{}/{}", r.plural, sub.name);
            let mut entry = json!({
                "name": name, "singularName": "", "namespaced": r.namespaced, "kind": r.kind, "verbs": sub.verbs,
            });
            if let Some((group, version, kind)) = sub.body {
                entry["kind"] = kind.into();
                if group != r.group {
                    entry["group"] = group.into();
                    entry["version"] = version.into();
                }
            }
            list.push(entry);
        }
    }
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": list}))
}

fn aggregated_version(group: &str, version: &str) -> Value {
    let list: Vec<Value> = rows(group, version)
        .into_iter()
        .map(|kind| {
            let r = &kind.resource;
            let scope = if r.namespaced { "Namespaced" } else { "Cluster" };
            let mut entry = json!({
                "resource": r.plural, "scope": scope, "singularResource": kind.singular, "verbs": verbs(kind),
                "responseKind": {"group": r.group, "version": r.version, "kind": r.kind},
            });
            if !kind.short_names.is_empty() {
                entry["shortNames"] = json!(kind.short_names);
            }
            if !kind.categories.is_empty() {
                entry["categories"] = json!(kind.categories);
            }
            if !kind.subresources.is_empty() {
                let subs = kind.subresources.iter().map(|sub| {
                    let (group, version, kind) = sub.body.unwrap_or((r.group, r.version, r.kind));
                    json!({"subresource": sub.name, "verbs": sub.verbs,
                        "responseKind": {"group": group, "version": version, "kind": kind}})
                });
                entry["subresources"] = subs.collect();
            }
            entry
        })
        .collect();
    json!({"version": version, "freshness": "Current", "resources": list})
}

fn encoded(core: bool) -> (Vec<u8>, String) {
    let names: Vec<&str> = if core { vec![""] } else { groups().collect() };
    let items: Vec<Value> = names
        .into_iter()
        .map(|name| {
            let versions: Vec<Value> = registry()
                .group_versions()
                .iter()
                .filter(|(g, _)| *g == name)
                .map(|(g, v)| aggregated_version(g, v))
                .collect();
            let metadata = if name.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": name, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let value = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let bytes = value.to_string().into_bytes();
    let tag: String = Sha512::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
    (bytes, format!("\"{tag}\""))
}

fn tagged(document: &(Vec<u8>, String), etag: &str) -> Response<Body> {
    let (bytes, tag) = document;
    let mut response = if etag == tag {
        answer::with_type(StatusCode::NOT_MODIFIED, AGGREGATED, full(Vec::new()))
    } else {
        answer::with_type(StatusCode::OK, AGGREGATED, full(bytes.clone()))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}
