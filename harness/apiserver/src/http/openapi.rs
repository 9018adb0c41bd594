//! OpenAPI, as far as clients need it to know what the server can do: every group has a document that lists its
//! resources, their kinds and the parameters of a patch. Field schemas are not served; clients know the built-in kinds.
//! Source: k/k vendor/k8s.io/kube-openapi/pkg/handler3.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use super::{
    answer::{self, Wish},
    body::{Body, full},
    request::Query,
};
use crate::{
    auth::token::fingerprint,
    kinds::{Verbs, registry},
};

/// `/openapi/v2`, `/openapi/v3` and the documents below it.
pub(super) fn answer(path: &str, accept: &str, query: &Query, etag: &str) -> Option<Response<Body>> {
    let plain = Wish::plain();
    match path.strip_prefix("/openapi/")? {
        "v2" => Some(v2(accept)),
        "v3" => {
            let paths: Map<String, Value> = registry()
                .group_versions()
                .iter()
                .map(|(group, version)| {
                    let key = document_path(group, version);
                    let hash = document(group, version).1;
                    let url = format!("/openapi/v3/{key}?hash={hash}");
                    (key, json!({"serverRelativeURL": url}))
                })
                .collect();
            Some(answer::tree(plain, StatusCode::OK, &json!({"paths": paths})))
        }
        rest => {
            let wanted = rest.strip_prefix("v3/")?;
            let versions = registry().group_versions();
            let (group, version) = versions.iter().find(|(g, v)| document_path(g, v) == wanted)?;
            let (value, hash) = document(group, version);
            let tag = format!("\"{hash}\"");
            if etag == tag {
                return Some(answer::with_type(StatusCode::NOT_MODIFIED, "application/json", full(Vec::new())));
            }
            let mut response = answer::tree(plain, StatusCode::OK, &value);
            if let Ok(tag) = HeaderValue::from_str(&tag) {
                response.headers_mut().insert(header::ETAG, tag);
            }
            if query.get("hash") == Some(hash.as_str()) {
                let forever = HeaderValue::from_static("public, immutable");
                response.headers_mut().insert(header::CACHE_CONTROL, forever);
            }
            Some(response)
        }
    }
}

fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The document of a group version, and its hash.
fn document(group: &str, version: &str) -> (Value, String) {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in registry().all().iter().filter(|k| k.resource.group == group && k.resource.version == version) {
        let r = &kind.resource;
        let gvk = json!({"group": group, "version": version, "kind": r.kind});
        let schema = format!("io.k8s.api.{}.{version}.{}", group.split('.').next().unwrap_or_default(), r.kind);
        schemas.insert(
            schema.clone(),
            json!({"type": "object", "x-kubernetes-group-version-kind": [gvk], "x-kubernetes-preserve-unknown-fields": true}),
        );
        let reference = json!({"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}}});
        let operation = |action: &str, parameters: &[&str]| {
            let parameters: Vec<Value> = parameters
                .iter()
                .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
                .collect();
            json!({"operationId": format!("{action}{}", r.kind), "parameters": parameters, "responses": {"200": reference},
                "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk})
        };
        let scope = r.namespaced.then_some("{namespace}");
        let write = ["dryRun", "fieldManager", "fieldValidation"];
        let mut collection = Map::new();
        collection.insert("post".into(), operation("post", &write));
        if kind.verbs == Verbs::All {
            collection.insert(
                "get".into(),
                operation("list", &["labelSelector", "fieldSelector", "limit", "continue", "watch"]),
            );
            let mut one = Map::new();
            one.insert("get".into(), operation("get", &[]));
            one.insert("put".into(), operation("put", &write));
            one.insert("patch".into(), operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"]));
            one.insert("delete".into(), operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]));
            paths.insert(r.path(scope, Some("{name}"), None), Value::Object(one));
        }
        paths.insert(r.path(scope, None, None), Value::Object(collection));
    }
    let value = json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36"}, "paths": paths,
        "components": {"schemas": schemas},
    });
    let hash = fingerprint(value.to_string().as_bytes()).to_uppercase();
    (value, hash)
}

/// The older document: valid and without definitions, in either encoding.
fn v2(accept: &str) -> Response<Body> {
    if accept.contains("proto-openapi") && !accept.contains("application/json") {
        // openapi.v2.Document: swagger = 1, info {title = 1, version = 2} = 2, paths = 8 (empty).
        let mut info = Vec::new();
        push_text(&mut info, 1, "Kubernetes");
        push_text(&mut info, 2, "v1.36");
        let mut document = Vec::new();
        push_text(&mut document, 1, "2.0");
        push_bytes(&mut document, 2, &info);
        push_bytes(&mut document, 8, &[]);
        let kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        return answer::with_type(StatusCode::OK, kind, full(document));
    }
    let value =
        json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36"}, "paths": {}, "definitions": {}});
    answer::tree(Wish::plain(), StatusCode::OK, &value)
}

fn push_text(out: &mut Vec<u8>, field: u8, text: &str) {
    push_bytes(out, field, text.as_bytes());
}

/// A length-delimited protobuf field shorter than 128 bytes.
fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    out.push(u8::try_from(bytes.len()).unwrap_or(0));
    out.extend_from_slice(bytes);
}
