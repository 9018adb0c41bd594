//! How an API call failed: a `metav1.Status` with its reason as a closed enum.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

macro_rules! reasons {
    ($($name:ident = $code:literal),* $(,)?) => {
        /// Machine-readable reason of a failed call. Source: k/k staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go StatusReason.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each variant is the upstream word")]
        pub enum Reason { $($name),* }
        impl Reason {
            /// The HTTP status code upstream sends with this reason.
            pub fn code(self) -> u16 { match self { $(Self::$name => $code),* } }
            /// The reason of a wire string; unknown words become `InternalError`.
            pub fn parse(s: &str) -> Self { match s { $(stringify!($name) => Self::$name,)* _ => Self::InternalError } }
            /// The wire string.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => stringify!($name)),* } }
        }
    };
}
reasons! {
    Unauthorized = 401, Forbidden = 403, NotFound = 404, AlreadyExists = 409, Conflict = 409, Gone = 410,
    Invalid = 422, ServerTimeout = 500, Timeout = 504, TooManyRequests = 429, BadRequest = 400,
    MethodNotAllowed = 405, NotAcceptable = 406, RequestEntityTooLarge = 413, UnsupportedMediaType = 415,
    InternalError = 500, Expired = 410, ServiceUnavailable = 503, StorageReadError = 500,
}

/// A failed API call, as the server words it.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ApiError {
    /// Machine-readable reason.
    pub reason: Reason,
    /// HTTP status code.
    pub code: u16,
    /// Sentence for a person, in upstream's wording.
    pub message: String,
    /// `details` of the Status: name, group, kind, uid, causes, retryAfterSeconds.
    pub details: Option<Value>,
}

impl ApiError {
    /// An error with the reason's usual code and no details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, code: reason.code(), message: message.into(), details: None }
    }

    /// 400 with a message.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 500 with a message; also what a client reports when the transport failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::InternalError, message)
    }

    /// 404 in upstream's words. `plural` may carry a group: `deployments.apps`.
    pub fn not_found(plural: &str, group: &str, name: &str) -> Self {
        let full = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let mut e = Self::new(Reason::NotFound, format!("{full} \"{name}\" not found"));
        e.details = Some(details(plural, group, name));
        e
    }

    /// 409 AlreadyExists in upstream's words.
    pub fn already_exists(plural: &str, group: &str, name: &str) -> Self {
        let full = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let mut e = Self::new(Reason::AlreadyExists, format!("{full} \"{name}\" already exists"));
        e.details = Some(details(plural, group, name));
        e
    }

    /// 409 Conflict in upstream's words; `why` is what did not match.
    pub fn conflict(plural: &str, group: &str, name: &str, why: &str) -> Self {
        let full = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let mut e = Self::new(Reason::Conflict, format!("Operation cannot be fulfilled on {full} \"{name}\": {why}"));
        e.details = Some(details(plural, group, name));
        e
    }

    /// The `metav1.Status` body.
    pub fn to_status(&self) -> Value {
        let mut s = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason.as_str(), "code": self.code,
        });
        if let (Some(map), Some(d)) = (s.as_object_mut(), &self.details) {
            map.insert("details".into(), d.clone());
        }
        s
    }

    /// Reads a `metav1.Status`; `code` is the HTTP status it came with.
    pub fn from_status(code: u16, body: &Value) -> Self {
        let text = |k: &str| body.get(k).and_then(Value::as_str).unwrap_or_default();
        Self {
            reason: Reason::parse(text("reason")),
            code,
            message: text("message").to_owned(),
            details: body.get("details").cloned(),
        }
    }

    /// Whether the object was not there.
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// Whether a precondition (resourceVersion, uid) did not hold.
    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }

    /// Whether the object was there already.
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// Whether a watch or a continue token is too old and the caller must list again.
    pub fn is_expired(&self) -> bool {
        matches!(self.reason, Reason::Expired | Reason::Gone)
    }
}

/// `details` with the fields upstream always sends for a named object.
fn details(plural: &str, group: &str, name: &str) -> Value {
    let mut d = json!({"name": name, "kind": plural});
    if let (false, Some(map)) = (group.is_empty(), d.as_object_mut()) {
        map.insert("group".into(), group.into());
    }
    d
}
