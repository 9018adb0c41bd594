//! Go's durations: `1m30s`, `500ms`, `0s`. Source: Go's time package, ParseDuration and Duration.String.

use std::time::Duration;

/// Reads a duration; negative ones are refused, as nothing here can be negative.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0.0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        nanos += number
            * match &rest[..unit] {
                "ns" => 1.0,
                "us" | "µs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3600e9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(nanos / 1e9).ok()
}

/// Prints a duration of whole milliseconds as Go does.
pub(crate) fn print(d: Duration) -> String {
    let ms = d.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let fraction = format!("{}.{:03}", ms % 60_000 / 1000, ms % 1000);
    let seconds = fraction.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, m) => format!("{m}m{seconds}s"),
        (h, m) => format!("{h}h{m}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_as_go_does() {
        for (text, ms, printed) in [
            ("0s", 0, "0s"),
            ("0", 0, "0s"),
            ("500ms", 500, "500ms"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("1.5h", 5_400_000, "1h30m0s"),
            ("2m0s", 120_000, "2m0s"),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(ms)), "{text}");
            assert_eq!(print(Duration::from_millis(ms)), printed);
        }
        for bad in ["", "5", "s", "1x", "-1s", "1m30", "1..5s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
