//! The JSON schema of the format, made from the types that read it: the doc comments are its descriptions.

use crate::Scenario;

/// Where the schema lies below a folder of scenarios, for the first line of a file in one of its folders:
/// `# yaml-language-server: $schema=../schema/scenario.v1.json`.
pub const SCHEMA_FILE: &str = "schema/scenario.v1.json";

/// The schema as pretty JSON with a final newline.
pub fn schema() -> String {
    let mut schema = schemars::schema_for!(Scenario);
    schema.insert("title".to_owned(), "Podlab scenario v1".into());
    let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text + "\n"
}
