//! One pass over one CronJob.

use std::time::Duration;

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::ObjectReference,
    cron,
    jiff::{Timestamp, tz::TimeZone},
    k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job},
    meta::{ObjectMeta, Time},
};
use podlab_client::{
    Client, DeleteOptions, ListOptions,
    events::{EventRecorder, EventType, reference},
};
use podlab_clock::Clock;

use super::due::due;
use crate::{
    claim_pods::ignore_missing,
    replicaset::{controlled_by, owner},
    work::{Again, Key, Reconcile},
};

/// The moment a Job was made for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The controller.
pub(crate) struct CronJobs {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
}

fn name(job: &Job) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

/// `Complete` or `Failed`, once a Job is that.
fn end(job: &Job) -> Option<&str> {
    let conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
        .map(|c| c.type_.as_str())
}

#[async_trait]
impl Reconcile for CronJobs {
    fn name(&self) -> &'static str {
        "cronjob"
    }

    async fn reconcile(&self, (namespace, key): &Key) -> Result<Again, ApiError> {
        let Some(cron) = self.client.namespaced::<CronJob>(namespace).get_opt(key).await? else {
            return Ok(Again::OnChange);
        };
        let (jobs, _) = self.client.namespaced::<Job>(namespace).list(&ListOptions::default()).await?;
        let jobs: Vec<Job> =
            jobs.into_iter().filter(|j| controlled_by(&j.metadata, cron.metadata.uid.as_ref())).collect();
        let mut status = cron.status.clone().unwrap_or_default();
        self.clean_up(&cron, &mut status, &jobs).await;
        self.take_note(&cron, &mut status, &jobs);
        let done = self.serve(&cron, &mut status).await;
        if status.active.as_ref().is_some_and(Vec::is_empty) {
            status.active = None;
        }
        if cron.status.clone().unwrap_or_default() != status {
            let mut changed = cron.clone();
            changed.status = Some(status);
            ignore_missing(self.client.namespaced::<CronJob>(namespace).update_status(&changed).await)?;
        }
        done
    }
}

impl CronJobs {
    fn say(&self, cron: &CronJob, kind: EventType, reason: &'static str, text: String) {
        self.events.event(reference(cron), kind, reason, text);
    }

    /// Keeps as many ended Jobs as the history limits say, the youngest.
    async fn clean_up(&self, cron: &CronJob, status: &mut CronJobStatus, jobs: &[Job]) {
        let spec = &cron.spec;
        let limits = [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)];
        for (ended, limit) in
            limits.into_iter().filter_map(|(ended, limit)| Some((ended, usize::try_from(limit?).ok()?)))
        {
            let mut all: Vec<&Job> = jobs.iter().filter(|j| end(j) == Some(ended)).collect();
            all.sort_by_key(|j| (j.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0), name(j)));
            for job in all.iter().take(all.len().saturating_sub(limit)) {
                self.delete(cron, status, job).await;
            }
        }
    }

    async fn delete(&self, cron: &CronJob, status: &mut CronJobStatus, job: &Job) -> bool {
        let (namespace, name) = crate::work::key_of(job);
        let options = DeleteOptions { propagation: Some("Background"), ..DeleteOptions::default() };
        match self.client.namespaced::<Job>(&namespace).delete(&name, &options).await {
            Err(e) => {
                self.say(cron, EventType::Warning, "FailedDelete", format!("Deleted job: {}", e.message));
                false
            }
            Ok(()) => {
                status.active.get_or_insert_default().retain(|r| r.uid != job.metadata.uid);
                self.say(cron, EventType::Normal, "SuccessfulDelete", format!("Deleted job {name}"));
                true
            }
        }
    }

    /// Which of its Jobs still run, and when one last succeeded.
    fn take_note(&self, cron: &CronJob, status: &mut CronJobStatus, jobs: &[Job]) {
        for job in jobs {
            let active = status.active.get_or_insert_default();
            let found = active.iter().any(|r| r.uid == job.metadata.uid);
            match end(job) {
                None if !found => {
                    let text = format!("Saw a job that the controller did not create or forgot: {}", name(job));
                    self.say(cron, EventType::Warning, "UnexpectedJob", text);
                }
                None => {}
                Some(ended) => {
                    if found {
                        active.retain(|r| r.uid != job.metadata.uid);
                        let text = format!("Saw completed job: {}, condition: {ended}", name(job));
                        self.say(cron, EventType::Normal, "SawCompletedJob", text);
                    }
                    let at =
                        job.status.as_ref().and_then(|s| s.completion_time.clone()).filter(|_| ended == "Complete");
                    let newer = |t: &Time| status.last_successful_time.as_ref().is_none_or(|last| t.0 > last.0);
                    if let Some(at) = at.filter(newer) {
                        status.last_successful_time = Some(at);
                    }
                }
            }
        }
        let there: Vec<_> = jobs.iter().map(|j| j.metadata.uid.clone()).collect();
        let gone = |r: &ObjectReference| !there.contains(&r.uid);
        for missing in status.active.iter().flatten().filter(|r| gone(r)) {
            let text = format!("Active job went missing: {}", missing.name.clone().unwrap_or_default());
            self.say(cron, EventType::Normal, "MissingJob", text);
        }
        status.active.get_or_insert_default().retain(|r| !gone(r));
    }

    /// Makes the Job that is owed; when to look again.
    async fn serve(&self, cron: &CronJob, status: &mut CronJobStatus) -> Result<Again, ApiError> {
        let spec = &cron.spec;
        if cron.metadata.deletion_timestamp.is_some() {
            return Ok(Again::OnChange);
        }
        let zone = match spec.time_zone.as_deref().map(TimeZone::get) {
            None => TimeZone::UTC,
            Some(Ok(zone)) => zone,
            Some(Err(e)) => {
                let zone = spec.time_zone.as_deref().unwrap_or_default();
                self.say(cron, EventType::Warning, "UnknownTimeZone", format!("invalid timeZone: {zone:?}: {e}"));
                return Ok(Again::OnChange);
            }
        };
        if spec.suspend == Some(true) {
            return Ok(Again::OnChange);
        }
        let schedule = match cron::parse(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(e) => {
                let text = format!("unparseable schedule: {:?} : {e}", spec.schedule);
                self.say(cron, EventType::Warning, "UnparseableSchedule", text);
                return Ok(Again::OnChange);
            }
        };
        let now = self.clock.wall();
        let made = cron.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let since = status.last_schedule_time.as_ref().map_or(made, |t| t.0);
        let due = due(&schedule, &zone, since, spec.starting_deadline_seconds, now);
        let again = due.next.map_or(Again::OnChange, Again::After);
        if let Some(missed) = due.missed {
            let text = format!(
                "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            );
            self.say(cron, EventType::Warning, "TooManyMissedTimes", text);
        }
        let Some(moment) = due.moment else { return Ok(again) };
        let late =
            spec.starting_deadline_seconds.is_some_and(|d| moment.as_second().saturating_add(d) < now.as_second());
        if late {
            let text =
                format!("Missed scheduled time to start a job: {}", moment.strftime("%a, %d %b %Y %H:%M:%S +0000"));
            self.say(cron, EventType::Warning, "MissSchedule", text);
            return Ok(again);
        }
        let active = status.active.clone().unwrap_or_default();
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if !active.is_empty() => {
                let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.say(cron, EventType::Normal, "JobAlreadyActive", text.to_owned());
                return Ok(again);
            }
            Some("Replace") => self.replace(cron, status, &active).await?,
            _ => {}
        }
        self.create(cron, status, moment, &zone).await?;
        // The next moment is counted from now, not from when this pass began.
        Ok(due.next.map_or(Again::OnChange, |d| Again::After(d.max(Duration::from_millis(1)))))
    }

    async fn replace(
        &self,
        cron: &CronJob,
        status: &mut CronJobStatus,
        active: &[ObjectReference],
    ) -> Result<(), ApiError> {
        for old in active {
            let namespace = cron.metadata.namespace.clone().unwrap_or_default();
            let name = old.name.clone().unwrap_or_default();
            let job = match self.client.namespaced::<Job>(&namespace).get(&name).await {
                Ok(job) => job,
                Err(e) => {
                    self.say(cron, EventType::Warning, "FailedGet", format!("Get job: {}", e.message));
                    return Err(e);
                }
            };
            if !self.delete(cron, status, &job).await {
                return Err(ApiError::internal(format!("could not replace job {namespace}/{name}")));
            }
        }
        Ok(())
    }

    /// Makes the Job of a moment. Its name is the moment's, so that it is made once however often this is tried.
    async fn create(
        &self,
        cron: &CronJob,
        status: &mut CronJobStatus,
        moment: Timestamp,
        zone: &TimeZone,
    ) -> Result<(), ApiError> {
        let template = cron.spec.job_template.clone();
        let meta = template.metadata.unwrap_or_default();
        let mut annotations = meta.annotations.unwrap_or_default();
        let shown = moment.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string().replace("+00:00", "Z");
        annotations.insert(SCHEDULED.to_owned(), shown);
        let parent = cron.metadata.name.clone().unwrap_or_default();
        let job = Job {
            metadata: ObjectMeta {
                name: Some(format!("{parent}-{}", moment.as_second() / 60)),
                labels: meta.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![owner("batch/v1", "CronJob", &cron.metadata)]),
                ..ObjectMeta::default()
            },
            spec: template.spec,
            status: None,
        };
        let namespace = cron.metadata.namespace.clone().unwrap_or_default();
        let api = self.client.namespaced::<Job>(&namespace);
        let made = match api.create(&job).await {
            Ok(made) => {
                self.say(cron, EventType::Normal, "SuccessfulCreate", format!("Created job {}", name(&made)));
                made
            }
            // Made before, and the status was not written: or somebody else's.
            Err(e) if e.is_already_exists() => {
                let there = api.get(&name(&job)).await?;
                if !controlled_by(&there.metadata, cron.metadata.uid.as_ref()) {
                    return Ok(());
                }
                there
            }
            Err(e) => {
                self.say(cron, EventType::Warning, "FailedCreate", format!("Error creating job: {}", e.message));
                return Err(e);
            }
        };
        let active = status.active.get_or_insert_default();
        if end(&made).is_none() && !active.iter().any(|r| r.uid == made.metadata.uid) {
            active.push(reference(&made));
        }
        status.last_schedule_time = Some(Time(moment));
        Ok(())
    }
}
