//! One pass over one Job.

use std::time::Duration;

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
    jiff::Timestamp,
    k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus},
    meta::{ObjectMeta, Time},
};
use podlab_client::{
    Client, DeleteOptions, ListOptions,
    events::{EventRecorder, EventType, reference},
};
use podlab_clock::Clock;

use super::{
    count::{
        INDEX, INDEX_FAILURES, INDEX_IGNORED, TRACKING, Tally, Verdict, failed, finished, index_failures, is_indexed,
        pause, print_indexes, ready_indexes, tally, tracked, verdict, waits_for_the_end, wanted,
    },
    policy::{Action, action},
};
use crate::{
    replicaset::{controlled_by, owner},
    work::{Again, Key, Reconcile, key_of},
};

/// Most Pods made in one pass.
const BURST: i32 = 500;

/// The controller.
pub(crate) struct Jobs {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
}

#[async_trait]
impl Reconcile for Jobs {
    fn name(&self) -> &'static str {
        "job"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let (all, _) = self.client.namespaced::<Pod>(&key.0).list(&ListOptions::default()).await?;
        let job = self.client.namespaced::<Job>(&key.0).get_opt(&key.1).await?;
        let uid = job.as_ref().and_then(|j| j.metadata.uid.clone());
        let of_name = |p: &Pod| {
            p.metadata
                .owner_references
                .iter()
                .flatten()
                .any(|o| o.kind == "Job" && o.name == key.1 && o.controller == Some(true))
        };
        for orphan in all.iter().filter(|p| tracked(p) && of_name(p) && !controlled_by(&p.metadata, uid.as_ref())) {
            self.let_go(orphan).await?;
        }
        let Some(job) = job else { return Ok(Again::OnChange) };
        let pods: Vec<Pod> = all.into_iter().filter(|p| controlled_by(&p.metadata, uid.as_ref())).collect();
        if job.metadata.deletion_timestamp.is_some() {
            for pod in pods.iter().filter(|p| tracked(p)) {
                self.let_go(pod).await?;
            }
            return Ok(Again::OnChange);
        }
        if finished(&job) {
            for pod in pods.iter().filter(|p| tracked(p)) {
                self.let_go(pod).await?;
            }
            return self.expire(&job).await;
        }
        self.sync(job, &pods).await
    }
}

fn condition(status: &mut JobStatus, type_: &str, reason: &str, message: &str, now: &Time) -> bool {
    let all = status.conditions.get_or_insert_default();
    if all.iter().any(|c| c.type_ == type_ && c.status == "True") {
        return false;
    }
    all.retain(|c| c.type_ != type_);
    all.push(JobCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    });
    true
}

/// Whether the end of a Pod that is deleted still matters to its Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// It is one too many: how it ends says nothing.
    NoMore,
    /// The Job is at its end, and waits for it.
    ToTheEnd,
}

/// The earlier of two looks.
fn sooner(again: Again, rest: Duration) -> Again {
    Again::After(if let Again::After(d) = again { d.min(rest) } else { rest })
}

impl Jobs {
    async fn sync(&self, job: Job, pods: &[Pod]) -> Result<Again, ApiError> {
        let spec = job.spec.clone().unwrap_or_default();
        let indexed = is_indexed(&spec);
        let suspended = spec.suspend == Some(true);
        let mut status = job.status.clone().unwrap_or_default();
        let now = Time(self.clock.wall_secs());
        let mut t = tally(&status, pods, &spec);
        self.suspension(&job, &mut status, suspended, &now);
        let age = status.start_time.as_ref().map(|s| now.0.duration_since(s.0).as_secs());
        let restarts = pods
            .iter()
            .flat_map(|p| p.status.iter().flat_map(|s| s.container_statuses.iter().flatten()))
            .map(|c| c.restart_count)
            .sum();
        let interim = |c: &&JobCondition| matches!(c.type_.as_str(), "FailureTarget" | "SuccessCriteriaMet");
        let decided = status.conditions.iter().flatten().filter(interim).any(|c| c.status == "True");
        let verdict = if decided { None } else { Some(verdict(&spec, &t, restarts, age)) };
        let mut again = Again::OnChange;
        let (mut made, mut failure) = (0, None);
        match verdict {
            Some(Verdict::Running) => {
                let target = if suspended { 0 } else { wanted(&spec, &t) };
                let active = i32::try_from(t.active.len()).unwrap_or(i32::MAX);
                let leaving = if waits_for_the_end(&spec) { t.terminating } else { 0 };
                let missing = target - active - leaving;
                if active > target {
                    self.shrink(&job, &mut t, target, Wanted::NoMore).await?;
                } else if missing > 0 {
                    let rest = if spec.backoff_limit_per_index.is_some() { None } else { pause(&t, now.0) };
                    match rest {
                        Some(rest) => again = sooner(again, rest),
                        None => {
                            let next;
                            (made, next, failure) = self.grow(&job, &spec, &t, missing.min(BURST), now.0).await;
                            again = next.map_or(again, |rest| sooner(again, rest));
                        }
                    }
                }
                if let Some(most) = spec.active_deadline_seconds.zip(age).map(|(most, age)| (most - age).max(0)) {
                    again = sooner(again, Duration::from_secs(u64::try_from(most).unwrap_or(0)));
                }
            }
            Some(Verdict::Succeeded { reason, message }) => {
                condition(&mut status, "SuccessCriteriaMet", reason, &message, &now);
                self.shrink(&job, &mut t, 0, Wanted::ToTheEnd).await?;
            }
            Some(Verdict::Failed { reason, message }) => {
                condition(&mut status, "FailureTarget", reason, &message, &now);
                self.shrink(&job, &mut t, 0, Wanted::ToTheEnd).await?;
            }
            None => self.shrink(&job, &mut t, 0, Wanted::ToTheEnd).await?,
        }
        status.active = Some(i32::try_from(t.active.len()).unwrap_or(i32::MAX) + made).filter(|n| *n > 0);
        status.ready = Some(t.ready);
        status.terminating = Some(t.terminating);
        status.succeeded = Some(if indexed { t.all_succeeded(true) } else { t.succeeded }).filter(|n| *n > 0);
        status.failed = Some(t.failed).filter(|n| *n > 0);
        status.failed_indexes =
            spec.backoff_limit_per_index.filter(|_| indexed).map(|_| print_indexes(&t.failed_indexes));
        status.completed_indexes = indexed.then(|| print_indexes(&t.indexes)).filter(|s| !s.is_empty());
        status.uncounted_terminated_pods = Some(t.uncounted());
        // The last word only when every Pod has ended and is counted.
        if t.active.is_empty() && t.terminating == 0 && t.is_settled() {
            self.conclude(&job, &mut status, &now);
        }
        self.write(&job, status).await?;
        let noted = t.uncounted();
        for pod in pods.iter().filter(|p| tracked(p)) {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            // One that still runs is counted, but kept until it has ended.
            let running = pod.metadata.deletion_timestamp.is_some() && matches!(super::count::phase(pod), "Running");
            let ignored = failed(&spec, pod) && action(&spec, pod) == Action::Ignore;
            let noted = noted.succeeded.iter().chain(&noted.failed).flatten().any(|u| *u == uid);
            if !running && (ignored || noted) {
                self.let_go(pod).await?;
            }
        }
        failure.map_or(Ok(again), Err)
    }

    /// Notes that a Job stands still or goes on again, and when it began.
    fn suspension(&self, job: &Job, status: &mut JobStatus, suspended: bool, now: &Time) {
        let was = status.conditions.iter().flatten().any(|c| c.type_ == "Suspended" && c.status == "True");
        if suspended && !was {
            condition(status, "Suspended", "JobSuspended", "Job suspended", now);
            self.events.event(reference(job), EventType::Normal, "Suspended", "Job suspended");
            status.start_time = None;
        } else if !suspended && was {
            for c in status.conditions.iter_mut().flatten().filter(|c| c.type_ == "Suspended") {
                c.status = "False".to_owned();
                c.reason = Some("JobResumed".to_owned());
                c.message = Some("Job resumed".to_owned());
                c.last_transition_time = Some(now.clone());
            }
            self.events.event(reference(job), EventType::Normal, "Resumed", "Job resumed");
        }
        if !suspended && status.start_time.is_none() {
            status.start_time = Some(now.clone());
        }
    }

    /// Turns the interim condition into the final one.
    fn conclude(&self, job: &Job, status: &mut JobStatus, now: &Time) {
        let of = |status: &JobStatus, t: &str| {
            status.conditions.iter().flatten().find(|c| c.type_ == t && c.status == "True").cloned()
        };
        if let Some(c) = of(status, "FailureTarget") {
            let (reason, message) = (c.reason.unwrap_or_default(), c.message.unwrap_or_default());
            if condition(status, "Failed", &reason, &message, now) {
                let known = ["DeadlineExceeded", "PodFailurePolicy", "MaxFailedIndexesExceeded", "FailedIndexes"];
                let reason = known.into_iter().find(|k| *k == reason).unwrap_or("BackoffLimitExceeded");
                self.events.event(reference(job), EventType::Warning, reason, message);
            }
        } else if let Some(c) = of(status, "SuccessCriteriaMet") {
            let (reason, message) = (c.reason.unwrap_or_default(), c.message.unwrap_or_default());
            if condition(status, "Complete", &reason, &message, now) {
                status.completion_time = Some(now.clone());
                let most = job.spec.as_ref().and_then(|s| s.completions);
                if most.is_some_and(|n| status.succeeded.unwrap_or(0) > n) {
                    let text = "Too many succeeded pods running after completion count reached";
                    self.events.event(reference(job), EventType::Warning, "TooManySucceededPods", text);
                }
                self.events.event(reference(job), EventType::Normal, "Completed", "Job completed");
            }
        }
    }

    /// Makes up to `count` Pods: how many were made, when the next index may have one, and what went wrong.
    async fn grow(
        &self,
        job: &Job,
        spec: &JobSpec,
        t: &Tally,
        count: i32,
        now: Timestamp,
    ) -> (i32, Option<Duration>, Option<ApiError>) {
        let count = usize::try_from(count).unwrap_or(0);
        let (pods, next) = if is_indexed(spec) {
            let (ready, next) = ready_indexes(spec, t, count, now);
            (ready.into_iter().map(|i| Some((i, index_failures(spec, t, i)))).collect(), next)
        } else {
            (vec![None; count], None)
        };
        for (n, index) in pods.iter().enumerate() {
            if let Err(e) = self.create(job, spec, *index).await {
                let text = format!("Error creating: {}", e.message);
                self.events.event(reference(job), EventType::Warning, "FailedCreate", text);
                return (i32::try_from(n).unwrap_or(i32::MAX), next, Some(e));
            }
        }
        (i32::try_from(pods.len()).unwrap_or(i32::MAX), next, None)
    }

    /// Makes a Pod; of an Indexed Job the one of an index, which has failed so often, counted and not.
    async fn create(&self, job: &Job, spec: &JobSpec, index: Option<(i32, (i32, i32))>) -> Result<(), ApiError> {
        let meta = spec.template.metadata.clone().unwrap_or_default();
        let name = job.metadata.name.clone().unwrap_or_default();
        let mut finalizers = meta.finalizers.unwrap_or_default();
        finalizers.push(TRACKING.to_owned());
        let mut pod = Pod {
            metadata: ObjectMeta {
                generate_name: Some(format!("{name}-")),
                labels: meta.labels,
                annotations: meta.annotations,
                finalizers: Some(finalizers),
                owner_references: Some(vec![owner("batch/v1", "Job", &job.metadata)]),
                ..ObjectMeta::default()
            },
            spec: spec.template.spec.clone(),
            status: None,
        };
        if let Some((index, (failures, ignored))) = index {
            give_index(&mut pod, &name, index);
            if spec.backoff_limit_per_index.is_some() {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
                if ignored > 0 {
                    annotations.insert(INDEX_IGNORED.to_owned(), ignored.to_string());
                }
            }
        }
        let namespace = job.metadata.namespace.clone().unwrap_or_default();
        let made = self.client.namespaced::<Pod>(&namespace).create(&pod).await?;
        let text = format!("Created pod: {}", made.metadata.name.unwrap_or_default());
        self.events.event(reference(job), EventType::Normal, "SuccessfulCreate", text);
        Ok(())
    }

    /// Deletes active Pods, the youngest first, until only `target` are left.
    async fn shrink(&self, job: &Job, t: &mut Tally, target: i32, wanted: Wanted) -> Result<(), ApiError> {
        t.active.sort_by_key(|p| p.metadata.creation_timestamp.as_ref().map(|c| c.0));
        while t.active.len() > usize::try_from(target).unwrap_or(0) {
            let Some(pod) = t.active.pop() else { break };
            if wanted == Wanted::NoMore && tracked(&pod) {
                self.let_go(&pod).await?;
            }
            let (namespace, name) = key_of(&pod);
            match self.client.namespaced::<Pod>(&namespace).delete(&name, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => {
                    let text = format!("Error deleting: {}", e.message);
                    self.events.event(reference(job), EventType::Warning, "FailedDelete", text);
                    return Err(e);
                }
                _ => {
                    let text = format!("Deleted pod: {name}");
                    self.events.event(reference(job), EventType::Normal, "SuccessfulDelete", text);
                }
            }
            t.terminating += 1;
            let ready = |p: &Pod| {
                let conditions = p.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            t.ready -= i32::from(ready(&pod));
        }
        Ok(())
    }

    async fn let_go(&self, pod: &Pod) -> Result<(), ApiError> {
        let mut pod = pod.clone();
        pod.metadata.finalizers.get_or_insert_default().retain(|f| f != TRACKING);
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        match self.client.namespaced::<Pod>(&namespace).update(&pod).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    async fn write(&self, job: &Job, status: JobStatus) -> Result<(), ApiError> {
        if job.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = job.metadata.namespace.clone().unwrap_or_default();
        let new = Job { status: Some(status), ..job.clone() };
        match self.client.namespaced::<Job>(&namespace).update_status(&new).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes a Job whose time after its end has passed. Source: k/k pkg/controller/ttlafterfinished.
    async fn expire(&self, job: &Job) -> Result<Again, ApiError> {
        let Some(ttl) = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished) else {
            return Ok(Again::OnChange);
        };
        let ended = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let ended = ended
            .filter(|c| matches!(c.type_.as_str(), "Complete" | "Failed"))
            .find_map(|c| c.last_transition_time.clone());
        let age = ended.map_or(0, |e| self.clock.wall().duration_since(e.0).as_secs());
        let left = i64::from(ttl) - age;
        if left > 0 {
            return Ok(Again::After(Duration::from_secs(u64::try_from(left).unwrap_or(0))));
        }
        let (namespace, name) = key_of(job);
        let options = DeleteOptions {
            uid: job.metadata.uid.clone(),
            propagation: Some("Foreground"),
            ..DeleteOptions::default()
        };
        match self.client.namespaced::<Job>(&namespace).delete(&name, &options).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
            _ => Ok(Again::OnChange),
        }
    }
}

/// Tells a Pod of an Indexed Job which one it is.
fn give_index(pod: &mut Pod, job: &str, index: i32) {
    let text = index.to_string();
    pod.metadata.generate_name = Some(format!("{job}-{index}-"));
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.to_owned(), text.clone());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), text);
    let spec = pod.spec.get_or_insert_default();
    spec.hostname.get_or_insert_with(|| format!("{job}-{index}"));
    let field = ObjectFieldSelector { api_version: None, field_path: format!("metadata.labels['{INDEX}']") };
    let value = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|e| e.name == "JOB_COMPLETION_INDEX") {
            env.push(EnvVar { name: "JOB_COMPLETION_INDEX".to_owned(), value: None, value_from: Some(value.clone()) });
        }
    }
}
