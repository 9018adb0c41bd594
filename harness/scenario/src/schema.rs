//! The JSON schemas of the formats, made from the types that read them: the doc comments are their descriptions.

use serde_json::Value;

use crate::shape;

/// Where the schema of scenarios lies below a folder of scenarios, for the first line of a file in one of its folders:
/// `# yaml-language-server: $schema=../schema/scenario.v1.json`.
pub const SCHEMA_FILE: &str = "schema/scenario.v1.json";

/// The same for step libraries.
pub const LIBRARY_SCHEMA_FILE: &str = "schema/steps.v1.json";

/// The schema of scenarios as pretty JSON with a final newline.
pub fn schema() -> String {
    titled(shape::scenario().clone(), "Podlab scenario v1")
}

/// The schema of step libraries, likewise.
pub fn library_schema() -> String {
    titled(shape::library().clone(), "Podlab step library v1")
}

fn titled(mut schema: Value, title: &str) -> String {
    schema["title"] = title.into();
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
