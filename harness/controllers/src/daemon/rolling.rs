//! An update over all nodes: which old Pods go and where new ones come first. Pure.
//! Source: k/k pkg/controller/daemon/update.go rollingUpdate.

use std::collections::BTreeMap;

use podlab_api::{apps::DaemonSet, core::Pod, jiff::Timestamp};

use super::node::{Fit, is_available, is_new};
use crate::deployment::resolve;

/// Pods to delete, by name, and nodes to put a new one on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    pub(super) delete: Vec<String>,
    pub(super) create_on: Vec<String>,
}

/// Surge and unavailability of an update, of `desired` nodes.
pub(super) fn limits(ds: &DaemonSet, desired: i32) -> (i32, i32) {
    let strategy = ds.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
        return (0, 0);
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let surge = rolling.and_then(|r| r.max_surge.as_ref()).map_or(0, |v| resolve(Some(v), "0", desired, true));
    let unavailable =
        rolling.and_then(|r| r.max_unavailable.as_ref()).map_or(1, |v| resolve(Some(v), "1", desired, true));
    // Neither would never move.
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// New and old Pod of a node; `None` when there are too many of one kind.
fn pair<'a>(pods: &'a [Pod], hash: &str) -> Option<(Option<&'a Pod>, Option<&'a Pod>)> {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let slot = if is_new(pod, hash) { &mut new } else { &mut old };
        if slot.replace(pod).is_some() {
            return None;
        }
    }
    Some((new, old))
}

/// The next moves of an update. Nodes whose Pods are being handled count as unavailable, so that an update waits for them.
pub(super) fn moves(
    ds: &DaemonSet,
    fits: &BTreeMap<String, Fit>,
    by_node: &BTreeMap<String, Vec<Pod>>,
    hash: &str,
    now: Timestamp,
) -> Moves {
    let desired = i32::try_from(fits.values().filter(|f| **f == Fit::Runs).count()).unwrap_or(i32::MAX);
    let (surge, unavailable) = limits(ds, desired);
    let min_ready = ds.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let available = |p: &Pod| is_available(p, min_ready, now);
    let name = |p: &Pod| p.metadata.name.clone().unwrap_or_default();
    let count = |n: i32| usize::try_from(n).unwrap_or(0);
    let mut moves = Moves::default();
    let mut candidates = Vec::new();
    let mut busy = 0;
    if surge == 0 {
        for pods in by_node.values() {
            match pair(pods, hash) {
                None | Some((None, None) | (Some(_), Some(_))) => busy += 1,
                Some((Some(new), None)) => busy += i32::from(!available(new)),
                Some((None, Some(old))) if !available(old) => {
                    moves.delete.push(name(old));
                    busy += 1;
                }
                Some((None, Some(old))) => candidates.push(name(old)),
            }
        }
        moves.delete.extend(candidates.into_iter().take(count(unavailable - busy)));
        return moves;
    }
    let (mut serving, mut misplaced) = (0, Vec::new());
    for (node, pods) in by_node {
        let Some((new, old)) = pair(pods, hash) else {
            busy += 1;
            continue;
        };
        serving += i32::from(old.or(new).is_some_and(available));
        let runs = fits.get(node) == Some(&Fit::Runs);
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) if !available(old) && runs => moves.create_on.push(node.clone()),
            (None, Some(old)) if !available(old) => moves.delete.push(name(old)),
            (None, Some(old)) if !runs => misplaced.push(name(old)),
            (None, Some(_)) => candidates.push(node.clone()),
            (Some(new), Some(old)) if available(new) => moves.delete.push(name(old)),
            (Some(_), Some(_)) => busy += 1,
        }
    }
    moves.delete.extend(misplaced.into_iter().take(count(serving - desired)));
    moves.create_on.extend(candidates.into_iter().take(count(surge - busy)));
    moves
}
