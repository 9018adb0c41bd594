//! The next step of a set. Pure.
//!
//! ```text
//! OrderedReady:  for each wanted ordinal, first to last:  ended → delete · missing → create · not available → wait
//!                then for each one too many, last to first: delete one, wait until it is gone
//!                then for an update, last to first: delete an old one as long as not too many are unavailable
//! Parallel:      the same without waiting in the first two
//! ```
//! Source: k/k pkg/controller/statefulset/stateful_set_control.go.

use std::{collections::BTreeMap, time::Duration};

use podlab_api::{
    apps::StatefulSet, core::Pod, jiff::Timestamp, k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
};

use super::pod::{first, has_identity, in_range, ordinal_in, revision, wanted};
use crate::{deployment::resolve, replicaset::ready_since};

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// Make the Pod of an ordinal, its claims first.
    Create(i32),
    /// Make the claims a Pending Pod waits for.
    Claims(i32),
    /// Delete a Pod by name.
    Delete(String),
    /// Give a Pod its labels back.
    Identify(String),
}

/// What to do now, and when to look again without a change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) acts: Vec<Act>,
    pub(super) again: Option<Duration>,
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && ready_since(pod).is_some()
}

/// How long until it has been Ready for long enough; `None` when it is not Ready.
fn left(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<Duration> {
    let since = ready_since(pod).filter(|_| phase(pod) == "Running")?;
    let left = i64::from(min_ready) - (now.as_second() - since.as_second());
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

pub(super) fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    left(pod, min_ready, now).is_some_and(|d| d.is_zero())
}

/// Plans. `update` is the name of the revision that is wanted.
pub(super) fn plan(set: &StatefulSet, pods: &[Pod], update: &str, now: Timestamp) -> Plan {
    let mut planner = Planner::new(set, pods, now);
    if !planner.keep() && !planner.shrink() {
        planner.renew(update);
    }
    planner.plan
}

struct Planner<'a> {
    set: &'a StatefulSet,
    wanted: BTreeMap<i32, Option<&'a Pod>>,
    /// One too many, the last first.
    condemned: Vec<&'a Pod>,
    ordered: bool,
    min_ready: i32,
    now: Timestamp,
    plan: Plan,
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

impl<'a> Planner<'a> {
    fn new(set: &'a StatefulSet, pods: &'a [Pod], now: Timestamp) -> Self {
        let spec = set.spec.as_ref();
        let mut by_ordinal: BTreeMap<i32, &Pod> = pods.iter().filter_map(|p| Some((ordinal_in(set, p)?, p))).collect();
        let range = first(set)..first(set).saturating_add(wanted(set));
        let wanted = range.map(|n| (n, by_ordinal.remove(&n))).collect();
        let condemned = by_ordinal.into_iter().rev().filter(|(n, _)| !in_range(set, *n)).map(|(_, p)| p).collect();
        Self {
            set,
            wanted,
            condemned,
            ordered: spec.and_then(|s| s.pod_management_policy.as_deref()) != Some("Parallel"),
            min_ready: spec.and_then(|s| s.min_ready_seconds).unwrap_or(0),
            now,
            plan: Plan::default(),
        }
    }

    fn unavailable(&self, pod: Option<&Pod>) -> bool {
        pod.is_none_or(|p| !is_available(p, self.min_ready, self.now) || terminating(p))
    }

    /// Wanted ones, the first first; true when the pass ends here.
    fn keep(&mut self) -> bool {
        for (ordinal, pod) in self.wanted.clone() {
            let Some(pod) = pod else {
                self.plan.acts.push(Act::Create(ordinal));
                if self.ordered {
                    return true;
                }
                continue;
            };
            if matches!(phase(pod), "Failed" | "Succeeded") {
                if !terminating(pod) {
                    self.plan.acts.push(Act::Delete(name(pod)));
                }
                // The next one is made once this one has gone.
                if self.ordered {
                    return true;
                }
                continue;
            }
            if phase(pod) == "Pending" {
                self.plan.acts.push(Act::Claims(ordinal));
            }
            if self.ordered && terminating(pod) {
                return true;
            }
            match left(pod, self.min_ready, self.now) {
                Some(left) if left.is_zero() => {}
                Some(left) => {
                    self.look_after(left);
                    if self.ordered {
                        return true;
                    }
                }
                None if self.ordered => return true,
                None => {}
            }
            if !has_identity(pod) && !terminating(pod) {
                self.plan.acts.push(Act::Identify(name(pod)));
            }
        }
        false
    }

    fn look_after(&mut self, left: Duration) {
        self.plan.again = Some(self.plan.again.map_or(left, |a| a.min(left)));
    }

    /// Those that are too many, the last first; true when the pass ends here.
    fn shrink(&mut self) -> bool {
        let sick = self.wanted.values().flatten().copied().find(|p| self.unavailable(Some(p)));
        let sick = sick.or_else(|| self.condemned.iter().rev().copied().find(|p| self.unavailable(Some(p))));
        for pod in self.condemned.clone() {
            if terminating(pod) {
                if self.ordered {
                    return true;
                }
                continue;
            }
            // All others have to be well before one goes, but the sick one itself may.
            if self.ordered && self.unavailable(Some(pod)) && sick.is_none_or(|s| !std::ptr::eq(s, pod)) {
                return true;
            }
            self.plan.acts.push(Act::Delete(name(pod)));
            if self.ordered {
                return true;
            }
        }
        false
    }

    /// Replaces Pods of other revisions, the last first.
    fn renew(&mut self, update: &str) {
        let strategy = self.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let partition = usize::try_from(rolling.and_then(|r| r.partition).unwrap_or(0)).unwrap_or(0);
        let most = max_unavailable(rolling.and_then(|r| r.max_unavailable.as_ref()), wanted(self.set));
        let replicas: Vec<Option<&Pod>> = self.wanted.values().copied().collect();
        let unavailable = replicas.iter().filter(|p| self.unavailable(**p)).count();
        let outdated = replicas.iter().skip(partition).rev().copied().flatten();
        let outdated = outdated.filter(|p| revision(p) != update && !terminating(p));
        let acts: Vec<Act> = outdated.take(most.saturating_sub(unavailable)).map(|p| Act::Delete(name(p))).collect();
        self.plan.acts.extend(acts);
    }
}

/// At least one, or an update would never move. Source: getStatefulSetMaxUnavailable.
fn max_unavailable(value: Option<&IntOrString>, replicas: i32) -> usize {
    let n = value.map_or(1, |v| resolve(Some(v), "1", replicas, false));
    usize::try_from(n).unwrap_or(1).max(1)
}
