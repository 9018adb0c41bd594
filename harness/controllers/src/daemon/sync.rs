//! One pass over one DaemonSet.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use podlab_api::{
    ApiError,
    apps::{DaemonSet, DaemonSetStatus},
    core::{Node, Pod},
    jiff::Timestamp,
};
use podlab_client::{
    Client, DeleteOptions,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};
use podlab_clock::{Clock, Mono};

use super::{
    node::{Finding, Fit, fit, is_available, is_new, node_of, pod_for, rank, todo},
    rolling::moves,
};
use crate::{
    claim_pods::{Claimer, claim, ignore_missing},
    replicaset::{owner, ready_since},
    revision::{History, Parent, hash_of},
    work::{Again, Key, Reconcile},
};

/// Pause before the next failed Pod of a node is deleted; doubles up to [`FAILED_MAX`].
/// Source: k/k cmd/kube-controller-manager/app/apps.go.
const FAILED: Duration = Duration::from_secs(1);
const FAILED_MAX: Duration = Duration::from_secs(15 * 60);

/// Last deletion and pause of a failed Pod, by set and node.
type Rests = BTreeMap<(String, String), (Mono, Duration)>;

/// The controller.
pub(crate) struct DaemonSets {
    client: Client,
    events: EventRecorder,
    nodes: Cache<Node>,
    clock: Clock,
    rests: Mutex<Rests>,
}

/// What one pass works on.
struct View {
    ds: DaemonSet,
    hash: String,
    fits: BTreeMap<String, Fit>,
    by_node: BTreeMap<String, Vec<Pod>>,
    /// Pods that are meant for nodes which are not there, and on none yet.
    stray: Vec<String>,
}

#[async_trait]
impl Reconcile for DaemonSets {
    fn name(&self) -> &'static str {
        "daemonset"
    }

    async fn reconcile(&self, (namespace, name): &Key) -> Result<Again, ApiError> {
        self.nodes.wait_synced().await;
        let Some(ds) = self.client.namespaced::<DaemonSet>(namespace).get_opt(name).await? else {
            return Ok(Again::OnChange);
        };
        let Some(spec) = ds.spec.clone() else { return Ok(Again::OnChange) };
        if ds.metadata.deletion_timestamp.is_some() {
            return Ok(Again::OnChange);
        }
        let owner = owner("apps/v1", "DaemonSet", &ds.metadata);
        let collisions = ds.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let parent = Parent { meta: &ds.metadata, owner: owner.clone(), template: &spec.template, collisions };
        let history = History::of(&self.client, &parent).await?;
        let hash = hash_of(&history.current);
        let view = self.look(ds, owner, hash).await?;
        let (changed, mut again, done) = self.manage(&view).await;
        let done = match done {
            Ok(()) if !changed => self.roll(&view).await,
            other => other,
        };
        let view = self.look_again(view).await?;
        let used = view.by_node.values().flatten().map(|p| p.metadata.labels.clone().unwrap_or_default());
        let used: Vec<_> = used.filter_map(|mut l| l.remove(crate::revision::HASH)).collect();
        if done.is_ok() {
            history.truncate(&self.client, spec.revision_history_limit, |r| used.contains(&hash_of(r))).await?;
        }
        let waits = self.write_status(&view, history.collisions).await?;
        if let Some(rest) = waits {
            again = Again::After(if let Again::After(d) = again { d.min(rest) } else { rest });
        }
        done.map(|()| again)
    }
}

impl DaemonSets {
    pub(crate) fn new(client: Client, events: EventRecorder, nodes: Cache<Node>, clock: Clock) -> Self {
        Self { client, events, nodes, clock, rests: Mutex::default() }
    }

    async fn look(
        &self,
        ds: DaemonSet,
        owner: podlab_api::meta::OwnerReference,
        hash: String,
    ) -> Result<View, ApiError> {
        let selector = ds.spec.as_ref().map(|s| s.selector.clone()).unwrap_or_default();
        let pods = claim(&self.client, &Claimer { meta: &ds.metadata, selector: &selector, owner }, |_| true).await?;
        let nodes = self.nodes.list();
        let name = |n: &Node| n.metadata.name.clone().unwrap_or_default();
        let fits: BTreeMap<String, Fit> = nodes.iter().map(|n| (name(n), fit(&ds, n))).collect();
        let (mut by_node, mut stray) = (BTreeMap::<String, Vec<Pod>>::new(), Vec::new());
        for pod in pods {
            let Some(node) = node_of(&pod) else { continue };
            let bound = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
            if !bound && !fits.contains_key(&node) {
                stray.push(pod.metadata.name.clone().unwrap_or_default());
            }
            by_node.entry(node).or_default().push(pod);
        }
        Ok(View { ds, hash, fits, by_node, stray })
    }

    async fn look_again(&self, view: View) -> Result<View, ApiError> {
        let owner = owner("apps/v1", "DaemonSet", &view.ds.metadata);
        self.look(view.ds, owner, view.hash).await
    }

    /// One Pod where one belongs and none where none does; whether that changed anything, and when to look again.
    async fn manage(&self, view: &View) -> (bool, Again, Result<(), ApiError>) {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let (mut create, mut delete, mut again) = (Vec::new(), view.stray.clone(), Again::OnChange);
        let uid = view.ds.metadata.uid.clone().unwrap_or_default();
        for (node, fit) in &view.fits {
            let key = (uid.clone(), node.clone());
            let rest = self.rests.lock().get(&key).map(|(at, rest)| rest.saturating_sub(now.since(*at)));
            let rest = rest.filter(|r| !r.is_zero());
            let pods = view.by_node.get(node);
            let todo = todo(&view.ds, *fit, pods, &view.hash, wall, rest.is_some());
            let waiting = pods
                .into_iter()
                .flatten()
                .any(|p| super::node::phase(p) == "Failed" && p.metadata.deletion_timestamp.is_none());
            if let Some(rest) = rest.filter(|_| waiting) {
                again = Again::After(if let Again::After(d) = again { d.min(rest) } else { rest });
            }
            if todo.create {
                create.push(node.clone());
            }
            for (name, finding) in todo.delete {
                if let Some(finding) = finding {
                    self.say(view, finding, node, &name);
                }
                if finding == Some(Finding::Failed) {
                    let mut rests = self.rests.lock();
                    let before = rests.get(&key).map_or(Duration::ZERO, |(_, rest)| *rest);
                    rests.insert(key.clone(), (now, (before * 2).clamp(FAILED, FAILED_MAX)));
                }
                delete.push(name);
            }
        }
        let changed = !create.is_empty() || !delete.is_empty();
        (changed, again, self.apply(view, &create, &delete).await)
    }

    fn say(&self, view: &View, finding: Finding, node: &str, pod: &str) {
        let namespace = view.ds.metadata.namespace.clone().unwrap_or_default();
        let (kind, reason, text) = match finding {
            Finding::Failed => (
                EventType::Warning,
                "FailedDaemonPod",
                format!("Found failed daemon pod {namespace}/{pod} on node {node}, will try to kill it"),
            ),
            Finding::Succeeded => (
                EventType::Normal,
                "SucceededDaemonPod",
                format!("Found succeeded daemon pod {namespace}/{pod} on node {node}, will try to delete it"),
            ),
        };
        self.events.event(reference(&view.ds), kind, reason, text);
    }

    async fn roll(&self, view: &View) -> Result<(), ApiError> {
        let strategy = view.ds.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return Ok(());
        }
        let moves = moves(&view.ds, &view.fits, &view.by_node, &view.hash, self.clock.wall());
        self.apply(view, &moves.create_on, &moves.delete).await
    }

    async fn apply(&self, view: &View, create_on: &[String], delete: &[String]) -> Result<(), ApiError> {
        let namespace = view.ds.metadata.namespace.clone().unwrap_or_default();
        let api = self.client.namespaced::<Pod>(&namespace);
        let say = |kind, reason, text| self.events.event(reference(&view.ds), kind, reason, text);
        for node in create_on {
            match api.create(&pod_for(&view.ds, node, &view.hash)).await {
                Ok(made) => {
                    let text = format!("Created pod: {}", made.metadata.name.unwrap_or_default());
                    say(EventType::Normal, "SuccessfulCreate", text);
                }
                Err(e) => {
                    say(EventType::Warning, "FailedCreate", format!("Error creating: {}", e.message));
                    return Err(e);
                }
            }
        }
        for name in delete {
            match ignore_missing(api.delete(name, &DeleteOptions::default()).await) {
                Ok(_) => say(EventType::Normal, "SuccessfulDelete", format!("Deleted pod: {name}")),
                Err(e) => {
                    say(EventType::Warning, "FailedDelete", format!("Error deleting: {}", e.message));
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Writes what there is; when to look again because a Pod has yet to be Ready for long enough.
    async fn write_status(&self, view: &View, collisions: i32) -> Result<Option<Duration>, ApiError> {
        let old = view.ds.status.clone().unwrap_or_default();
        let min_ready = view.ds.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
        let mut status = count(view, min_ready, self.clock.wall());
        status.observed_generation = view.ds.metadata.generation;
        status.collision_count = Some(collisions).filter(|n| *n > 0).or(old.collision_count);
        status.conditions.clone_from(&old.conditions);
        let waits = (status.number_ready > status.number_available.unwrap_or(0) && min_ready > 0)
            .then(|| Duration::from_secs(1));
        if normal(&old) != normal(&status) {
            let namespace = view.ds.metadata.namespace.clone().unwrap_or_default();
            let mut changed = view.ds.clone();
            changed.metadata.resource_version = None;
            changed.status = Some(status);
            ignore_missing(self.client.namespaced::<DaemonSet>(&namespace).update_status(&changed).await)?;
        }
        Ok(waits)
    }
}

/// Absent counts are zero.
fn normal(s: &DaemonSetStatus) -> DaemonSetStatus {
    let zero = |n: Option<i32>| Some(n.unwrap_or(0));
    DaemonSetStatus {
        number_available: zero(s.number_available),
        number_unavailable: zero(s.number_unavailable),
        updated_number_scheduled: zero(s.updated_number_scheduled),
        ..s.clone()
    }
}

/// The counts. Source: updateDaemonSetStatus.
fn count(view: &View, min_ready: i32, now: Timestamp) -> DaemonSetStatus {
    let mut s = DaemonSetStatus::default();
    let (mut updated, mut available) = (0, 0);
    for (node, fit) in &view.fits {
        let first = view.by_node.get(node).and_then(|pods| pods.iter().min_by_key(|p| rank(p)));
        if *fit != Fit::Runs {
            s.number_misscheduled += i32::from(first.is_some());
            continue;
        }
        s.desired_number_scheduled += 1;
        let Some(pod) = first else { continue };
        s.current_number_scheduled += 1;
        s.number_ready += i32::from(ready_since(pod).is_some());
        available += i32::from(is_available(pod, min_ready, now));
        updated += i32::from(is_new(pod, &view.hash));
    }
    let positive = |n: i32| Some(n).filter(|n| *n > 0);
    s.updated_number_scheduled = positive(updated);
    s.number_available = positive(available);
    s.number_unavailable = positive(s.desired_number_scheduled - available);
    s
}
