//! Durations as scenarios write them: `250ms`, `30s`, `2m`, `1h`.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration with its unit. Never a bare number: nobody remembers whether that meant seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// The longest a scenario may wait for one thing.
const MAX: Duration = Duration::from_secs(24 * 3600);

impl FromStr for Span {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("{s:?} is not a duration; write a number and a unit, such as 250ms, 30s or 2m");
        let split = s.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let n: u64 = s[..split].parse().map_err(|_| bad())?;
        let d = match &s[split..] {
            "ms" => Duration::from_millis(n),
            "s" => Duration::from_secs(n),
            "m" => Duration::from_secs(n.saturating_mul(60)),
            "h" => Duration::from_secs(n.saturating_mul(3600)),
            _ => return Err(bad()),
        };
        if d > MAX { Err(format!("{s:?} is longer than 24h")) } else { Ok(Self(d)) }
    }
}

impl schemars::JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A duration: a number and one of ms, s, m, h.",
            "type": "string",
            "pattern": "^[0-9]+(ms|s|m|h)$",
        })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", self.0.as_millis()))
    }
}
