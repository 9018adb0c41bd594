//! Events a Pod is still owed when the last step has passed. Components write them beside the status, not before it, so a
//! timeline that is kept waits for those whose coming the status foretells.

use podlab_api::Object;
use serde_json::Value;

use crate::{
    summary,
    watch::{Seen, count},
};

/// Whether of each of these Pods that is still there as many starts have been told as its status knows of.
pub(crate) fn all_told(seen: &Seen, pods: &[String]) -> bool {
    pods.iter().filter_map(|name| seen.pods.get(name)).all(|pod| {
        let told: u32 = seen.events.values().filter(|e| is_start_of(e, pod)).map(|e| count(e)).sum();
        let known: u64 = summary::container_statuses(pod).map(starts).sum();
        u64::from(told) >= known
    })
}

fn is_start_of(event: &Object, pod: &Object) -> bool {
    event.str_at(&["reason"]) == Some("Started") && event.str_at(&["involvedObject", "uid"]) == Some(pod.uid())
}

/// How often a container has started, by its status. One that never did may end too: only an end with a start counts.
fn starts(status: &Value) -> u64 {
    let began = |state: &str| {
        let ended = status[state]["terminated"]["startedAt"].is_string();
        ended || status[state]["running"].is_object()
    };
    let restarts = status["restartCount"].as_u64().unwrap_or(0);
    if began("state") || began("lastState") { restarts + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_start_is_owed_until_its_event_is_there_with_the_right_count() {
        let pod = json!({"metadata": {"name": "a", "uid": "u"}, "status": {"containerStatuses": [
            {"name": "c", "restartCount": 1, "state": {"running": {}}},
            {"name": "d", "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull"}}}]}});
        let event = |n: u32| {
            Arc::new(Object(
                json!({"metadata": {"name": "e"}, "reason": "Started", "count": n, "involvedObject": {"uid": "u"}}),
            ))
        };
        let mut seen = Seen::default();
        let all = ["a".to_owned(), "gone".to_owned()];
        assert!(all_told(&seen, &all), "a Pod that is not there is owed nothing");
        seen.pods.insert("a".into(), Arc::new(Object(pod)));
        assert!(!all_told(&seen, &all));
        seen.events.insert("e".into(), event(1));
        assert!(!all_told(&seen, &all), "the restart is not told yet");
        seen.events.insert("e".into(), event(2));
        assert!(all_told(&seen, &all));
    }
}
