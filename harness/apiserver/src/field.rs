//! Validation errors in upstream's words: one per field, all reported at once.
//! Source: k/k staging/src/k8s.io/apimachinery/pkg/util/validation/field/errors.go.

use podlab_api::{ApiError, Reason};
use serde_json::{Value, json};

/// The errors of one validation, in the order found.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<FieldError>);

#[derive(Debug)]
struct FieldError {
    reason: &'static str,
    field: String,
    body: String,
}

impl Errors {
    fn push(&mut self, reason: &'static str, field: impl Into<String>, body: String) {
        self.0.push(FieldError { reason, field: field.into(), body });
    }

    /// A value that must be there; `detail` may be empty.
    pub fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.push("FieldValueRequired", field, with_detail("Required value".into(), detail));
    }

    /// A value that breaks a rule.
    pub fn invalid(&mut self, field: impl Into<String>, value: impl Into<Value>, detail: &str) {
        self.push("FieldValueInvalid", field, with_detail(format!("Invalid value: {}", value.into()), detail));
    }

    /// A part that breaks a rule as a whole: its value is not shown.
    pub fn invalid_as_whole(&mut self, field: impl Into<String>, detail: &str) {
        self.push("FieldValueInvalid", field, with_detail("Invalid value".into(), detail));
    }

    /// A value that is none of the known ones.
    pub fn not_supported(&mut self, field: impl Into<String>, value: &str, supported: &[&str]) {
        let known = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        self.push("FieldValueNotSupported", field, format!("Unsupported value: {value:?}: supported values: {known}"));
    }

    /// A value that may not be there.
    pub fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.push("FieldValueForbidden", field, with_detail("Forbidden".into(), detail));
    }

    /// A value that is there twice.
    pub fn duplicate(&mut self, field: impl Into<String>, value: impl Into<Value>) {
        self.push("FieldValueDuplicate", field, format!("Duplicate value: {}", value.into()));
    }

    /// A reference to something that is not there.
    pub fn not_found(&mut self, field: impl Into<String>, value: impl Into<Value>) {
        self.push("FieldValueNotFound", field, format!("Not found: {}", value.into()));
    }

    /// A value with too many bytes.
    pub fn too_long(&mut self, field: impl Into<String>, max: usize) {
        self.push("FieldValueTooLong", field, format!("Too long: may not be more than {max} bytes"));
    }

    /// A list with too many items.
    pub fn too_many(&mut self, field: impl Into<String>, actual: usize, max: usize) {
        self.push("FieldValueTooMany", field, format!("Too many: {actual}: must have at most {max} items"));
    }

    /// Adds each rule that a name breaks.
    pub fn names(&mut self, field: &str, value: &str, broken: &[String]) {
        for rule in broken {
            self.invalid(field, value, rule);
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many were found.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The 422 for the object, or `Ok` when nothing was found.
    pub fn into_result(self, kind: &str, group: &str, name: &str) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let full = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let lines: Vec<String> = self.0.iter().map(|e| format!("{}: {}", e.field, e.body)).collect();
        let text = if let [one] = &lines[..] { one.clone() } else { format!("[{}]", lines.join(", ")) };
        let mut error = ApiError::new(Reason::Invalid, format!("{full} {name:?} is invalid: {text}"));
        let causes: Vec<Value> =
            self.0.iter().map(|e| json!({"reason": e.reason, "message": e.body, "field": e.field})).collect();
        let mut details = json!({"name": name, "kind": kind, "causes": causes});
        if let (false, Some(map)) = (group.is_empty(), details.as_object_mut()) {
            map.insert("group".into(), group.into());
        }
        error.details = Some(details);
        Err(error)
    }
}

fn with_detail(text: String, detail: &str) -> String {
    if detail.is_empty() { text } else { format!("{text}: {detail}") }
}
