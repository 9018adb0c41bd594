//! Trials whose failure does not count for a while: each with an owner, a reason and a day on which that ends.

use std::{collections::BTreeMap, path::Path};

use schemars::JsonSchema;
use serde::Deserialize;

/// Name of the file at the top of a folder of scenarios.
pub const QUARANTINE_FILE: &str = "quarantine.yaml";

/// Trials whose failure does not count for a while.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// The version of the format.
    #[serde(rename = "apiVersion")]
    _api_version: podlab_scenario::ApiVersion,
    /// What this file is.
    #[serde(rename = "kind")]
    _kind: Kind,
    /// One for each trial.
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize, JsonSchema)]
enum Kind {
    /// A quarantine.
    Quarantine,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    /// The scenario's name: its path below the folder, without extension.
    scenario: String,
    /// Who will see to it.
    owner: String,
    /// Why it may fail until then.
    reason: String,
    /// The first day on which its failure counts again, such as 2027-01-31.
    expires: String,
}

/// Where the schema of quarantines lies below a folder of scenarios.
pub const QUARANTINE_SCHEMA_FILE: &str = "schema/quarantine.v1.json";

/// The JSON schema of quarantines, with a final newline.
pub fn schema() -> String {
    let mut schema = schemars::schema_for!(File);
    schema.insert("title".into(), "Podlab quarantine v1".into());
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// The quarantine of a folder.
#[derive(Debug, Clone, Default)]
pub struct Quarantine(BTreeMap<String, Entry>);

impl Quarantine {
    /// Reads the file of a folder; without one nothing is in quarantine.
    ///
    /// # Errors
    /// What is wrong with it: an entry without owner, reason or day, a trial that does not exist.
    pub fn read(root: &Path, known: &[&str]) -> Result<Self, String> {
        let path = root.join(QUARANTINE_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, known).map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }

    fn parse(text: &str, known: &[&str]) -> Result<Self, String> {
        let file: File = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        let mut all = BTreeMap::new();
        for e in file.entries {
            let name = e.scenario.clone();
            if !known.contains(&name.as_str()) {
                return Err(format!(
                    "there is no scenario {name:?}; an entry for one that is gone hides the next of its name"
                ));
            }
            if e.owner.trim().is_empty() || e.reason.trim().is_empty() {
                return Err(format!("{name}: owner and reason must say something"));
            }
            if !is_day(&e.expires) {
                return Err(format!("{name}: expires is a day such as 2027-01-31, not {:?}", e.expires));
            }
            if all.insert(name.clone(), e).is_some() {
                return Err(format!("{name} is in it twice"));
            }
        }
        Ok(Self(all))
    }

    /// Why a scenario's failure does not count on a day (`2027-01-31`), if so. The day it expires is the first on which it
    /// counts again.
    pub fn excuses(&self, scenario: &str, today: &str) -> Option<String> {
        let e = self.0.get(scenario)?;
        (today < e.expires.as_str()).then(|| format!("in quarantine until {} ({}): {}", e.expires, e.owner, e.reason))
    }

    /// Entries whose time is over.
    pub fn expired(&self, today: &str) -> impl Iterator<Item = String> {
        let over = move |e: &&Entry| today >= e.expires.as_str();
        self.0
            .values()
            .filter(over)
            .map(|e| format!("the quarantine of {} ended on {} ({})", e.scenario, e.expires, e.owner))
    }
}

/// `2027-01-31`, so that days compare as texts do.
fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |s: &str, len: usize, most: u32| s.len() == len && s.parse().is_ok_and(|n: u32| n >= 1 && n <= most);
    matches!(parts.as_slice(), [y, m, d] if number(y, 4, 9999) && number(m, 2, 12) && number(d, 2, 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: podlab/v1\nkind: Quarantine\nentries:\n- {scenario: a/b, owner: storage, reason: it races, expires: 2027-01-31}\n";

    #[test]
    fn a_failure_is_excused_until_the_day_and_not_on_it() {
        let q = Quarantine::parse(FILE, &["a/b"]).unwrap();
        assert!(q.excuses("a/b", "2027-01-30").unwrap().contains("storage"));
        assert_eq!(q.excuses("a/b", "2027-01-31"), None);
        assert_eq!(q.excuses("a/c", "2026-01-01"), None);
        assert_eq!((q.expired("2027-01-30").count(), q.expired("2027-01-31").count()), (0, 1));
    }

    #[test]
    fn the_schema_beside_the_scenarios_is_the_one_of_these_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(QUARANTINE_SCHEMA_FILE);
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        let how = "podlab schema --quarantine > scenarios/schema/quarantine.v1.json";
        assert!(kept == schema(), "write it anew: {how}");
    }

    #[test]
    fn an_entry_without_owner_reason_day_or_scenario_is_refused() {
        for (from, to) in [
            ("owner: storage", "owner: ''"),
            ("owner: storage, ", ""),
            ("reason: it races", "reason: ' '"),
            ("2027-01-31", "soon"),
            ("2027-01-31", "2027-1-3"),
            ("a/b", "a/gone"),
            ("entries:", "entry:"),
        ] {
            assert!(Quarantine::parse(&FILE.replace(from, to), &["a/b"]).is_err(), "{to}");
        }
    }
}
