//! Starts the Job controller.

use podlab_api::k8s_openapi::api::batch::v1::Job;

use super::sync::Jobs;
use crate::{
    run::Starter,
    work::{Queue, feed, key_of},
};

/// Starts it.
pub(crate) fn start(s: &mut Starter) {
    let (_, jobs) = s.follow::<Job>();
    let (_, pods) = s.follow_pods();
    let queue = Queue::default();
    s.tasks.spawn(feed(jobs, queue.clone(), |d| vec![key_of(&**d.object())]));
    s.tasks.spawn(feed(pods, queue.clone(), |d| {
        let meta = &d.object().metadata;
        let controller = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true) && o.kind == "Job");
        controller.map(|o| (meta.namespace.clone().unwrap_or_default(), o.name.clone())).into_iter().collect()
    }));
    let events = s.events("job-controller");
    s.drive(Jobs { client: s.client.clone(), events, clock: s.clock }, queue);
}
