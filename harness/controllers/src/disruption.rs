//! Disruption budgets: how many Pods are healthy, and how many may go. Source: k/k pkg/controller/disruption.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    apps::{ReplicaSet, StatefulSet},
    core::{Pod, ReplicationController},
    jiff::{SignedDuration, Timestamp},
    k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
    matching::selects,
    meta::{Condition, Time},
    policy::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use podlab_client::{
    Client, ListOptions,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};
use podlab_clock::Clock;

use crate::work::{Again, Key, Reconcile, key_of};

/// How long an approved eviction counts as a disruption while its Pod is not seen to go.
const DELETION: SignedDuration = SignedDuration::from_secs(120);

/// The controller.
pub(crate) struct Disruption {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
}

/// What a budget asks for: how many Pods must be healthy, and how many there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    expected: i32,
    desired: i32,
}

fn is_ready(pod: &Pod) -> bool {
    pod.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == "Ready" && c.status == "True")
}

/// A number, or a share of `total` rounded up.
fn scaled(value: &IntOrString, total: i32) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(total) + 99) / 100).unwrap_or(i32::MAX)
        }
    }
}

/// How many disruptions a budget allows.
fn allowed(healthy: i32, wanted: Wanted) -> i32 {
    if wanted.expected <= 0 { 0 } else { (healthy - wanted.desired).max(0) }
}

#[async_trait]
impl Reconcile for Disruption {
    fn name(&self) -> &'static str {
        "disruption"
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        let Some(budget) = self.client.namespaced::<PodDisruptionBudget>(&key.0).get_opt(&key.1).await? else {
            return Ok(Again::OnChange);
        };
        let selector = budget.spec.as_ref().and_then(|s| s.selector.clone());
        let (all, _) = self.client.namespaced::<Pod>(&key.0).list(&ListOptions::default()).await?;
        let pods: Vec<Pod> = all
            .into_iter()
            .filter(|p| selector.as_ref().is_some_and(|s| selects(s, &p.metadata.labels.clone().unwrap_or_default())))
            .collect();
        if pods.is_empty() {
            self.events.event(reference(&budget), EventType::Normal, "NoPods", "No matching pods found");
        }
        let wanted = match self.wanted(&budget, &pods).await? {
            Ok(wanted) => wanted,
            Err(why) => {
                let note = format!("Failed to calculate the number of expected pods: {why}");
                self.events.event(reference(&budget), EventType::Warning, "CalculateExpectedPodCountFailed", note);
                return self.fail_safe(budget, &why).await;
            }
        };
        let now = self.clock.wall_secs();
        let (disrupted, next) = disrupted(&budget, &pods, now);
        let healthy = pods.iter().filter(|p| is_ready(p) && p.metadata.deletion_timestamp.is_none());
        let healthy = healthy.filter(|p| !disrupted.contains_key(p.metadata.name.as_deref().unwrap_or_default()));
        let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
        let allowed = allowed(healthy, wanted);
        let (status, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let new = PodDisruptionBudgetStatus {
            conditions: Some(condition(&budget, status, reason, "", now)),
            current_healthy: Some(healthy),
            desired_healthy: Some(wanted.desired),
            disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
            disruptions_allowed: Some(allowed),
            expected_pods: Some(wanted.expected),
            observed_generation: budget.metadata.generation,
        };
        self.write(budget, new).await?;
        Ok(next.map_or(Again::OnChange, Again::After))
    }
}

/// Evictions that were approved and whose Pods are still there, and when the first of them is given up.
fn disrupted(budget: &PodDisruptionBudget, pods: &[Pod], now: Timestamp) -> (BTreeMap<String, Time>, Option<Duration>) {
    let (mut kept, mut next) = (BTreeMap::new(), None);
    let noted = budget.status.iter().flat_map(|s| s.disrupted_pods.iter().flatten());
    for (name, at) in noted {
        let left = DELETION - now.duration_since(at.0);
        let there =
            pods.iter().any(|p| p.metadata.name.as_ref() == Some(name) && p.metadata.deletion_timestamp.is_none());
        if there && left.is_positive() {
            kept.insert(name.clone(), at.clone());
            let left = left.unsigned_abs();
            next = Some(next.map_or(left, |n: Duration| n.min(left)));
        }
    }
    (kept, next)
}

fn condition(
    budget: &PodDisruptionBudget,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all = budget.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let old = all
        .iter()
        .find(|c| c.type_ == "DisruptionAllowed")
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    all.retain(|c| c.type_ != "DisruptionAllowed");
    all.push(Condition {
        type_: "DisruptionAllowed".into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: old.unwrap_or(Time(now)),
        observed_generation: budget.metadata.generation,
    });
    all
}

impl Disruption {
    /// The numbers, or why there are none.
    async fn wanted(&self, budget: &PodDisruptionBudget, pods: &[Pod]) -> Result<Result<Wanted, String>, ApiError> {
        let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        let Some(spec) = &budget.spec else { return Ok(Ok(Wanted { expected: 0, desired: 0 })) };
        match (&spec.max_unavailable, &spec.min_available) {
            (Some(most), _) => Ok(self
                .scale(budget, pods)
                .await?
                .map(|expected| Wanted { expected, desired: (expected - scaled(most, expected)).max(0) })),
            (None, Some(IntOrString::Int(n))) => Ok(Ok(Wanted { expected: count, desired: *n })),
            (None, Some(share)) => Ok(self
                .scale(budget, pods)
                .await?
                .map(|expected| Wanted { expected, desired: scaled(share, expected) })),
            (None, None) => Ok(Ok(Wanted { expected: count, desired: 1 })),
        }
    }

    /// How many Pods the controllers of these Pods want in all.
    async fn scale(&self, budget: &PodDisruptionBudget, pods: &[Pod]) -> Result<Result<i32, String>, ApiError> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        let mut unmanaged = Vec::new();
        for pod in pods {
            let (namespace, name) = key_of(pod);
            let Some(owner) = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))
            else {
                unmanaged.push(name);
                continue;
            };
            if scales.contains_key(&owner.uid) {
                continue;
            }
            let replicas = match owner.kind.as_str() {
                "ReplicaSet" => {
                    let found = self.client.namespaced::<ReplicaSet>(&namespace).get_opt(&owner.name).await?;
                    let deployment = found.as_ref().and_then(|r| {
                        r.metadata.owner_references.iter().flatten().find(|o| o.kind == "Deployment").cloned()
                    });
                    if let Some(d) = deployment {
                        let found =
                            self.client.namespaced::<podlab_api::apps::Deployment>(&namespace).get_opt(&d.name).await?;
                        if let Some(n) = found.and_then(|d| d.spec?.replicas) {
                            scales.insert(d.uid, n);
                        }
                        continue;
                    }
                    found.and_then(|r| r.spec?.replicas)
                }
                "StatefulSet" => self
                    .client
                    .namespaced::<StatefulSet>(&namespace)
                    .get_opt(&owner.name)
                    .await?
                    .and_then(|s| s.spec?.replicas),
                "ReplicationController" => self
                    .client
                    .namespaced::<ReplicationController>(&namespace)
                    .get_opt(&owner.name)
                    .await?
                    .and_then(|s| s.spec?.replicas),
                kind => {
                    return Ok(Err(format!(
                        "{} does not implement the scale subresource",
                        kind.to_lowercase() + "s." + group(&owner.api_version)
                    )));
                }
            };
            if let Some(n) = replicas {
                scales.insert(owner.uid.clone(), n);
            }
        }
        if !unmanaged.is_empty() {
            let note = format!(
                "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the PDB cannot \
                 be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" \
                 field of the PDB to an integer value.",
                selector_text(budget)
            );
            self.events.event(reference(budget), EventType::Warning, "UnmanagedPods", note);
        }
        Ok(Ok(scales.values().sum()))
    }

    /// Nothing may go while the numbers are unknown.
    async fn fail_safe(&self, budget: PodDisruptionBudget, why: &str) -> Result<Again, ApiError> {
        let now = self.clock.wall_secs();
        let old = budget.status.clone().unwrap_or_default();
        let conditions = Some(condition(&budget, "False", "SyncFailed", why, now));
        let new = PodDisruptionBudgetStatus {
            disruptions_allowed: Some(0),
            conditions,
            observed_generation: budget.metadata.generation,
            ..old
        };
        self.write(budget, new).await.map(|()| Again::OnChange)
    }

    async fn write(&self, budget: PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> Result<(), ApiError> {
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = budget.metadata.namespace.clone().unwrap_or_default();
        let new = PodDisruptionBudget { status: Some(status), ..budget };
        match self.client.namespaced::<PodDisruptionBudget>(&namespace).update_status(&new).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// The budgets a Pod's change concerns.
    pub(crate) fn concerned(budgets: &Cache<PodDisruptionBudget>, old: Option<&Pod>, new: &Pod) -> Vec<Key> {
        let labels: Vec<_> =
            old.into_iter().chain([new]).map(|p| p.metadata.labels.clone().unwrap_or_default()).collect();
        let covers = |b: &PodDisruptionBudget| {
            let selector = b.spec.as_ref().and_then(|s| s.selector.as_ref());
            b.metadata.namespace == new.metadata.namespace
                && selector.is_some_and(|s| labels.iter().any(|l| selects(s, l)))
        };
        budgets.list().into_iter().filter(|b| covers(b)).map(|b| key_of(&*b)).collect()
    }
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn selector_text(budget: &PodDisruptionBudget) -> String {
    let labels = budget.spec.as_ref().and_then(|s| s.selector.as_ref()?.match_labels.clone()).unwrap_or_default();
    labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_up_and_no_pods_allow_nothing() {
        let percent = |p: &str| IntOrString::String(p.to_owned());
        assert_eq!(scaled(&percent("50%"), 3), 2);
        assert_eq!(scaled(&percent("0%"), 3), 0);
        assert_eq!(scaled(&IntOrString::Int(4), 3), 4);
        assert_eq!(allowed(3, Wanted { expected: 3, desired: 2 }), 1);
        assert_eq!(allowed(1, Wanted { expected: 3, desired: 2 }), 0);
        assert_eq!(allowed(0, Wanted { expected: 0, desired: 0 }), 0);
    }
}
