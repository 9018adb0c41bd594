//! Durations as people read them. Source: k/k staging/src/k8s.io/apimachinery/pkg/util/duration/duration.go.

use podlab_api::jiff::Timestamp;
use serde_json::Value;

use crate::tree::text;

/// The time a table is made at.
pub(crate) type Now = Timestamp;

/// `45s`, `3m20s`, `5h`, `2d3h`, `400d`, `3y`.
pub(crate) fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    if seconds < 0 {
        return "0s".into();
    }
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    if seconds < 120 {
        return format!("{seconds}s");
    }
    if minutes < 10 {
        return pair(minutes, "m", seconds % 60, "s");
    }
    if minutes < 180 {
        return format!("{minutes}m");
    }
    if hours < 8 {
        return pair(hours, "h", minutes % 60, "m");
    }
    if hours < 48 {
        return format!("{hours}h");
    }
    if hours < 24 * 8 {
        return pair(hours / 24, "d", hours % 24, "h");
    }
    if hours < 24 * 365 * 2 {
        return format!("{}d", hours / 24);
    }
    if hours < 24 * 365 * 8 {
        return pair(hours / 24 / 365, "y", (hours / 24) % 365, "d");
    }
    format!("{}y", hours / 24 / 365)
}

fn pair(big: i64, big_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
}

/// Time since a timestamp string, or `<unknown>`.
pub(crate) fn since(timestamp: &str, now: Now) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".into(),
    }
}

/// The age of an object.
pub(crate) fn age(object: &Value, now: Now) -> Value {
    since(text(object, "metadata.creationTimestamp"), now).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_prints_them() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (700, "11m"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (3 * 86400 + 3600, "3d1h"),
            (10 * 86400, "10d"),
            (3 * 365 * 86400, "3y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
