//! Starts the CronJob controller.

use podlab_api::k8s_openapi::api::batch::v1::{CronJob, Job};

use super::sync::CronJobs;
use crate::{
    run::Starter,
    work::{Queue, feed, key_of},
};

/// Starts it.
pub(crate) fn start(s: &mut Starter) {
    let (_, deltas) = s.follow::<CronJob>();
    let (_, jobs) = s.follow::<Job>();
    let queue = Queue::default();
    s.tasks.spawn(feed(deltas, queue.clone(), |d| vec![key_of(&**d.object())]));
    s.tasks.spawn(feed(jobs, queue.clone(), |d| {
        let meta = &d.object().metadata;
        let owners = meta.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|o| o.controller == Some(true) && o.kind == "CronJob");
        owner.map(|o| (meta.namespace.clone().unwrap_or_default(), o.name.clone())).into_iter().collect()
    }));
    let events = s.events("cronjob-controller");
    s.drive(CronJobs { client: s.client.clone(), events, clock: s.clock }, queue);
}
