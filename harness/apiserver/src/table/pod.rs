//! The row of a Pod. Source: k/k pkg/printers/internalversion/printers.go printPod.

use podlab_api::jiff::Timestamp;
use serde_json::Value;

use super::{Now, Table, age::age, human_duration};
use crate::tree::{at, has, int, list, text, yes};

pub(crate) const PODS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Status", "string", 0),
        ("Restarts", "string", 0),
        ("Age", "string", 0),
        ("IP", "string", 1),
        ("Node", "string", 1),
        ("Nominated Node", "string", 1),
        ("Readiness Gates", "string", 1),
    ],
    cells,
};

fn cells(pod: &Value, now: Now) -> Vec<Value> {
    let seen = Seen::of(pod);
    let or_none = |s: &str| if s.is_empty() { "<none>".to_owned() } else { s.to_owned() };
    let ip = list(pod, "status.podIPs").first().map_or(text(pod, "status.podIP"), |p| text(p, "ip"));
    vec![
        at(pod, "metadata.name").clone(),
        format!("{}/{}", seen.ready, seen.total).into(),
        seen.reason.as_str().into(),
        seen.restarts_text(now).into(),
        age(pod, now),
        or_none(ip).into(),
        or_none(text(pod, "spec.nodeName")).into(),
        or_none(text(pod, "status.nominatedNodeName")).into(),
        readiness_gates(pod).into(),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let is_true = |gate: &&Value| {
        let wanted = text(gate, "conditionType");
        list(pod, "status.conditions").iter().any(|c| text(c, "type") == wanted && text(c, "status") == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

/// What the printer finds out about a Pod.
struct Seen {
    reason: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
    ready: usize,
    total: usize,
}

impl Seen {
    fn of(pod: &Value) -> Self {
        let init_specs = list(pod, "spec.initContainers");
        let is_sidecar =
            |name: &str| init_specs.iter().any(|c| text(c, "name") == name && text(c, "restartPolicy") == "Always");
        let sidecars = init_specs.iter().filter(|c| text(c, "restartPolicy") == "Always").count();
        let mut reason = text(pod, "status.phase").to_owned();
        if !text(pod, "status.reason").is_empty() {
            reason = text(pod, "status.reason").into();
        }
        for condition in list(pod, "status.conditions") {
            if text(condition, "type") == "PodScheduled" && text(condition, "reason") == "SchedulingGated" {
                reason = "SchedulingGated".into();
            }
        }
        let (mut ready, mut restarts, mut sidecar_restarts) = (0, 0, 0);
        let (mut last, mut sidecar_last) = (None, None);
        let mut initializing = false;
        for (i, status) in list(pod, "status.initContainerStatuses").iter().enumerate() {
            let count = int(status, "restartCount").unwrap_or(0);
            restarts += count;
            last = last.max(finished_before(status));
            let sidecar = is_sidecar(text(status, "name"));
            if sidecar {
                sidecar_restarts += count;
                sidecar_last = sidecar_last.max(finished_before(status));
            }
            let terminated = at(status, "state.terminated");
            let waiting = text(status, "state.waiting.reason");
            if !terminated.is_null() && int(terminated, "exitCode") == Some(0) {
                continue;
            }
            if sidecar && yes(status, "started") {
                ready += usize::from(yes(status, "ready"));
                continue;
            }
            reason = if !terminated.is_null() {
                format!("Init:{}", ended(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", init_specs.len())
            };
            initializing = true;
            break;
        }
        let initialized = list(pod, "status.conditions")
            .iter()
            .any(|c| text(c, "type") == "Initialized" && text(c, "status") == "True");
        if !initializing || initialized {
            (restarts, last) = (sidecar_restarts, sidecar_last);
            let (mut running, mut error) = (false, None);
            for status in list(pod, "status.containerStatuses").iter().rev() {
                restarts += int(status, "restartCount").unwrap_or(0);
                last = last.max(finished_before(status));
                let terminated = at(status, "state.terminated");
                let waiting = text(status, "state.waiting.reason");
                if !waiting.is_empty() {
                    reason = waiting.into();
                } else if !terminated.is_null() {
                    reason = ended(terminated);
                    if int(terminated, "exitCode") != Some(0) {
                        error = Some(reason.clone());
                    }
                } else if yes(status, "ready") && has(status, "state.running") {
                    running = true;
                    ready += 1;
                }
            }
            if reason == "Completed" {
                if running {
                    reason = if crate::pod::is_ready(pod) { "Running".into() } else { "NotReady".into() };
                } else if let Some(error) = error {
                    reason = error;
                }
            }
        }
        if has(pod, "metadata.deletionTimestamp") {
            if text(pod, "status.reason") == "NodeLost" {
                reason = "Unknown".into();
            } else if !matches!(text(pod, "status.phase"), "Succeeded" | "Failed") {
                reason = "Terminating".into();
            }
        }
        Self { reason, restarts, last_restart: last, ready, total: list(pod, "spec.containers").len() + sidecars }
    }

    fn restarts_text(&self, now: Now) -> String {
        match self.last_restart.filter(|_| self.restarts > 0) {
            Some(then) => format!("{} ({} ago)", self.restarts, human_duration(now.as_second() - then.as_second())),
            None => self.restarts.to_string(),
        }
    }
}

fn ended(terminated: &Value) -> String {
    let (reason, signal) = (text(terminated, "reason"), int(terminated, "signal").unwrap_or(0));
    if !reason.is_empty() {
        reason.into()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int(terminated, "exitCode").unwrap_or(0))
    }
}

fn finished_before(status: &Value) -> Option<Timestamp> {
    text(status, "lastState.terminated.finishedAt").parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(pod: &Value) -> String {
        Seen::of(pod).reason
    }

    #[test]
    fn the_status_cell_follows_the_containers() {
        let container = |state: Value| {
            json!({"spec": {"containers": [{"name": "c"}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": state}]}})
        };
        for (pod, expected) in [
            (json!({"status": {"phase": "Pending"}}), "Pending"),
            (container(json!({"waiting": {"reason": "CrashLoopBackOff"}})), "CrashLoopBackOff"),
            (container(json!({"terminated": {"exitCode": 1, "reason": "Error"}})), "Error"),
            (container(json!({"terminated": {"exitCode": 3}})), "ExitCode:3"),
            (
                json!({"status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}),
                "SchedulingGated",
            ),
            (json!({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}), "Terminating"),
            (
                json!({"spec": {"initContainers": [{"name": "i"}, {"name": "j"}]}, "status": {"phase": "Pending",
                "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}}),
                "Init:0/2",
            ),
            (
                json!({"spec": {"initContainers": [{"name": "i"}]}, "status": {"phase": "Pending",
                "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}),
                "Init:Error",
            ),
        ] {
            assert_eq!(status(&pod), expected, "{pod}");
        }
    }
}
