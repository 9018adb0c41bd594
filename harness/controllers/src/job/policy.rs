//! What a failed Pod means to its Job, and when some indexes are enough. Pure.
//! Source: k/k pkg/controller/job/{pod_failure_policy,success_policy}.go.

use std::collections::BTreeSet;

use podlab_api::{
    core::{ContainerStatus, Pod},
    k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyOnExitCodesRequirement},
};

/// What follows from a failed Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// It counts towards the limit.
    Count,
    /// It is replaced and does not count.
    Ignore,
    /// Its index has failed for good.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// What a failed Pod means. Without a policy, or a rule that fits, it counts.
pub(super) fn action(spec: &JobSpec, pod: &Pod) -> Action {
    let Some(policy) = &spec.pod_failure_policy else { return Action::Count };
    for (i, rule) in policy.rules.iter().enumerate() {
        let place = |pod: &Pod| {
            let meta = &pod.metadata;
            format!("{}/{}", meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
        };
        let found = if let Some(codes) = &rule.on_exit_codes {
            exit_code(pod, codes).map(|(container, code)| {
                let (pod, action) = (place(pod), &rule.action);
                format!("Container {container} for pod {pod} failed with exit code {code} matching {action} rule at index {i}")
            })
        } else {
            let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let wanted = rule.on_pod_conditions.as_deref().unwrap_or(&[]);
            let mut met = conditions.filter(|c| {
                wanted.iter().any(|w| w.type_ == c.type_ && w.status.as_ref().is_none_or(|s| *s == c.status))
            });
            met.next().map(|c| {
                format!("Pod {} has condition {} matching {} rule at index {i}", place(pod), c.type_, rule.action)
            })
        };
        let Some(message) = found else { continue };
        match rule.action.as_str() {
            "Ignore" => return Action::Ignore,
            "FailIndex" => return Action::FailIndex,
            "FailJob" => return Action::FailJob(message),
            "Count" => return Action::Count,
            _ => {}
        }
    }
    Action::Count
}

/// The first container whose failure fits, regular ones before init containers.
fn exit_code(pod: &Pod, wanted: &PodFailurePolicyOnExitCodesRequirement) -> Option<(String, i32)> {
    let status = pod.status.as_ref()?;
    let fits = |c: &ContainerStatus| {
        let code = c.state.as_ref()?.terminated.as_ref()?.exit_code;
        let named = wanted.container_name.as_ref().is_none_or(|n| *n == c.name);
        let listed = wanted.values.contains(&code);
        let operator = match wanted.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (named && code != 0 && operator).then(|| (c.name.clone(), code))
    };
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.into_iter().find_map(fits)
}

/// The sentence of the first success rule that these indexes meet.
pub(super) fn success(spec: &JobSpec, succeeded: &BTreeSet<i32>) -> Option<String> {
    let policy = spec.success_policy.as_ref().filter(|_| !succeeded.is_empty())?;
    let completions = spec.completions.unwrap_or(0);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let met = policy.rules.iter().position(|rule| match &rule.succeeded_indexes {
        Some(indexes) => {
            let (mut total, mut there) = (0, 0);
            for (first, last) in intervals(indexes, completions) {
                total += last - first + 1;
                there += count(succeeded.range(first..=last).count());
            }
            total > 0 && (there == total || rule.succeeded_count.is_some_and(|n| there >= n))
        }
        None => rule.succeeded_count.is_some_and(|n| count(succeeded.len()) >= n),
    })?;
    Some(format!("Matched rules at index {met}"))
}

/// `0-2,4` as intervals below `completions`, however long they claim to be. What is no number is left out.
pub(super) fn intervals(text: &str, completions: i32) -> Vec<(i32, i32)> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
        let last = last.min(completions.saturating_sub(1));
        (first >= 0 && first <= last).then_some((first, last))
    };
    text.split(',').filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(more: Value) -> JobSpec {
        let mut all = json!({"completions": 5, "template": {"spec": {"containers": []}}});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn pod(code: i32, condition: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "Failed",
            "conditions": [{"type": condition, "status": "True"}],
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}}}]}}))
        .unwrap()
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = spec(json!({"podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}}]}}));
        let text = "Container c for pod n/p failed with exit code 42 matching FailJob rule at index 0";
        assert_eq!(action(&policy, &pod(42, "DisruptionTarget")), Action::FailJob(text.to_owned()));
        assert_eq!(action(&policy, &pod(1, "DisruptionTarget")), Action::Ignore);
        assert_eq!(action(&policy, &pod(1, "Ready")), Action::Count);
        assert_eq!(action(&policy, &pod(7, "Ready")), Action::FailIndex);
        assert_eq!(action(&spec(json!({})), &pod(42, "Ready")), Action::Count);
        let condition = spec(json!({"podFailurePolicy": {"rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}]}}));
        let text = "Pod n/p has condition ConfigIssue matching FailJob rule at index 0";
        assert_eq!(action(&condition, &pod(1, "ConfigIssue")), Action::FailJob(text.to_owned()));
    }

    #[test]
    fn enough_indexes_are_success() {
        let of = |rules: Value| spec(json!({"successPolicy": {"rules": rules}}));
        let met = |spec: &JobSpec, indexes: &[i32]| success(spec, &indexes.iter().copied().collect());
        let leader = of(json!([{"succeededCount": 4}, {"succeededIndexes": "0"}]));
        assert_eq!(met(&leader, &[1, 2]), None);
        assert_eq!(met(&leader, &[0]).as_deref(), Some("Matched rules at index 1"));
        assert_eq!(met(&leader, &[1, 2, 3, 4]).as_deref(), Some("Matched rules at index 0"));
        let some = of(json!([{"succeededIndexes": "1-3", "succeededCount": 2}]));
        assert_eq!(met(&some, &[0, 1]), None);
        assert!(met(&some, &[1, 3]).is_some());
        let endless = of(json!([{"succeededIndexes": "0-2000000000"}]));
        assert!(met(&endless, &[0, 1, 2, 3, 4]).is_some());
        assert_eq!(met(&spec(json!({})), &[0]), None);
    }
}
