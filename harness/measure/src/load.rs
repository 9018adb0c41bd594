//! A load: Pods that arrive by a plan, each followed by one watch until it is Ready, and deleted again if that was asked for.
//!
//! Arrivals do not wait for what came of earlier ones, so that a cluster that falls behind shows it (open loop). An arrival
//! that could not be sent because too many Pods were on their way is *missed* and counted; a Pod that is not Ready in time is
//! *lost* and counted. Neither is ever left out of a figure in silence.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use podlab_api::{ApiError, Object, ResourceRef, core::Pod};
use podlab_client::{Client, Collection, DeleteOptions, ListOptions, Target, WatchOptions, WatchType};
use podlab_clock::{Clock, Mono, Rng};
use serde_json::Value;

use crate::{Arrivals, MeasureError, sli};

/// What arrives, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// When.
    pub arrivals: Arrivals,
    /// How many, with those of the warm-up.
    pub count: usize,
    /// How many of the first are not measured.
    pub warmup: usize,
    /// The Pod; its name is given to it.
    pub template: Value,
    /// Names are this and a number.
    pub prefix: String,
    /// A Pod that is not Ready by then is lost.
    pub within: Duration,
    /// How many may be on their way at a time; an arrival beyond that is missed.
    pub at_most: usize,
    /// How long a Pod that is Ready stays before it is deleted; for good when absent.
    pub lifetime: Option<Duration>,
    /// Ends the load early.
    pub stop_when: StopWhen,
}

/// What ends a load early.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopWhen {
    /// So many lost.
    pub lost: Option<usize>,
    /// So many missed.
    pub missed: Option<usize>,
}

/// One Pod of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, when the watch showed it.
    pub uid: String,
    /// Whether it belongs to the warm-up.
    pub warmup: bool,
    /// When the plan wanted it.
    pub due: Mono,
    /// When its create request was sent.
    pub asked: Mono,
    /// For each container, when the watch first showed that it had started.
    pub started: Vec<Option<Mono>>,
    /// When the watch showed it Ready; without it the Pod is lost.
    pub ready: Option<Mono>,
    /// When it was asked to go.
    pub deleted: Option<Mono>,
    /// When the watch showed it gone.
    pub gone: Option<Mono>,
    /// Whether `PodScheduled` was ever `False`.
    pub was_unschedulable: bool,
    /// Why it could not be created.
    pub refused: Option<String>,
}

/// What a load came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Every Pod that was sent, in the order of the plan.
    pub pods: Vec<Arrived>,
    /// Arrivals that could not be sent in time.
    pub missed: usize,
    /// Why it ended early.
    pub stopped: Option<String>,
    /// From the first arrival to the last Pod.
    pub took: Duration,
}

impl LoadReport {
    /// Pods that were measured and did not arrive.
    pub fn lost(&self) -> usize {
        self.pods.iter().filter(|p| !p.warmup && p.ready.is_none()).count()
    }
}

/// How a load stands, for whoever looks on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Sent so far.
    pub sent: usize,
    /// To be sent.
    pub of: usize,
    /// Ready so far.
    pub ready: usize,
    /// On their way.
    pub waiting: usize,
    /// Lost so far.
    pub lost: usize,
    /// Missed so far.
    pub missed: usize,
}

enum Done {
    Created(usize, Result<Arc<Object>, ApiError>),
    Deleted(Result<Arc<Object>, ApiError>),
}

type Work = FuturesUnordered<BoxFuture<'static, Done>>;

struct Driver<'a> {
    client: Client,
    pods: Collection,
    load: &'a Load,
    clock: Clock,
    report: LoadReport,
    by_name: BTreeMap<String, usize>,
    /// Pods neither Ready nor given up, by number.
    waiting: BTreeMap<usize, Mono>,
    /// When to delete which.
    leaving: BTreeMap<(Mono, usize), ()>,
    /// Deleted and not yet gone.
    going: usize,
    ready: usize,
    lost: usize,
    work: Work,
}

/// Drives a load to its end: every Pod Ready or lost, and gone if it has a lifetime. `look` is told of every change. Dropping
/// it midway leaves Pods.
///
/// # Errors
/// [`MeasureError`] when the API or its watch fails; a create that is refused is the Pod's own affair.
pub async fn drive(
    client: Client,
    namespace: &str,
    load: &Load,
    clock: Clock,
    rng: &Rng,
    look: &mut (dyn FnMut(Progress) + Send),
) -> Result<LoadReport, MeasureError> {
    let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some(namespace.to_owned()) };
    let api = |source| MeasureError::Api { doing: "watch the Pods of a load".into(), source };
    let list = client.raw().list(&pods, &ListOptions::default()).await.map_err(api)?;
    let options = WatchOptions { resource_version: Some(list.resource_version), ..WatchOptions::default() };
    let mut watch = client.raw().watch(&pods, &options).await.map_err(api)?;
    let mut d = Driver {
        client,
        pods,
        load,
        clock,
        report: LoadReport::default(),
        by_name: BTreeMap::new(),
        waiting: BTreeMap::new(),
        leaving: BTreeMap::new(),
        going: 0,
        ready: 0,
        lost: 0,
        work: Work::new(),
    };
    let begin = clock.now();
    let plan: Vec<Mono> = load.arrivals.offsets(load.count, rng).into_iter().map(|o| begin.after(o)).collect();
    let mut next = 0;
    loop {
        next = d.send_due(&plan, next);
        d.give_up_and_delete();
        look(d.progress(plan.len()));
        if d.report.stopped.is_some() {
            next = plan.len();
        }
        if next == plan.len() && d.waiting.is_empty() && d.leaving.is_empty() && d.going == 0 && d.work.is_empty() {
            break;
        }
        let wake = d.wakes(plan.get(next).copied());
        let sleep: Pin<Box<dyn Future<Output = ()> + Send>> = match wake {
            Some(at) => Box::pin(async move { clock.sleep_until(at).await }),
            None => Box::pin(futures::future::pending()),
        };
        tokio::select! {
            biased;
            event = watch.next() => match event {
                Some(Ok(event)) => d.saw(event.kind, &event.object),
                Some(Err(source)) => return Err(api(source)),
                None => return Err(MeasureError::WatchEnded("under load".into())),
            },
            Some(done) = d.work.next(), if !d.work.is_empty() => d.done(done)?,
            () = sleep => {}
        }
    }
    let last = d.report.pods.iter().filter_map(|p| p.ready).max().unwrap_or(clock.now());
    d.report.took = last.since(begin);
    Ok(d.report)
}

impl Driver<'_> {
    fn progress(&self, of: usize) -> Progress {
        let sent = self.report.pods.len();
        Progress {
            sent,
            of,
            ready: self.ready,
            waiting: self.waiting.len(),
            lost: self.lost,
            missed: self.report.missed,
        }
    }

    /// Sends what is due; the number of the next arrival.
    fn send_due(&mut self, plan: &[Mono], mut next: usize) -> usize {
        let room = self.load.arrivals.concurrency();
        while let Some(due) = plan.get(next).filter(|due| **due <= self.clock.now()) {
            if room.is_some_and(|n| self.waiting.len() >= n) {
                break;
            }
            next += 1;
            if self.waiting.len() >= self.load.at_most.max(1) {
                self.report.missed += 1;
                self.check_stop();
                continue;
            }
            self.send(*due, next);
        }
        next
    }

    fn send(&mut self, due: Mono, number: usize) {
        let name = format!("{}-{number}", self.load.prefix);
        let mut pod = Object(self.load.template.clone());
        pod.meta_mut().insert("name".into(), name.clone().into());
        let at = self.report.pods.len();
        let containers = self.load.template.pointer("/spec/containers").and_then(Value::as_array).map_or(0, Vec::len);
        let (client, pods) = (self.client.clone(), self.pods.clone());
        let asked = self.clock.now();
        self.work.push(async move { Done::Created(at, client.raw().create(&pods, None, pod).await) }.boxed());
        self.by_name.insert(name.clone(), at);
        self.waiting.insert(at, asked.after(self.load.within));
        self.report.pods.push(Arrived {
            name,
            uid: String::new(),
            warmup: number <= self.load.warmup,
            // A closed plan wants a Pod when there is room for it.
            due: if self.load.arrivals.concurrency().is_some() { asked } else { due },
            asked,
            started: vec![None; containers],
            ready: None,
            deleted: None,
            gone: None,
            was_unschedulable: false,
            refused: None,
        });
    }

    fn lose(&mut self, at: usize) {
        self.waiting.remove(&at);
        self.lost += 1;
        self.check_stop();
    }

    fn check_stop(&mut self) {
        let stop = self.load.stop_when;
        let over = |n: usize, limit: Option<usize>| limit.is_some_and(|l| n >= l);
        // Those still on their way may be lost as well; why it ended stays.
        if self.report.stopped.is_some() {
            return;
        }
        if over(self.lost, stop.lost) {
            self.report.stopped = Some(format!("{} Pods were lost", self.lost));
        } else if over(self.report.missed, stop.missed) {
            self.report.stopped = Some(format!("{} arrivals were missed", self.report.missed));
        }
    }

    fn give_up_and_delete(&mut self) {
        let now = self.clock.now();
        let late: Vec<usize> = self.waiting.iter().filter(|(_, end)| **end <= now).map(|(at, _)| *at).collect();
        for at in late {
            self.lose(at);
            if self.load.lifetime.is_some() {
                self.leaving.insert((now, at), ());
            }
        }
        while let Some(first) = self.leaving.first_entry().filter(|e| e.key().0 <= now) {
            let ((_, at), ()) = first.remove_entry();
            let Some(pod) = self.report.pods.get_mut(at).filter(|p| p.gone.is_none()) else { continue };
            pod.deleted = Some(now);
            let target = Target { collection: self.pods.clone(), name: pod.name.clone(), subresource: None };
            let client = self.client.clone();
            self.going += 1;
            self.work.push(
                async move { Done::Deleted(client.raw().delete(&target, &DeleteOptions::default()).await) }.boxed(),
            );
        }
    }

    /// When something is due next.
    fn wakes(&self, arrival: Option<Mono>) -> Option<Mono> {
        let now = self.clock.now();
        // An arrival that waits for room is woken by the Pod that makes it.
        let arrival = arrival.filter(|at| *at > now);
        let leaving = self.leaving.keys().next().map(|(at, _)| *at);
        [arrival, leaving, self.waiting.values().min().copied()].into_iter().flatten().min()
    }

    fn saw(&mut self, kind: WatchType, object: &Object) {
        let Some(at) = self.by_name.get(object.name()).copied() else { return };
        let now = self.clock.now();
        let Some(pod) = self.report.pods.get_mut(at) else { return };
        if kind == WatchType::Deleted {
            if pod.gone.is_none() && pod.deleted.is_some() {
                self.going -= 1;
            }
            pod.gone = Some(now);
            if self.waiting.contains_key(&at) {
                self.lose(at);
            }
            return;
        }
        if pod.uid.is_empty() {
            object.uid().clone_into(&mut pod.uid);
        }
        for (seen, started) in pod.started.iter_mut().zip(sli::started(&object.0)) {
            if started {
                seen.get_or_insert(now);
            }
        }
        pod.was_unschedulable |= crate::subject::condition(object, "PodScheduled") == Some("False");
        if pod.ready.is_none()
            && crate::subject::condition(object, "Ready") == Some("True")
            && self.waiting.remove(&at).is_some()
        {
            pod.ready = Some(now);
            self.ready += 1;
            if let Some(lifetime) = self.load.lifetime {
                self.leaving.insert((now.after(lifetime), at), ());
            }
        }
    }

    fn done(&mut self, done: Done) -> Result<(), MeasureError> {
        match done {
            Done::Created(_, Ok(_)) | Done::Deleted(Ok(_)) => Ok(()),
            Done::Created(at, Err(why)) => {
                if let Some(pod) = self.report.pods.get_mut(at) {
                    pod.refused = Some(why.to_string());
                }
                if self.waiting.contains_key(&at) {
                    self.lose(at);
                }
                Ok(())
            }
            // Whoever deleted it first has done the same; the watch tells when it is gone.
            Done::Deleted(Err(e)) if e.reason == podlab_api::Reason::NotFound => Ok(()),
            Done::Deleted(Err(source)) => Err(MeasureError::Api { doing: "delete a Pod of a load".into(), source }),
        }
    }
}
