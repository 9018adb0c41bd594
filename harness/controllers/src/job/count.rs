//! Which Pods count as what, and what follows for the Job. Pure.

use std::{collections::BTreeSet, time::Duration};

use podlab_api::{
    core::Pod,
    jiff::Timestamp,
    k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods},
};

/// Kept on a Pod until it has been counted.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Which completion a Pod of an Indexed Job is.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Pause after the first failure; doubles up to [`BACKOFF_MAX`].
const BACKOFF: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(600);

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub(super) fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKING)
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

pub(super) fn index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

/// Failed, or on its way out without success.
fn failed(pod: &Pod) -> bool {
    phase(pod) == "Failed" || (pod.metadata.deletion_timestamp.is_some() && phase(pod) != "Succeeded")
}

/// The Pods of a Job, sorted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) active: Vec<Pod>,
    pub(super) terminating: i32,
    pub(super) ready: i32,
    /// Counted already.
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    /// Seen finished, not counted yet.
    pub(super) new_succeeded: BTreeSet<String>,
    pub(super) new_failed: BTreeSet<String>,
    /// Completed indexes of an Indexed Job.
    pub(super) indexes: BTreeSet<i32>,
    pub(super) last_failure: Option<Timestamp>,
}

impl Tally {
    /// All that have succeeded: completions of an Indexed Job count once.
    pub(super) fn all_succeeded(&self, indexed: bool) -> i32 {
        let n = if indexed {
            self.indexes.len()
        } else {
            usize::try_from(self.succeeded).unwrap_or(0) + self.new_succeeded.len()
        };
        i32::try_from(n).unwrap_or(i32::MAX)
    }

    pub(super) fn all_failed(&self) -> i32 {
        self.failed.saturating_add(i32::try_from(self.new_failed.len()).unwrap_or(i32::MAX))
    }

    pub(super) fn uncounted(&self) -> UncountedTerminatedPods {
        let list = |s: &BTreeSet<String>| (!s.is_empty()).then(|| s.iter().cloned().collect());
        UncountedTerminatedPods { succeeded: list(&self.new_succeeded), failed: list(&self.new_failed) }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.new_succeeded.is_empty() && self.new_failed.is_empty()
    }
}

/// Sorts a Job's Pods; those noted as uncounted whose finalizer has gone are counted.
pub(super) fn tally(status: &JobStatus, pods: &[Pod], indexed: bool) -> Tally {
    let mut t =
        Tally { succeeded: status.succeeded.unwrap_or(0), failed: status.failed.unwrap_or(0), ..Tally::default() };
    if indexed {
        t.indexes = parse_indexes(status.completed_indexes.as_deref().unwrap_or_default());
    }
    let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let held = |u: &String| pods.iter().any(|p| uid(p) == *u && tracked(p));
    for (list, count, open) in
        [(noted.succeeded, &mut t.succeeded, &mut t.new_succeeded), (noted.failed, &mut t.failed, &mut t.new_failed)]
    {
        for u in list.into_iter().flatten() {
            if held(&u) {
                open.insert(u);
            } else {
                *count += 1;
            }
        }
    }
    for pod in pods {
        let ended = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        let ended =
            ended.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|t| t.0)).max();
        if phase(pod) == "Succeeded" {
            t.indexes.extend(index(pod).filter(|_| indexed));
            if tracked(pod) && !t.new_failed.contains(&uid(pod)) {
                t.new_succeeded.insert(uid(pod));
            }
        } else if failed(pod) {
            if phase(pod) != "Failed" {
                t.terminating += 1;
            }
            t.last_failure =
                t.last_failure.max(ended.or_else(|| pod.metadata.deletion_timestamp.as_ref().map(|d| d.0)));
            if tracked(pod) {
                t.new_failed.insert(uid(pod));
            }
        } else {
            let ready = pod
                .status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "True");
            t.ready += i32::from(ready);
            t.active.push(pod.clone());
        }
    }
    t
}

/// What a Job has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Running,
    Succeeded,
    Failed { reason: &'static str, message: &'static str },
}

/// Decides on a Job. `age` is how long it has been active, in seconds.
pub(super) fn verdict(spec: &JobSpec, t: &Tally, restarts: i32, age: Option<i64>) -> Verdict {
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let limit = spec.backoff_limit.unwrap_or(6);
    let on_failure = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
    let restarted = on_failure && if limit == 0 { restarts > 0 } else { restarts >= limit };
    if t.all_failed() > limit || restarted {
        return Verdict::Failed {
            reason: "BackoffLimitExceeded",
            message: "Job has reached the specified backoff limit",
        };
    }
    if spec.active_deadline_seconds.zip(age).is_some_and(|(most, age)| age >= most) {
        return Verdict::Failed {
            reason: "DeadlineExceeded",
            message: "Job was active longer than specified deadline",
        };
    }
    let succeeded = t.all_succeeded(indexed);
    let done = match spec.completions {
        Some(n) => succeeded >= n,
        // Without a number, one success says that the work is done.
        None => succeeded > 0 && t.active.is_empty(),
    };
    if done { Verdict::Succeeded } else { Verdict::Running }
}

/// How many Pods shall be active.
pub(super) fn wanted(spec: &JobSpec, t: &Tally) -> i32 {
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let parallelism = spec.parallelism.unwrap_or(1);
    match spec.completions {
        Some(n) => (n - t.all_succeeded(indexed)).clamp(0, parallelism.max(0)),
        None if t.all_succeeded(false) > 0 => i32::try_from(t.active.len()).unwrap_or(i32::MAX).min(parallelism),
        None => parallelism,
    }
}

/// How long no Pod may be made after the last failure, seen from `now`.
pub(super) fn pause(t: &Tally, now: Timestamp) -> Option<Duration> {
    let last = t.last_failure.filter(|_| t.all_failed() > 0)?;
    let doublings = u32::try_from(t.all_failed() - 1).unwrap_or(0).min(16);
    let total = BACKOFF.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_MAX);
    let spent = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    total.checked_sub(spent).filter(|d| !d.is_zero())
}

/// The indexes that have no success and no active Pod, first to last.
pub(super) fn open_indexes(spec: &JobSpec, t: &Tally) -> Vec<i32> {
    let running: BTreeSet<i32> = t.active.iter().filter_map(index).collect();
    (0..spec.completions.unwrap_or(0)).filter(|i| !t.indexes.contains(i) && !running.contains(i)).collect()
}

/// `0-2,4` as numbers. What is no number is left out.
fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let one = |part: &str| match part.split_once('-') {
        Some((a, b)) => a.parse().ok().zip(b.parse().ok()).map(|(a, b): (i32, i32)| a..=b),
        None => part.parse().ok().map(|n: i32| n..=n),
    };
    text.split(',').filter_map(one).flatten().collect()
}

/// Numbers as `0-2,4`; two neighbours are written one by one.
pub(super) fn print_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &i in indexes {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == i => *end = i,
            _ => runs.push((i, i)),
        }
    }
    let text = |&(a, b): &(i32, i32)| match b - a {
        0 => a.to_string(),
        1 => format!("{a},{b}"),
        _ => format!("{a}-{b}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Whether a Job has ended.
pub(super) fn finished(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(uid: &str, phase: &str, tracked: bool) -> Pod {
        let finalizers = if tracked { json!([TRACKING]) } else { json!([]) };
        serde_json::from_value(json!({"metadata": {"uid": uid, "finalizers": finalizers}, "status": {"phase": phase}}))
            .unwrap()
    }

    fn spec(tree: Value) -> JobSpec {
        let mut all = json!({"template": {"spec": {"containers": [], "restartPolicy": "Never"}}});
        all.as_object_mut().unwrap().extend(tree.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn a_pod_is_counted_once_however_often_it_is_looked_at() {
        let pods = [pod("a", "Succeeded", true), pod("b", "Failed", true), pod("c", "Running", true)];
        let first = tally(&JobStatus::default(), &pods, false);
        assert_eq!((first.all_succeeded(false), first.all_failed(), first.active.len()), (1, 1, 1));
        let noted = JobStatus { uncounted_terminated_pods: Some(first.uncounted()), ..JobStatus::default() };
        let freed = [pod("a", "Succeeded", false), pod("b", "Failed", true)];
        let second = tally(&noted, &freed, false);
        assert_eq!((second.succeeded, second.failed, second.all_succeeded(false), second.all_failed()), (1, 0, 1, 1));
        let counted = JobStatus {
            succeeded: Some(1),
            uncounted_terminated_pods: Some(second.uncounted()),
            ..JobStatus::default()
        };
        let third = tally(&counted, &[], false);
        assert_eq!((third.succeeded, third.failed), (1, 1));
        assert!(third.is_settled());
    }

    #[test]
    fn a_job_ends_by_completions_failures_or_its_deadline() {
        let t = |s, f| Tally { succeeded: s, failed: f, ..Tally::default() };
        let two = spec(json!({"completions": 2, "parallelism": 5, "backoffLimit": 1, "activeDeadlineSeconds": 10}));
        assert_eq!(verdict(&two, &t(1, 1), 0, Some(9)), Verdict::Running);
        assert_eq!(verdict(&two, &t(2, 1), 0, Some(9)), Verdict::Succeeded);
        assert!(matches!(verdict(&two, &t(0, 2), 0, None), Verdict::Failed { reason: "BackoffLimitExceeded", .. }));
        assert!(matches!(verdict(&two, &t(0, 0), 0, Some(10)), Verdict::Failed { reason: "DeadlineExceeded", .. }));
        assert_eq!(wanted(&two, &t(1, 0)), 1);
        assert_eq!(wanted(&spec(json!({"parallelism": 3})), &t(1, 0)), 0);
    }

    #[test]
    fn indexes_are_written_in_runs() {
        for text in ["", "0", "0,1", "0-2,4", "1,3-5,7,8"] {
            assert_eq!(print_indexes(&parse_indexes(text)), text);
        }
    }
}
