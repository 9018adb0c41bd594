//! Starts the StatefulSet controller.

use podlab_api::{apps::StatefulSet, core::PersistentVolumeClaim, matching::selects};

use super::{pod::parent_and_ordinal, sync::StatefulSets};
use crate::{
    run::Starter,
    work::{Queue, feed, key_of},
};

/// Starts it.
pub(crate) fn start(s: &mut Starter) {
    let (sets, deltas) = s.follow::<StatefulSet>();
    let (_, pods) = s.follow_pods();
    let (_, claims) = s.follow::<PersistentVolumeClaim>();
    let queue = Queue::default();
    s.tasks.spawn(feed(deltas, queue.clone(), |d| vec![key_of(&**d.object())]));
    let of_claim = sets.clone();
    s.tasks.spawn(feed(pods, queue.clone(), move |d| {
        let meta = &d.object().metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        match meta.owner_references.iter().flatten().find(|o| o.controller == Some(true)) {
            Some(o) if o.kind == "StatefulSet" => vec![(namespace, o.name.clone())],
            Some(_) => Vec::new(),
            None => {
                let labels = meta.labels.clone().unwrap_or_default();
                let ours = |s: &StatefulSet| {
                    s.metadata.namespace.as_ref() == Some(&namespace)
                        && s.spec.as_ref().is_some_and(|s| selects(&s.selector, &labels))
                };
                sets.list().into_iter().filter(|s| ours(s)).map(|s| key_of(&*s)).collect()
            }
        }
    }));
    // A claim that has gone lets its Pod be made again.
    s.tasks.spawn(feed(claims, queue.clone(), move |d| {
        if !matches!(d, podlab_client::reflector::Delta::Deleted(_)) {
            return Vec::new();
        }
        let (namespace, name) = key_of(&**d.object());
        let ours = |s: &StatefulSet| {
            let set = s.metadata.name.as_deref().unwrap_or_default();
            s.metadata.namespace.as_ref() == Some(&namespace)
                && parent_and_ordinal(&name).is_some_and(|(p, _)| p.ends_with(&format!("-{set}")))
        };
        of_claim.list().into_iter().filter(|s| ours(s)).map(|s| key_of(&*s)).collect()
    }));
    let events = s.events("statefulset-controller");
    s.drive(StatefulSets { client: s.client.clone(), events, clock: s.clock }, queue);
}
