//! Starts the controllers of storage and says which change concerns which key.

use std::sync::Arc;

use podlab_api::{
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{CSIDriver, StorageClass, VolumeAttachment},
};
use podlab_client::reflector::{Cache, Delta};

use super::{
    attach::{Attach, Seen},
    claims::Claims,
    ephemeral::EphemeralVolumes,
    persistent::Volumes,
    protect::{ClaimProtection, VolumeProtection},
    suit::{claim_ref, class_of_claim, is_for, suits, volume_name},
};
use crate::{
    run::Starter,
    work::{Key, Queue, feed, key_of},
};

/// Starts them all.
pub(crate) fn start(s: &mut Starter) {
    let (claims, claim_deltas) = s.follow::<PersistentVolumeClaim>();
    let (_, volume_deltas) = s.follow::<PersistentVolume>();
    let (_, class_deltas) = s.follow::<StorageClass>();
    let (pods, pod_deltas) = s.follow_pods();
    let (claim_queue, volume_queue) = (Queue::default(), Queue::default());
    let (claim_protection, volume_protection, ephemeral) = (Queue::default(), Queue::default(), Queue::default());

    let (volumes_of, protection) = (volume_queue.clone(), claim_protection.clone());
    s.tasks.spawn(feed(claim_deltas, claim_queue.clone(), move |d| {
        let claim = d.object();
        let name = volume_name(claim);
        if !name.is_empty() {
            volumes_of.add((String::new(), name.to_owned()));
        }
        protection.add(key_of(&**claim));
        vec![key_of(&**claim)]
    }));
    let (claims_of, protection, known) = (claim_queue.clone(), volume_protection.clone(), claims.clone());
    s.tasks.spawn(feed(volume_deltas, volume_queue.clone(), move |d| {
        for key in claims_concerned(&known, d) {
            claims_of.add(key);
        }
        protection.add(key_of(&**d.object()));
        vec![key_of(&**d.object())]
    }));
    s.tasks.spawn(feed(class_deltas, claim_queue.clone(), move |d| {
        let fresh = matches!(d, Delta::Applied { old: None, .. });
        let name = d.object().metadata.name.clone().unwrap_or_default();
        let waiting = |c: &Arc<PersistentVolumeClaim>| {
            volume_name(c).is_empty() && (class_of_claim(c) == name || class_of_claim(c).is_empty())
        };
        claims.list().into_iter().filter(|c| fresh && waiting(c)).map(|c| key_of(&*c)).collect()
    }));
    let ephemeral_of = ephemeral.clone();
    s.tasks.spawn(feed(pod_deltas, claim_protection.clone(), move |d| {
        let pod = d.object();
        let has = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|v| v.ephemeral.is_some());
        if has && matches!(d, Delta::Applied { old: None, .. }) {
            ephemeral_of.add(key_of(&**pod));
        }
        ClaimProtection::concerned(pod)
    }));

    attaching(s);
    let client = s.client.clone();
    let events = s.events("persistentvolume-controller");
    s.drive(Claims { client: client.clone(), events: events.clone(), pods }, claim_queue.clone());
    s.drive(Volumes { client: client.clone(), events, claims: claim_queue }, volume_queue);
    s.drive(ClaimProtection { client: client.clone() }, claim_protection);
    s.drive(VolumeProtection { client: client.clone() }, volume_protection);
    let events = s.events("ephemeral_volume");
    s.drive(EphemeralVolumes { client, events }, ephemeral);
}

/// The claims a volume's change concerns: its own, those that name it, and those it now suits.
fn claims_concerned(claims: &Cache<PersistentVolumeClaim>, delta: &Delta<PersistentVolume>) -> Vec<Key> {
    let volume = delta.object();
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let mut keys: Vec<Key> = claim_ref(volume)
        .map(|r| (r.namespace.clone().unwrap_or_default(), r.name.clone().unwrap_or_default()))
        .into_iter()
        .collect();
    let present = matches!(delta, Delta::Applied { .. });
    for claim in claims.list() {
        let free = volume_name(&claim).is_empty();
        if volume_name(&claim) == name || (present && free && (suits(volume, &claim) || is_for(volume, &claim))) {
            keys.push(key_of(&*claim));
        }
    }
    keys
}

/// Attach and detach, by node.
fn attaching(s: &mut Starter) {
    let (pods, pod_deltas) = s.follow_pods();
    let (claims, claim_deltas) = s.follow::<PersistentVolumeClaim>();
    let (volumes, _) = s.follow::<PersistentVolume>();
    let (drivers, _) = s.follow::<CSIDriver>();
    let (attachments, attachment_deltas) = s.follow::<VolumeAttachment>();
    let (_, node_deltas) = s.follow::<Node>();
    let queue = Queue::default();
    let node = |name: Option<&str>| name.filter(|n| !n.is_empty()).map(|n| (String::new(), n.to_owned()));
    let node_of = move |p: &Pod| node(p.spec.as_ref().and_then(|s| s.node_name.as_deref()));
    s.tasks.spawn(feed(pod_deltas, queue.clone(), move |d| {
        let pod = d.object();
        if ClaimProtection::concerned(pod).is_empty() { Vec::new() } else { node_of(pod).into_iter().collect() }
    }));
    let known = pods.clone();
    s.tasks.spawn(feed(claim_deltas, queue.clone(), move |d| {
        known.list().into_iter().filter(|p| super::protect::uses(p, d.object())).filter_map(|p| node_of(&p)).collect()
    }));
    // A volume that leaves one node may be what another waits for: that one looks again by itself.
    s.tasks.spawn(feed(attachment_deltas, queue.clone(), move |d| {
        node(Some(&d.object().spec.node_name)).into_iter().collect()
    }));
    s.tasks.spawn(feed(node_deltas, queue.clone(), move |d| {
        let held = |n: &Node| n.status.as_ref().map(|s| (s.volumes_in_use.clone(), s.volumes_attached.clone()));
        let news = match d {
            Delta::Applied { old: Some(old), new } => held(old) != held(new) || old.spec != new.spec,
            _ => true,
        };
        node(d.object().metadata.name.as_deref().filter(|_| news)).into_iter().collect()
    }));
    let events = s.events("attachdetach-controller");
    let seen = Seen { pods, claims, volumes, drivers, attachments };
    s.drive(Attach::new(s.client.clone(), events, s.clock, seen), queue);
}
