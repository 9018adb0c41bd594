//! Starts the DaemonSet controller.

use podlab_api::{apps::DaemonSet, core::Node, matching::selects};
use podlab_client::reflector::Delta;

use super::sync::DaemonSets;
use crate::{
    run::Starter,
    work::{Queue, feed, key_of},
};

/// Starts it.
pub(crate) fn start(s: &mut Starter) {
    let (sets, deltas) = s.follow::<DaemonSet>();
    let (_, pods) = s.follow_pods();
    let (nodes, node_deltas) = s.follow::<Node>();
    let queue = Queue::default();
    s.tasks.spawn(feed(deltas, queue.clone(), |d| vec![key_of(&**d.object())]));
    let of_pod = sets.clone();
    s.tasks.spawn(feed(pods, queue.clone(), move |d| {
        let meta = &d.object().metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        match meta.owner_references.iter().flatten().find(|o| o.controller == Some(true)) {
            Some(o) if o.kind == "DaemonSet" => vec![(namespace, o.name.clone())],
            Some(_) => Vec::new(),
            None => {
                let labels = meta.labels.clone().unwrap_or_default();
                let ours = |s: &DaemonSet| {
                    s.metadata.namespace.as_ref() == Some(&namespace)
                        && s.spec.as_ref().is_some_and(|s| selects(&s.selector, &labels))
                };
                of_pod.list().into_iter().filter(|s| ours(s)).map(|s| key_of(&*s)).collect()
            }
        }
    }));
    s.tasks.spawn(feed(node_deltas, queue.clone(), move |d| {
        // A node's status says nothing of where Pods belong, and changes every few seconds.
        let moved = match d {
            Delta::Applied { old: Some(old), new } => {
                old.metadata.labels != new.metadata.labels
                    || old.spec.as_ref().map(|s| &s.taints) != new.spec.as_ref().map(|s| &s.taints)
            }
            _ => true,
        };
        if moved { sets.list().iter().map(|s| key_of(&**s)).collect() } else { Vec::new() }
    }));
    let events = s.events("daemonset-controller");
    s.drive(DaemonSets::new(s.client.clone(), events, nodes, s.clock), queue);
}
