//! What is not written down: passwords, tokens, keys.

use serde_json::{Map, Value};

/// What stands in a secret's place.
pub(crate) const REDACTED: &str = "<redacted>";
/// Words in the name of a variable or of a map's key that make its value a secret.
const TELLTALES: [&str; 7] = ["PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIAL", "APIKEY", "PRIVATE_KEY"];

/// Takes secrets out of a message, in place.
pub(crate) fn redact(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => {
            variable(fields);
            for (name, inner) in fields.iter_mut() {
                match (name.as_str(), inner) {
                    // What a registry or a driver is shown as proof.
                    ("auth" | "secrets", inner) => blank(inner),
                    (name, inner @ Value::String(_)) if telling(name) => blank(inner),
                    (_, inner) => redact(inner),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `{key, value}` of an environment variable, whose value is bytes.
fn variable(fields: &mut Map<String, Value>) {
    let secret = fields.get("key").and_then(Value::as_str).is_some_and(telling);
    if let (true, Some(value)) = (secret, fields.get_mut("value")) {
        *value = match value {
            Value::Array(_) => Value::from(REDACTED.as_bytes()),
            _ => REDACTED.into(),
        };
    }
}

fn telling(name: &str) -> bool {
    let name = name.to_uppercase();
    TELLTALES.iter().any(|t| name.contains(t))
}

fn blank(value: &mut Value) {
    match value {
        Value::String(text) if !text.is_empty() => REDACTED.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(blank),
        Value::Object(fields) => fields.values_mut().for_each(blank),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
