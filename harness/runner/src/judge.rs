//! Does what a watcher sees match what a scenario demands; and if not, what is there instead.

use podlab_api::Object;
use podlab_scenario::{EventMatch, Matcher};
use serde_json::Value;

use crate::{
    summary,
    watch::{Seen, count},
};

/// `Ok` when everything the matcher names is so; else one line per thing that is not, expected against actual.
pub(crate) fn matches(m: &Matcher, seen: &Seen) -> Result<(), String> {
    let mut wrong = Vec::new();
    let mut demand = |what: &str, expected: &str, actual: &str, ok: bool| {
        if !ok {
            wrong.push(format!("{what}: expected {expected}, actual {actual}"));
        }
    };
    let pod = seen.pods.get(&m.pod);
    if let Some(gone) = m.gone {
        let is_gone = seen.gone.contains(&m.pod);
        demand("gone", &gone.to_string(), &is_gone.to_string(), is_gone == gone);
    }
    if let Some(event) = &m.event {
        let n = events(seen, &m.pod, event);
        let least = event.count.unwrap_or(1);
        demand(&format!("event {}", event.reason), &format!("at least {least}"), &n.to_string(), n >= least);
    }
    if needs_pod(m) {
        match pod {
            None => demand("pod", "present", if seen.gone.contains(&m.pod) { "gone" } else { "never seen" }, false),
            Some(pod) => of_pod(m, pod, &mut demand),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Whether the matcher looks at the Pod object itself.
fn needs_pod(m: &Matcher) -> bool {
    let texts = [&m.phase, &m.condition, &m.container, &m.node, &m.ip];
    texts.into_iter().any(Option::is_some)
}

fn of_pod(m: &Matcher, pod: &Object, demand: &mut impl FnMut(&str, &str, &str, bool)) {
    let at = |path: &[&str]| pod.str_at(path).unwrap_or("none").to_owned();
    for (wanted, what, actual) in [
        (&m.phase, "phase", at(&["status", "phase"])),
        (&m.node, "node", at(&["spec", "nodeName"])),
        (&m.ip, "ip", at(&["status", "podIP"])),
    ] {
        if let Some(wanted) = wanted {
            demand(what, wanted, &actual, actual == *wanted);
        }
    }
    if let Some(kind) = &m.condition {
        let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
        let condition = conditions.into_iter().flatten().find(|c| c.get("type").and_then(Value::as_str) == Some(kind));
        let text = |key: &str| condition.and_then(|c| c.get(key)?.as_str()).unwrap_or("none").to_owned();
        let wanted = m.status.as_deref().unwrap_or("True");
        demand(&format!("condition {kind}"), wanted, &text("status"), text("status") == wanted);
        if let Some(reason) = &m.reason {
            demand(&format!("reason of {kind}"), reason, &text("reason"), text("reason") == *reason);
        }
    }
    if let Some(name) = &m.container {
        let status = summary::container_statuses(pod).find(|s| s.get("name").and_then(Value::as_str) == Some(name));
        let state = |key: &str| summary::container_state(status.and_then(|s| s.get(key)));
        for (wanted, what, actual) in
            [(&m.state, "state", state("state")), (&m.last_state, "last state", state("lastState"))]
        {
            if let Some(wanted) = wanted {
                demand(&format!("{what} of {name}"), wanted, &actual, actual.starts_with(wanted.as_str()));
            }
        }
        if let Some(wanted) = &m.message {
            let state = status.and_then(|s| s.get("state")?.as_object()?.values().next());
            let actual = state.and_then(|s| s.get("message")?.as_str()).unwrap_or("none");
            demand(&format!("message of {name}"), wanted, actual, actual.contains(wanted.as_str()));
        }
        if let Some(wanted) = m.restarts {
            let actual = status.and_then(|s| s.get("restartCount")?.as_i64()).unwrap_or(0);
            demand(
                &format!("restarts of {name}"),
                &format!("at least {wanted}"),
                &actual.to_string(),
                actual >= i64::from(wanted),
            );
        }
    }
}

/// How often an event about a Pod happened.
pub(crate) fn events(seen: &Seen, pod: &str, m: &EventMatch) -> u32 {
    let hit = |e: &&std::sync::Arc<Object>| {
        let text = |path: &[&str]| e.str_at(path).unwrap_or_default();
        text(&["involvedObject", "name"]) == pod
            && text(&["reason"]) == m.reason
            && m.contains.as_deref().is_none_or(|c| text(&["message"]).contains(c))
            && m.message.as_deref().is_none_or(|c| text(&["message"]) == c)
    };
    seen.events.values().filter(hit).map(|e| count(e)).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn seen() -> Seen {
        let pod = json!({"metadata": {"name": "a"}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            "containerStatuses": [{"name": "c", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}});
        let mut seen = Seen::default();
        seen.pods.insert("a".into(), Arc::new(Object(pod)));
        let event = json!({"metadata": {"name": "e"}, "reason": "BackOff", "count": 3, "message": "back-off 10s", "involvedObject": {"name": "a"}});
        seen.events.insert("e".into(), Arc::new(Object(event)));
        seen
    }

    #[test]
    fn a_mismatch_names_expected_and_actual() {
        let m = Matcher { pod: "a".into(), condition: Some("Ready".into()), ..Matcher::default() };
        assert_eq!(matches(&m, &seen()), Err("condition Ready: expected True, actual False".into()));
        let m = Matcher { pod: "b".into(), phase: Some("Running".into()), ..Matcher::default() };
        assert_eq!(matches(&m, &seen()), Err("pod: expected present, actual never seen".into()));
    }

    #[test]
    fn states_match_by_prefix_and_events_by_count() {
        let m = Matcher {
            pod: "a".into(),
            container: Some("c".into()),
            state: Some("waiting:Crash".into()),
            restarts: Some(2),
            ..Matcher::default()
        };
        assert_eq!(matches(&m, &seen()), Ok(()));
        let event = EventMatch { reason: "BackOff".into(), count: Some(4), ..EventMatch::default() };
        let m = Matcher { pod: "a".into(), event: Some(event), ..Matcher::default() };
        assert_eq!(matches(&m, &seen()), Err("event BackOff: expected at least 4, actual 3".into()));
    }
}
