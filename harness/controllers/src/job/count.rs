//! Which Pods count as what, and what follows for the Job. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podlab_api::{
    core::Pod,
    jiff::Timestamp,
    k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods},
};

use super::policy::{Action, action, intervals, success};

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

/// How often an index had failed before this Pod, counted and not.
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

pub(super) fn noted(pod: &Pod, annotation: &str) -> i32 {
    pod.metadata.annotations.as_ref().and_then(|a| a.get(annotation)?.parse().ok()).unwrap_or(0)
}

pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// Whether a Pod on its way out is replaced only once it has ended.
pub(super) fn waits_for_the_end(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed")
}

/// Failed, or on its way out without success: then it may never say how it ended.
pub(super) fn failed(spec: &JobSpec, pod: &Pod) -> bool {
    let going = pod.metadata.deletion_timestamp.is_some() && phase(pod) != "Succeeded";
    phase(pod) == "Failed" || (going && !waits_for_the_end(spec))
}

/// When a Pod ended, as well as it is known. Source: backoff_utils.go getFinishedTime.
pub(super) fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref();
    let ended = status.into_iter().flat_map(|s| s.container_statuses.iter().flatten());
    let ended = ended.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|t| t.0)).max();
    let unready = || {
        let mut all = status?.conditions.iter().flatten();
        let ready = all.find(|c| c.type_ == "Ready" && c.status == "False")?;
        ready.last_transition_time.as_ref().map(|t| t.0)
    };
    let deleted = || pod.metadata.deletion_timestamp.as_ref().map(|t| t.0);
    ended.or_else(unready).or_else(deleted).or_else(|| pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
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
    /// Indexes that have failed for good, where each has a limit of its own.
    pub(super) failed_indexes: BTreeSet<i32>,
    /// Indexes whose Pod is on its way out.
    pub(super) leaving_indexes: BTreeSet<i32>,
    /// The last failed Pod of each index.
    pub(super) last_of_index: BTreeMap<i32, Pod>,
    /// What a failed Pod says about the whole Job.
    pub(super) fatal: Option<String>,
    pub(super) last_failure: Option<Timestamp>,
    /// Failures since the last success.
    pub(super) streak: i32,
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
pub(super) fn tally(status: &JobStatus, pods: &[Pod], spec: &JobSpec) -> Tally {
    let indexed = is_indexed(spec);
    let completions = spec.completions.unwrap_or(0);
    let mut t =
        Tally { succeeded: status.succeeded.unwrap_or(0), failed: status.failed.unwrap_or(0), ..Tally::default() };
    if indexed {
        t.indexes = parse_indexes(status.completed_indexes.as_deref().unwrap_or_default(), completions);
        t.failed_indexes = parse_indexes(status.failed_indexes.as_deref().unwrap_or_default(), completions);
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
    let mut last_success = None;
    let mut failures = Vec::new();
    for pod in pods {
        let of_index = index(pod).filter(|i| indexed && *i < completions);
        if phase(pod) == "Succeeded" {
            t.indexes.extend(of_index);
            last_success = last_success.max(ended_at(pod));
            if tracked(pod) && !t.new_failed.contains(&uid(pod)) {
                t.new_succeeded.insert(uid(pod));
            }
            continue;
        }
        let going = pod.metadata.deletion_timestamp.is_some();
        if going && phase(pod) != "Failed" {
            t.terminating += 1;
            t.leaving_indexes.extend(of_index);
        }
        if failed(spec, pod) {
            t.last_failure = t.last_failure.max(ended_at(pod));
            // One that was let go before it ended was not wanted any more: that is no failure.
            if tracked(pod) || !going {
                failures.push(ended_at(pod));
                take_failure(&mut t, spec, pod, of_index);
            }
        } else if !going {
            let ready = pod
                .status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "True");
            t.ready += i32::from(ready);
            t.active.push(pod.clone());
        }
    }
    t.streak = i32::try_from(failures.iter().filter(|at| **at > last_success).count()).unwrap_or(i32::MAX);
    if last_success.is_none() && t.all_succeeded(indexed) == 0 {
        // Failed Pods that were deleted since have not been forgotten.
        t.streak = t.streak.max(t.all_failed());
    }
    t
}

/// Takes a failed Pod into account as the policy says.
fn take_failure(t: &mut Tally, spec: &JobSpec, pod: &Pod, of_index: Option<i32>) {
    let action = action(spec, pod);
    if let Action::FailJob(message) = &action {
        t.fatal.get_or_insert_with(|| message.clone());
    }
    if tracked(pod) && action != Action::Ignore {
        t.new_failed.insert(uid(pod));
    }
    let Some(i) = of_index else { return };
    if let Some(limit) = spec.backoff_limit_per_index {
        let spent = action != Action::Ignore && noted(pod, INDEX_FAILURES) >= limit;
        if tracked(pod) && (spent || action == Action::FailIndex) && !t.indexes.contains(&i) {
            t.failed_indexes.insert(i);
        }
        let total = |p: &Pod| noted(p, INDEX_FAILURES) + noted(p, INDEX_IGNORED);
        let later = |old: &Pod| (total(old), ended_at(old)) <= (total(pod), ended_at(pod));
        if t.last_of_index.get(&i).is_none_or(later) {
            t.last_of_index.insert(i, pod.clone());
        }
    }
}

/// What a Job has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Running,
    Succeeded { reason: &'static str, message: String },
    Failed { reason: &'static str, message: String },
}

impl Verdict {
    fn failed(reason: &'static str, message: &str) -> Self {
        Self::Failed { reason, message: message.to_owned() }
    }
}

/// Decides on a Job. `age` is how long it has been active, in seconds. Failures are looked at before success.
pub(super) fn verdict(spec: &JobSpec, t: &Tally, restarts: i32, age: Option<i64>) -> Verdict {
    let indexed = is_indexed(spec);
    let limit = spec.backoff_limit.unwrap_or(6);
    let on_failure = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
    let restarted = on_failure && if limit == 0 { restarts > 0 } else { restarts >= limit };
    if let Some(message) = &t.fatal {
        return Verdict::failed("PodFailurePolicy", message);
    }
    if t.all_failed() > limit || restarted {
        return Verdict::failed("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if spec.active_deadline_seconds.zip(age).is_some_and(|(most, age)| age >= most) {
        return Verdict::failed("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    let succeeded = t.all_succeeded(indexed);
    if indexed {
        let lost = i32::try_from(t.failed_indexes.len()).unwrap_or(i32::MAX);
        if spec.max_failed_indexes.is_some_and(|most| lost > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Verdict::failed("MaxFailedIndexesExceeded", message);
        }
        if lost > 0 && spec.completions.is_some_and(|n| lost.saturating_add(succeeded) >= n) {
            return Verdict::failed("FailedIndexes", "Job has failed indexes");
        }
        if let Some(message) = success(spec, &t.indexes) {
            return Verdict::Succeeded { reason: "SuccessPolicy", message };
        }
    }
    let done = match spec.completions {
        Some(n) => succeeded >= n,
        // Without a number, one success says that the work is done.
        None => succeeded > 0 && t.active.is_empty(),
    };
    if !done {
        return Verdict::Running;
    }
    Verdict::Succeeded { reason: "CompletionsReached", message: "Reached expected number of succeeded pods".to_owned() }
}

/// How many Pods shall be active.
pub(super) fn wanted(spec: &JobSpec, t: &Tally) -> i32 {
    let indexed = is_indexed(spec);
    let parallelism = spec.parallelism.unwrap_or(1);
    match spec.completions {
        Some(n) => (n - t.all_succeeded(indexed)).clamp(0, parallelism.max(0)),
        None if t.all_succeeded(false) > 0 => i32::try_from(t.active.len()).unwrap_or(i32::MAX).min(parallelism),
        None => parallelism,
    }
}

/// The pause after this many failures in a row, as far as it is not over at `now`.
fn rest(failures: i32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures - 1).unwrap_or(0).min(16);
    let total = BACKOFF.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_MAX);
    let spent = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    total.checked_sub(spent).filter(|d| !d.is_zero())
}

/// How long no Pod may be made after the last failure, seen from `now`.
pub(super) fn pause(t: &Tally, now: Timestamp) -> Option<Duration> {
    let last = t.last_failure.filter(|_| t.streak > 0)?;
    rest(t.streak, last, now)
}

/// The indexes that have no success and no active Pod, first to last.
pub(super) fn open_indexes(spec: &JobSpec, t: &Tally) -> Vec<i32> {
    let running: BTreeSet<i32> = t.active.iter().filter_map(index).collect();
    let waits = waits_for_the_end(spec);
    let taken = |i: &i32| {
        t.indexes.contains(i)
            || running.contains(i)
            || t.failed_indexes.contains(i)
            || (waits && t.leaving_indexes.contains(i))
    };
    (0..spec.completions.unwrap_or(0)).filter(|i| !taken(i)).collect()
}

/// Of the indexes that lack a Pod those which may have one now, and how long the next one still has to wait.
/// Source: job_controller.go manageJob, backoff_utils.go getRemainingTimePerIndex.
pub(super) fn ready_indexes(spec: &JobSpec, t: &Tally, count: usize, now: Timestamp) -> (Vec<i32>, Option<Duration>) {
    let open = open_indexes(spec, t).into_iter().take(count);
    if spec.backoff_limit_per_index.is_none() {
        return (open.collect(), None);
    }
    let mut next: Option<Duration> = None;
    let mut ready = Vec::new();
    for i in open {
        let wait = t
            .last_of_index
            .get(&i)
            .and_then(|p| rest(noted(p, INDEX_FAILURES) + noted(p, INDEX_IGNORED) + 1, ended_at(p)?, now));
        match wait {
            Some(wait) => next = Some(next.map_or(wait, |n| n.min(wait))),
            None => ready.push(i),
        }
    }
    (ready, next)
}

/// How often an index has failed, counted and not, once its last Pod has.
pub(super) fn index_failures(spec: &JobSpec, t: &Tally, i: i32) -> (i32, i32) {
    let Some(pod) = t.last_of_index.get(&i) else { return (0, 0) };
    let ignored = i32::from(action(spec, pod) == Action::Ignore);
    (noted(pod, INDEX_FAILURES) + 1 - ignored, noted(pod, INDEX_IGNORED) + ignored)
}

/// `0-2,4` as numbers below `completions`. What is no number is left out.
fn parse_indexes(text: &str, completions: i32) -> BTreeSet<i32> {
    intervals(text, completions).into_iter().flat_map(|(first, last)| first..=last).collect()
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
        let plain = spec(json!({}));
        let pods = [pod("a", "Succeeded", true), pod("b", "Failed", true), pod("c", "Running", true)];
        let first = tally(&JobStatus::default(), &pods, &plain);
        assert_eq!((first.all_succeeded(false), first.all_failed(), first.active.len()), (1, 1, 1));
        let noted = JobStatus { uncounted_terminated_pods: Some(first.uncounted()), ..JobStatus::default() };
        let freed = [pod("a", "Succeeded", false), pod("b", "Failed", true)];
        let second = tally(&noted, &freed, &plain);
        assert_eq!((second.succeeded, second.failed, second.all_succeeded(false), second.all_failed()), (1, 0, 1, 1));
        let counted = JobStatus {
            succeeded: Some(1),
            uncounted_terminated_pods: Some(second.uncounted()),
            ..JobStatus::default()
        };
        let third = tally(&counted, &[], &plain);
        assert_eq!((third.succeeded, third.failed), (1, 1));
        assert!(third.is_settled());
    }

    #[test]
    fn a_job_ends_by_completions_failures_or_its_deadline() {
        let t = |s, f| Tally { succeeded: s, failed: f, ..Tally::default() };
        let two = spec(json!({"completions": 2, "parallelism": 5, "backoffLimit": 1, "activeDeadlineSeconds": 10}));
        assert_eq!(verdict(&two, &t(1, 1), 0, Some(9)), Verdict::Running);
        assert!(matches!(verdict(&two, &t(2, 1), 0, Some(9)), Verdict::Succeeded { reason: "CompletionsReached", .. }));
        assert!(matches!(verdict(&two, &t(0, 2), 0, None), Verdict::Failed { reason: "BackoffLimitExceeded", .. }));
        assert!(matches!(verdict(&two, &t(0, 0), 0, Some(10)), Verdict::Failed { reason: "DeadlineExceeded", .. }));
        assert_eq!(wanted(&two, &t(1, 0)), 1);
        assert_eq!(wanted(&spec(json!({"parallelism": 3})), &t(1, 0)), 0);
    }

    #[test]
    fn indexes_are_written_in_runs() {
        for text in ["", "0", "0,1", "0-2,4", "1,3-5,7,8"] {
            assert_eq!(print_indexes(&parse_indexes(text, 10)), text);
        }
    }

    fn at(index: i32, failures: i32, ended: i64) -> Pod {
        let mut pod = pod(&format!("{index}-{failures}"), "Failed", true);
        pod.metadata.annotations =
            Some([(INDEX.to_owned(), index.to_string()), (INDEX_FAILURES.to_owned(), failures.to_string())].into());
        pod.status = serde_json::from_value(json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "",
            "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1,
                "finishedAt": Timestamp::from_second(ended).unwrap().to_string()}}}]}))
        .unwrap();
        pod
    }

    #[test]
    fn each_index_has_its_own_limit_and_pause() {
        let spec =
            spec(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 2147483647,
            "backoffLimitPerIndex": 1}));
        let now = Timestamp::from_second(100).unwrap();
        let once = tally(&JobStatus::default(), &[at(0, 0, 95), at(1, 0, 80)], &spec);
        assert_eq!(once.failed_indexes, BTreeSet::new());
        let (ready, next) = ready_indexes(&spec, &once, 3, now);
        assert_eq!((ready, next), (vec![1, 2], Some(Duration::from_secs(5))));
        assert_eq!((index_failures(&spec, &once, 0), index_failures(&spec, &once, 2)), ((1, 0), (0, 0)));
        let twice = tally(&JobStatus::default(), &[at(0, 0, 50), at(0, 1, 95)], &spec);
        assert_eq!(twice.failed_indexes, BTreeSet::from([0]));
        assert_eq!(open_indexes(&spec, &twice), [1, 2]);
        let rest = Tally { indexes: [1, 2].into(), failed_indexes: [0].into(), ..Tally::default() };
        assert!(matches!(verdict(&spec, &rest, 0, None), Verdict::Failed { reason: "FailedIndexes", .. }));
        let most = JobSpec { max_failed_indexes: Some(0), ..spec };
        let one = Tally { failed_indexes: [0].into(), ..Tally::default() };
        assert!(matches!(verdict(&most, &one, 0, None), Verdict::Failed { reason: "MaxFailedIndexesExceeded", .. }));
    }

    #[test]
    fn a_pod_that_was_let_go_is_no_failure_and_a_success_ends_the_streak() {
        let plain = spec(json!({}));
        let mut gone = at(0, 0, 50);
        gone.metadata.finalizers = None;
        gone.metadata.deletion_timestamp = serde_json::from_value(json!("1970-01-01T00:00:40Z")).unwrap();
        let t = tally(&JobStatus::default(), std::slice::from_ref(&gone), &plain);
        assert_eq!((t.all_failed(), t.streak), (0, 0));
        let mut well = at(1, 0, 60);
        well.status.as_mut().unwrap().phase = Some("Succeeded".into());
        let t = tally(&JobStatus::default(), &[at(0, 0, 50), well, at(2, 0, 70)], &plain);
        assert_eq!((t.all_failed(), t.streak), (2, 1));
    }

    #[test]
    fn an_ignored_failure_is_replaced_and_not_counted() {
        let policy = spec(json!({"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}}]}}));
        let t = tally(&JobStatus::default(), &[at(0, 0, 50)], &policy);
        assert_eq!((t.all_failed(), t.streak, t.is_settled()), (0, 1, true));
        assert_eq!(verdict(&policy, &t, 0, None), Verdict::Running);
    }
}
