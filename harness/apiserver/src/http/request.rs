//! What a request asks for: its URL taken apart, its query, its verb.
//! Source: k/k staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.

use http::Method;
use podlab_api::ApiError;

use crate::{
    auth::rbac::Attributes,
    kinds::{Kind, registry},
    machine::{ListQuery, Match, WatchQuery},
    selector::{FieldSelector, LabelSelector},
};

/// A decoded query string. Order and repeats are kept.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(key, true), unescape(value, true))
        });
        Self(pairs.collect())
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// A flag: `1` and `true`, and a key without a value.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|v| !matches!(v, "0" | "false" | "False" | "f" | "F"))
    }

    /// A number.
    ///
    /// # Errors
    /// 400.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(key).filter(|t| !t.is_empty()) else { return Ok(None) };
        let bad = |_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        text.parse().map(Some).map_err(bad)
    }
}

/// Undoes percent encoding; in queries `+` is a space.
fn unescape(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    let hex = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    while i < bytes.len() {
        let pair = (bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex));
        match (bytes[i], pair) {
            (b'%', (Some(high), Some(low))) => {
                out.push(high * 16 + low);
                i += 2;
            }
            (b'+', _) if plus => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A URL of a resource.
#[derive(Debug)]
pub(crate) struct Target {
    pub kind: &'static Kind,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// The old `/watch/` prefix.
    pub watch: bool,
}

// `&'static Kind` has no Debug of its own; its name is enough.
impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.resource.kind)
    }
}

impl Target {
    /// Takes a path apart; `None` when it is no URL of a known resource.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts: Vec<String> = path.trim_matches('/').split('/').map(|p| unescape(p, false)).collect();
        let (group, version) = match parts.first().map(String::as_str) {
            Some("api") if parts.len() >= 3 => (String::new(), parts.drain(..2).next_back()?),
            Some("apis") if parts.len() >= 4 => {
                let mut head = parts.drain(..3).skip(1);
                (head.next()?, head.next()?)
            }
            _ => return None,
        };
        let watch = parts[0] == "watch" && parts.len() > 1;
        if watch {
            parts.remove(0);
        }
        let mut namespace = None;
        let own = parts.get(2).is_none_or(|s| matches!(s.as_str(), "status" | "finalize"));
        if parts[0] == "namespaces" && group.is_empty() && own {
            // The namespace itself.
        } else if parts[0] == "namespaces" && parts.len() >= 3 {
            namespace = Some(parts[1].clone());
            parts.drain(..2);
        }
        let kind = registry().by_plural(&group, &version, &parts[0])?;
        let mut parts = parts.into_iter().skip(1);
        let (name, subresource) = (parts.next(), parts.next());
        let more = parts.next().is_some();
        if (namespace.is_some() && !kind.resource.namespaced) || (more && subresource.as_deref() != Some("proxy")) {
            return None;
        }
        // A named object of a namespaced kind is in a namespace.
        if name.is_some() && kind.resource.namespaced && namespace.is_none() {
            return None;
        }
        Some(Self { kind, namespace, name, subresource, watch })
    }

    /// What authorization is asked about.
    pub fn attributes(&self, verb: &str) -> Attributes {
        let r = &self.kind.resource;
        // A namespace is authorized inside itself.
        let own = (r.plural == "namespaces" && r.group.is_empty()).then(|| self.name.clone()).flatten();
        Attributes {
            verb: verb.into(),
            group: r.group.into(),
            resource: r.plural.into(),
            subresource: self.subresource.clone().unwrap_or_default(),
            namespace: self.namespace.clone().or(own).unwrap_or_default(),
            name: self.name.clone().unwrap_or_default(),
            path: String::new(),
        }
    }
}

/// The verb of a request.
pub(crate) fn verb(method: &Method, target: &Target, query: &Query) -> &'static str {
    match *method {
        Method::GET | Method::HEAD if target.name.is_none() || target.watch => {
            if target.watch || query.flag("watch") == Some(true) { "watch" } else { "list" }
        }
        Method::GET | Method::HEAD if query.flag("watch") == Some(true) && target.subresource.is_none() => "watch",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if target.name.is_none() => "deletecollection",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The list options of a query.
///
/// # Errors
/// 400 for selectors and numbers that cannot be read, 422 for an unknown match.
pub(crate) fn list_query(target: &Target, query: &Query) -> Result<ListQuery, ApiError> {
    let kind = target.kind;
    let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
    let mut fields = query.get("fieldSelector").unwrap_or_default().to_owned();
    if let Some(name) = &target.name {
        let named = format!("metadata.name={name}");
        fields = if fields.is_empty() { named } else { format!("{fields},{named}") };
    }
    let fields = FieldSelector::parse(&fields, kind.strategy.fields, kind.resource.namespaced)?;
    let matching = match query.get("resourceVersionMatch").unwrap_or_default() {
        "" => None,
        "NotOlderThan" => Some(Match::NotOlderThan),
        "Exact" => Some(Match::Exact),
        other => {
            let body = format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\"");
            return Err(crate::errors::invalid_options("ListOptions", "resourceVersionMatch", &body));
        }
    };
    let revision = match query.get("resourceVersion").unwrap_or_default() {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            ApiError::bad_request(format!(
                "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        })?),
    };
    let token = query.get("continue").filter(|t| !t.is_empty()).map(str::to_owned);
    Ok(ListQuery { labels, fields, revision, matching, limit: query.number("limit")?, token })
}

/// The watch options of a query.
///
/// # Errors
/// As for [`list_query`].
pub(crate) fn watch_query(target: &Target, query: &Query) -> Result<WatchQuery, ApiError> {
    let filter = list_query(target, query)?;
    Ok(WatchQuery {
        revision: filter.revision,
        bookmarks: query.flag("allowWatchBookmarks") == Some(true),
        initial_events: query.flag("sendInitialEvents"),
        matching_not_older: filter.matching == Some(Match::NotOlderThan),
        filter,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_as_upstream_does() {
        for (path, expected) in [
            ("/api/v1/pods", Some(("Pod", None, None, None))),
            ("/api/v1/namespaces/ns/pods/a/log", Some(("Pod", Some("ns"), Some("a"), Some("log")))),
            ("/api/v1/namespaces/ns", Some(("Namespace", None, Some("ns"), None))),
            ("/api/v1/namespaces/ns/finalize", Some(("Namespace", None, Some("ns"), Some("finalize")))),
            ("/apis/apps/v1/namespaces/ns/deployments/d", Some(("Deployment", Some("ns"), Some("d"), None))),
            ("/api/v1/nodes/n/proxy/metrics", Some(("Node", None, Some("n"), Some("proxy")))),
            ("/api/v1/nope", None),
            ("/api/v1/pods/a", None),
            ("/api/v1/namespaces/ns/nodes/n", None),
            ("/healthz", None),
        ] {
            let found = Target::parse(path).map(|t| (t.kind.resource.kind, t.namespace, t.name, t.subresource));
            let expected =
                expected.map(|(k, a, b, c)| (k, a.map(String::from), b.map(String::from), c.map(String::from)));
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn queries_are_unescaped() {
        let query = Query::parse("labelSelector=app%3Dweb%2Cx+in+%28a%29&watch&limit=5&command=a&command=b");
        assert_eq!(query.get("labelSelector"), Some("app=web,x in (a)"));
        assert_eq!((query.flag("watch"), query.flag("nope")), (Some(true), None));
        assert_eq!(query.number::<usize>("limit").unwrap(), Some(5));
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["a", "b"]);
    }
}
