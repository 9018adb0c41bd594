//! The whole list of events about an object, against the list a scenario demands.

use std::collections::BTreeMap;

use podlab_api::Object;
use podlab_scenario::{EventIs, Events};
use serde_json::Value;

use crate::watch::{Seen, count};

/// An event as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    by: String,
    /// The second it is of; the only order between components.
    second: String,
    kind: String,
    reason: String,
    message: String,
    field_path: String,
    count: u32,
}

impl Written {
    fn of(event: &Object) -> Self {
        let text = |path: &[&str]| event.str_at(path).unwrap_or_default().to_owned();
        let first = event.at(&["firstTimestamp"]).and_then(Value::as_str).filter(|t| !t.is_empty());
        let at = first.map_or_else(|| text(&["eventTime"]), str::to_owned);
        let by = Some(text(&["source", "component"])).filter(|s| !s.is_empty());
        Self {
            by: by.unwrap_or_else(|| text(&["reportingComponent"])),
            second: at.get(..19).unwrap_or(&at).to_owned(),
            kind: text(&["type"]),
            reason: text(&["reason"]),
            message: text(&["message"]),
            field_path: text(&["involvedObject", "fieldPath"]),
            count: count(event),
        }
    }

    fn is(&self, wanted: &EventIs) -> bool {
        let often = match (wanted.count, wanted.at_least) {
            (Some(n), _) => self.count == n,
            (None, Some(n)) => self.count >= n,
            (None, None) => self.count == 1,
        };
        often
            && self.kind == wanted.kind.as_str()
            && self.reason == wanted.reason
            && wanted.field_path.as_ref().is_none_or(|p| *p == self.field_path)
            && like(&wanted.message, &self.message)
    }
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { by, second, kind, reason, message, field_path, count } = self;
        write!(f, "{second} {by} {kind} {reason} ×{count} {message:?} {field_path}")
    }
}

/// Whether a text is like a pattern in which `*` stands for any text.
fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let middle: Vec<&str> = parts.collect();
    let Some((last, middle)) = middle.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// `Ok` when the events are as demanded; else what they are.
pub(crate) fn judge(wanted: &Events, seen: &Seen) -> Result<(), String> {
    let (kind, name) = wanted.object();
    let by = wanted.about.as_ref().and_then(|a| a.by.as_deref());
    let about = |e: &Object| {
        e.str_at(&["involvedObject", "kind"]) == Some(kind)
            && like(name, e.str_at(&["involvedObject", "name"]).unwrap_or_default())
    };
    let all: Vec<Written> = seen
        .written
        .iter()
        .filter_map(|n| seen.events.get(n))
        .filter(|e| about(e))
        .map(|e| Written::of(e))
        .filter(|w| by.is_none_or(|by| w.by == by))
        .collect();
    let mut queues: BTreeMap<&str, std::collections::VecDeque<&Written>> = BTreeMap::new();
    for event in &all {
        queues.entry(&event.by).or_default().push_back(event);
    }
    let shown = || all.iter().map(|e| format!("\n  {e}")).collect::<String>();
    for (i, expected) in wanted.are.iter().enumerate() {
        let earliest = queues.values().filter_map(|q| q.front()).map(|e| e.second.as_str()).min();
        let now = |q: &std::collections::VecDeque<&Written>| {
            q.front().is_some_and(|e| Some(e.second.as_str()) == earliest && e.is(expected))
        };
        let Some(queue) = queues.values_mut().find(|q| now(q)) else {
            return Err(format!(
                "events of {kind} {name}: expected as number {} {} {} {:?}, actual{}",
                i + 1,
                expected.kind.as_str(),
                expected.reason,
                expected.message,
                shown()
            ));
        };
        queue.pop_front();
    }
    match queues.values().flatten().count() {
        0 => Ok(()),
        n => Err(format!("events of {kind} {name}: expected {}, and there are {n} more:{}", wanted.are.len(), shown())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn seen(events: &[(&str, &str, &str, u32)]) -> Seen {
        let mut seen = Seen::default();
        for (i, (by, second, reason, count)) in events.iter().enumerate() {
            let object = Object(
                json!({"metadata": {"name": format!("e{}", 9 - i)}, "type": "Normal", "reason": reason,
                "message": format!("{reason} a_default(uid)"), "count": count, "firstTimestamp": format!("2026-01-01T00:00:{second}Z"),
                "source": {"component": by}, "involvedObject": {"kind": "Pod", "name": "a", "fieldPath": ""}}),
            );
            seen.written.push(object.name().to_owned());
            seen.events.insert(object.name().to_owned(), Arc::new(object));
        }
        seen
    }

    fn wanted(reasons: &[(&str, u32)]) -> Events {
        let are = reasons.iter().map(|(r, n)| EventIs {
            reason: (*r).into(),
            kind: podlab_scenario::EventKind::Normal,
            message: format!("{r} a_default(*)"),
            field_path: None,
            count: Some(*n),
            at_least: None,
        });
        Events { pod: Some("a".into()), about: None, are: are.collect(), within: None }
    }

    #[test]
    fn a_component_keeps_its_order_and_others_may_come_between_within_a_second() {
        let seen =
            seen(&[("kubelet", "01", "Pulling", 1), ("sched", "01", "Scheduled", 1), ("kubelet", "02", "Pulled", 2)]);
        for order in [["Scheduled", "Pulling"], ["Pulling", "Scheduled"]] {
            judge(&wanted(&[(order[0], 1), (order[1], 1), ("Pulled", 2)]), &seen).unwrap();
        }
        for (list, words) in [
            (&[("Pulling", 1), ("Pulled", 2), ("Scheduled", 1)][..], "as number 2 Normal Pulled"),
            (&[("Scheduled", 1), ("Pulled", 2), ("Pulling", 1)][..], "as number 2 Normal Pulled"),
            (&[("Scheduled", 1), ("Pulling", 1), ("Pulled", 1)][..], "as number 3"),
            (&[("Scheduled", 1), ("Pulling", 1)][..], "there are 1 more"),
        ] {
            let said = judge(&wanted(list), &seen).unwrap_err();
            assert!(said.contains(words) && said.contains("kubelet Normal Pulled ×2"), "{said}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text_and_everything_else_for_itself() {
        assert!(like("a*c*e", "abcde") && like("*", "") && like("", "") && like("ab", "ab"));
        assert!(!like("ab", "abc") && !like("a*c", "ab") && !like("*b", "abc") && !like("b*", "abc"));
    }
}
