//! Answers: objects, lists, tables, errors; in the form the client asked for.

use http::{HeaderValue, Response, StatusCode, header};
use podlab_api::{ApiError, Reason, jiff::Timestamp};
use podlab_store::Stored;
use serde_json::{Value, json};

use super::{
    body::{Body, full},
    request::Query,
};
use crate::{
    kinds::Kind,
    machine::Listed,
    table::render::{self, IncludeObject},
};

/// The form a client wants objects in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Plain,
    /// As a Table.
    Table(IncludeObject),
    /// Their metadata.
    Partial,
}

/// What the Accept header and the query ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub form: Form,
    pub yaml: bool,
}

impl Wish {
    /// Reads the Accept header.
    ///
    /// # Errors
    /// 406 when nothing it names can be given.
    pub fn parse(accept: &str, query: &Query) -> Result<Self, ApiError> {
        let include = match query.get("includeObject") {
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            _ => IncludeObject::Metadata,
        };
        if accept.trim().is_empty() {
            return Ok(Self { form: Form::Plain, yaml: false });
        }
        for clause in accept.split(',') {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let yaml = match media {
                "application/json" | "application/*" | "*/*" | "" => false,
                "application/yaml" => true,
                _ => continue,
            };
            let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
            let get = |key: &str| parameters.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
            let ours = get("g") == Some("meta.k8s.io") && get("v") == Some("v1");
            let form = match get("as") {
                None => Form::Plain,
                Some("Table") if ours => Form::Table(include),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") if ours => Form::Partial,
                Some(_) => continue,
            };
            return Ok(Self { form, yaml });
        }
        let message = "only the following media types are accepted: application/json, application/yaml";
        Err(ApiError::new(Reason::NotAcceptable, message))
    }

    /// A wish for plain JSON, for errors before the header was understood.
    pub fn plain() -> Self {
        Self { form: Form::Plain, yaml: false }
    }
}

/// An answer with a JSON (or YAML) tree.
pub(crate) fn tree(wish: Wish, status: StatusCode, value: &Value) -> Response<Body> {
    if wish.yaml
        && let Ok(text) = serde_saphyr::to_string(value)
    {
        return with_type(status, "application/yaml", full(text));
    }
    with_type(status, "application/json", full(serde_json::to_vec(value).unwrap_or_default()))
}

/// An answer with a content type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// An answer with one object.
pub(crate) fn object(wish: Wish, status: StatusCode, kind: &Kind, stored: &Stored, now: Timestamp) -> Response<Body> {
    match wish.form {
        Form::Plain if !wish.yaml => with_type(status, "application/json", full(stored.json().clone())),
        Form::Plain => tree(wish, status, &stored.object.0),
        Form::Partial => tree(wish, status, &render::partial(&stored.object.0)),
        Form::Table(include) => {
            let table = &kind.strategy.table;
            let row = render::row(table, &stored.object.0, now, include);
            let meta = json!({"resourceVersion": stored.revision.to_string()});
            tree(wish, status, &render::table(Some(render::columns(table)), vec![row], meta))
        }
    }
}

/// An answer with a list.
pub(crate) fn list(wish: Wish, kind: &Kind, listed: &Listed, now: Timestamp) -> Response<Body> {
    let mut meta = json!({"resourceVersion": listed.revision.to_string()});
    if let Some(token) = &listed.token {
        meta["continue"] = token.as_str().into();
    }
    if let Some(remaining) = listed.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    match wish.form {
        Form::Plain if !wish.yaml => {
            // The items are encoded already; the list is put together around them.
            let size = listed.items.iter().map(|s| s.json().len() + 1).sum::<usize>();
            let mut out = Vec::with_capacity(size + 256);
            let head = format!(
                "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{meta},\"items\":[",
                kind.list_kind,
                kind.resource.api_version()
            );
            out.extend_from_slice(head.as_bytes());
            for (i, item) in listed.items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(item.json());
            }
            out.extend_from_slice(b"]}");
            with_type(StatusCode::OK, "application/json", full(out))
        }
        Form::Plain => {
            let items: Vec<&Value> = listed.items.iter().map(|s| &s.object.0).collect();
            let value = json!({"kind": kind.list_kind, "apiVersion": kind.resource.api_version(), "metadata": meta, "items": items});
            tree(wish, StatusCode::OK, &value)
        }
        Form::Partial => {
            let items: Vec<Value> = listed.items.iter().map(|s| render::partial(&s.object.0)).collect();
            let value = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items});
            tree(wish, StatusCode::OK, &value)
        }
        Form::Table(include) => {
            let table = &kind.strategy.table;
            let rows = listed.items.iter().map(|s| render::row(table, &s.object.0, now, include)).collect();
            tree(wish, StatusCode::OK, &render::table(Some(render::columns(table)), rows, meta))
        }
    }
}

/// An answer with an error.
pub(crate) fn error(wish: Wish, error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut value = error.to_status();
    // A token to go on with after an expired list is part of the list metadata.
    if let Some(token) = error.details.as_ref().and_then(|d| d.get("continue")).cloned() {
        value["metadata"] = json!({"continue": token});
        crate::tree::remove(&mut value, "details");
    }
    let mut response = tree(wish, status, &value);
    let retry = error.details.as_ref().and_then(|d| d.get("retryAfterSeconds")).and_then(Value::as_u64);
    if let Some(seconds) = retry {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = with_type(status, "text/plain; charset=utf-8", full(text));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Adds warning headers.
pub(crate) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let quoted: String = warning
            .chars()
            .flat_map(|c| match c {
                '"' => vec!['\\', '"'],
                '\\' => vec!['\\', '\\'],
                c if c.is_control() => vec![' '],
                c => vec![c],
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}
