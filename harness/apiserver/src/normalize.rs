//! Bringing a body into the form it is stored in: typed, without unknown fields and empty lists, quantities canonical.

use podlab_api::{ApiError, parse_quantity};
use serde_json::{Map, Value};

use crate::{
    context::{Context, FieldValidation},
    kinds::Kind,
};

/// Checks the types of a body, drops what the kind does not have, and canonicalises quantities.
///
/// # Errors
/// 400 for a body that does not fit the kind and, with strict field validation, for one with unknown fields.
pub(crate) fn normalize(cx: &Context, kind: &Kind, body: &Value) -> Result<Value, ApiError> {
    let r = &kind.resource;
    let cannot = |why: String| {
        ApiError::bad_request(format!("{} in version {:?} cannot be handled as a {}: {why}", r.kind, r.version, r.kind))
    };
    let mut typed = (kind.decode)(body).map_err(|e| cannot(format!("json: {e}")))?;
    if cx.field_validation != FieldValidation::Ignore {
        let mut unknown = Vec::new();
        unknown_fields(body, &typed, "", &mut unknown);
        if !unknown.is_empty() {
            let texts: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
            match cx.field_validation {
                FieldValidation::Strict => {
                    return Err(cannot(format!("strict decoding error: {}", texts.join(", "))));
                }
                _ => texts.into_iter().for_each(|text| cx.warn(text)),
            }
        }
    }
    tidy(&mut typed, "").map_err(cannot)?;
    let map = crate::tree::map(&mut typed);
    map.insert("apiVersion".into(), r.api_version().into());
    map.insert("kind".into(), r.kind.into());
    Ok(typed)
}

/// Paths that are in the body and not in its typed form.
fn unknown_fields(body: &Value, typed: &Value, path: &str, out: &mut Vec<String>) {
    match (body, typed) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match kept.get(key) {
                    Some(inner) => unknown_fields(value, inner, &here, out),
                    None if value.is_null() || here == "kind" || here == "apiVersion" => {}
                    None => out.push(here),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (i, (a, b)) in given.iter().zip(kept).enumerate() {
                unknown_fields(a, b, &format!("{path}[{i}]"), out);
            }
        }
        _ => {}
    }
}

/// Maps whose values are quantities.
const QUANTITY_MAPS: [&str; 14] = [
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "podFixed",
    "overhead",
    "hard",
    "used",
    "default",
    "defaultRequest",
    "max",
    "min",
    "maxLimitRequestRatio",
    "allocatedResources",
];
/// Maps that upstream omits when empty; other empty objects mean something (`emptyDir: {}`).
const OMIT_EMPTY: [&str; 9] =
    ["labels", "annotations", "nodeSelector", "matchLabels", "data", "binaryData", "limits", "requests", "parameters"];

/// Drops nulls, empty lists and empty maps that upstream omits; canonicalises quantities.
fn tidy(value: &mut Value, key: &str) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            if QUANTITY_MAPS.contains(&key) {
                quantities(map)?;
            }
            for (name, inner) in map.iter_mut() {
                if matches!(name.as_str(), "sizeLimit" | "divisor") {
                    if let Value::String(s) = inner {
                        *s = canonical_quantity(s)?;
                    }
                } else if name != "managedFields" {
                    tidy(inner, name)?;
                }
            }
            map.retain(|name, inner| match inner {
                Value::Null => false,
                Value::Array(items) => !items.is_empty() || name == "containers",
                Value::Object(fields) => !fields.is_empty() || !OMIT_EMPTY.contains(&name.as_str()),
                _ => true,
            });
        }
        Value::Array(items) => {
            for item in items {
                // Only a map right under its name holds quantities; `limits` of a LimitRange is a list.
                tidy(item, "")?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn quantities(map: &mut Map<String, Value>) -> Result<(), String> {
    for (name, value) in map.iter_mut() {
        // `max` and `min` are also plain fields of kinds that have nothing to do with quantities.
        if let (Value::String(s), true) = (value, !name.is_empty()) {
            *s = canonical_quantity(s)?;
        }
    }
    Ok(())
}

/// The canonical spelling of a quantity: `0.5` → `500m`, `1024Mi` → `1Gi`, `1000m` → `1`.
///
/// # Errors
/// Upstream's sentence for what is no quantity.
pub(crate) fn canonical_quantity(text: &str) -> Result<String, String> {
    const RULE: &str = "quantities must match the regular expression \
                        '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    if parse_quantity(text).is_err() {
        return Err(RULE.into());
    }
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let suffix = &text[split..];
    if suffix.starts_with(['e', 'E']) && suffix.len() > 1 {
        return Ok(text.trim_start_matches('+').to_owned());
    }
    // Nano units hold every value that upstream keeps; larger ones stay as they are written.
    let Some(nano) = nano_units(&text[..split], suffix) else { return Ok(text.to_owned()) };
    if nano == 0 {
        return Ok("0".into());
    }
    let units = nano / 1_000_000_000;
    if suffix.ends_with('i') && nano % 1_000_000_000 == 0 && units.abs() >= 1024 {
        let (mut amount, mut step) = (units, 0);
        while amount % 1024 == 0 && step < 6 {
            amount /= 1024;
            step += 1;
        }
        return Ok(format!("{amount}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]));
    }
    let (mut amount, mut step) = (nano, 0);
    while amount % 1000 == 0 && step < 9 {
        amount /= 1000;
        step += 1;
    }
    Ok(format!("{amount}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step]))
}

fn nano_units(number: &str, suffix: &str) -> Option<i128> {
    let (sign, digits) = match number.as_bytes().first() {
        Some(b'-') => (-1, &number[1..]),
        Some(b'+') => (1, &number[1..]),
        _ => (1, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let scale: i128 = match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => 1_000_000_000,
        "k" => 1_000_000_000_000,
        "M" => 1_000_000_000_000_000,
        "G" => 1_000_000_000_000_000_000,
        "T" => 1_000_000_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000_000_000,
        "E" => 1_000_000_000_000_000_000_000_000_000,
        "Ki" => 1_000_000_000 << 10,
        "Mi" => 1_000_000_000 << 20,
        "Gi" => 1_000_000_000 << 30,
        "Ti" => 1_000_000_000 << 40,
        "Pi" => 1_000_000_000 << 50,
        "Ei" => 1_000_000_000_i128 << 60,
        _ => return None,
    };
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let product = mantissa.checked_mul(scale)?;
    // Finer than nano rounds up, as upstream does.
    Some(sign * (product + divisor - 1) / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_get_their_canonical_spelling() {
        for (given, canonical) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("100Ki", "100Ki"),
            ("512", "512"),
            ("2000", "2k"),
            ("0", "0"),
            ("1e3", "1e3"),
            ("+2", "2"),
            ("-1", "-1"),
        ] {
            assert_eq!(canonical_quantity(given).as_deref(), Ok(canonical), "{given}");
        }
        assert!(canonical_quantity("many").is_err());
    }
}
