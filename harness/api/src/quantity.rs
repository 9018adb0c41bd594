//! Arithmetic on `resource.Quantity` strings. Source: k/k staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go.

/// A string that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("quantity {0:?} must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct ParseQuantityError(pub String);

/// The value in thousandths, rounded up as upstream's `MilliValue` does (`500m` → 500, `2` → 2000).
///
/// # Errors
/// [`ParseQuantityError`] when `s` is not a quantity.
pub fn parse_milli(s: &str) -> Result<i128, ParseQuantityError> {
    scaled(s, 1000)
}

/// The value in units, rounded up as upstream's `Value` does (`1Gi` → 1073741824, `500m` → 1).
///
/// # Errors
/// [`ParseQuantityError`] when `s` is not a quantity.
pub fn parse_quantity(s: &str) -> Result<i128, ParseQuantityError> {
    scaled(s, 1)
}

/// The value times `scale`, rounded away from zero.
fn scaled(s: &str, scale: i128) -> Result<i128, ParseQuantityError> {
    let bad = || ParseQuantityError(s.to_owned());
    let text = s.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (negative, digits) = match number.as_bytes().first() {
        Some(b'-') => (true, &number[1..]),
        Some(b'+') => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > 24 {
        return Err(bad());
    }
    let mantissa: i128 = format!("0{whole}{fraction}").parse().map_err(|_| bad())?;
    let (mut mul, mut div): (i128, i128) = (scale, 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?));
    match suffix {
        "" => {}
        "n" => div *= 1_000_000_000,
        "u" => div *= 1_000_000,
        "m" => div *= 1_000,
        "k" => mul *= 1_000,
        "M" => mul *= 1_000_000,
        "G" => mul *= 1_000_000_000,
        "T" => mul *= 1_000_000_000_000,
        "P" => mul *= 1_000_000_000_000_000,
        "E" => mul *= 1_000_000_000_000_000_000,
        "Ki" => mul <<= 10,
        "Mi" => mul <<= 20,
        "Gi" => mul <<= 30,
        "Ti" => mul <<= 40,
        "Pi" => mul <<= 50,
        "Ei" => mul <<= 60,
        _ => {
            let exp: i32 = suffix.strip_prefix(['e', 'E']).ok_or_else(bad)?.parse().map_err(|_| bad())?;
            let power = 10_i128.checked_pow(exp.unsigned_abs()).filter(|_| exp.abs() <= 18).ok_or_else(bad)?;
            if exp < 0 { div *= power } else { mul *= power }
        }
    }
    let product = mantissa.checked_mul(mul).ok_or_else(bad)?;
    let rounded = (product + div - 1) / div;
    Ok(if negative { -rounded } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_round_up_in_the_unit_asked_for() {
        for (text, units, milli) in [
            ("500m", 1, 500),
            ("2", 2, 2000),
            ("1Gi", 1 << 30, (1 << 30) * 1000),
            ("1.5", 2, 1500),
            ("0.1", 1, 100),
            ("1e3", 1000, 1_000_000),
            ("-1", -1, -1000),
            ("100n", 1, 1),
        ] {
            assert_eq!(parse_quantity(text), Ok(units), "{text}");
            assert_eq!(parse_milli(text), Ok(milli), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in ["", "abc", "1Qi", "1e", "1.2.3", "--1", "1e99", "99999999999999999999999999"] {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
    }
}
