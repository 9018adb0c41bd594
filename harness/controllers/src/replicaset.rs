//! ReplicaSet and ReplicationController: as many Pods as wanted. Source: k/k pkg/controller/replicaset/replica_set.go.

use std::{cmp::Reverse, collections::BTreeMap, marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    apps::{ReplicaSet, ReplicaSetStatus},
    core::Pod,
    jiff::Timestamp,
    matching::selects,
    meta::{ObjectMeta, OwnerReference},
};
use podlab_client::{
    Client, DeleteOptions,
    events::{EventRecorder, EventType, reference},
    reflector::Cache,
};
use podlab_clock::Clock;

use crate::{
    replicated::Replicated,
    work::{Again, Key, Reconcile},
};

/// Most Pods created or deleted in one go.
const BURST: usize = 500;

/// The controller of a kind.
pub(crate) struct ReplicaSets<K> {
    client: Client,
    events: EventRecorder,
    clock: Clock,
    kind: PhantomData<fn() -> K>,
}

/// Whether `meta` is controlled by the object with this UID.
pub(crate) fn controlled_by(meta: &ObjectMeta, uid: Option<&String>) -> bool {
    let controller = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    controller.is_some_and(|o| Some(&o.uid) == uid)
}

/// A controller reference to an object.
pub(crate) fn owner(api_version: &str, kind: &str, meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn is_active(pod: &Pod) -> bool {
    !matches!(phase(pod), "Succeeded" | "Failed") && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0))
}

#[async_trait]
impl<K: Replicated> Reconcile for ReplicaSets<K> {
    fn name(&self) -> &'static str {
        K::CONTROLLER
    }

    async fn reconcile(&self, key: &Key) -> Result<Again, ApiError> {
        // The object from the API, the Pods too: acting on a stale cache would create one Pod too many.
        let Some(origin) = self.client.namespaced::<K>(&key.0).get_opt(&key.1).await? else {
            return Ok(Again::OnChange);
        };
        let set = origin.as_set();
        let Some(spec) = set.spec.clone() else { return Ok(Again::OnChange) };
        let (all, _) = self.client.namespaced::<Pod>(&key.0).list(&podlab_client::ListOptions::default()).await?;
        let mut mine = Vec::new();
        for pod in all {
            if controlled_by(&pod.metadata, set.metadata.uid.as_ref()) {
                if selects(&spec.selector, &pod.metadata.labels.clone().unwrap_or_default()) {
                    mine.push(pod);
                } else {
                    self.release(&set, &pod).await?;
                }
            } else if self.adopt(&set, &pod).await? {
                mine.push(pod);
            }
        }
        let active: Vec<&Pod> = mine.iter().filter(|p| is_active(p)).collect();
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
        let mut failure = None;
        if set.metadata.deletion_timestamp.is_none() {
            if active.len() < wanted {
                for _ in 0..(wanted - active.len()).min(BURST) {
                    if let Err(e) = self.create(&origin, &set).await {
                        self.events.event(
                            reference(&origin),
                            EventType::Warning,
                            "FailedCreate",
                            format!("Error creating: {}", e.message),
                        );
                        failure = Some(e);
                        break;
                    }
                }
            } else if active.len() > wanted {
                self.shrink(&origin, active.clone(), wanted).await?;
            }
        }
        let again = self.write_status(&origin, &set, &mine, failure.as_ref()).await?;
        failure.map_or(Ok(again), Err)
    }
}

impl<K: Replicated> ReplicaSets<K> {
    /// The controller on an API.
    pub(crate) fn new(client: Client, events: EventRecorder, clock: Clock) -> Self {
        Self { client, events, clock, kind: PhantomData }
    }

    /// Lets a Pod go that the selector no longer matches.
    async fn release(&self, set: &ReplicaSet, pod: &Pod) -> Result<(), ApiError> {
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut released = pod.clone();
        if let Some(owners) = &mut released.metadata.owner_references {
            owners.retain(|o| Some(&o.uid) != set.metadata.uid.as_ref());
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        match self.client.namespaced::<Pod>(&namespace).update(&released).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    /// Takes over a Pod without a controller that the selector matches.
    async fn adopt(&self, set: &ReplicaSet, pod: &Pod) -> Result<bool, ApiError> {
        let controlled = pod.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true));
        let matches =
            set.spec.as_ref().is_some_and(|s| selects(&s.selector, &pod.metadata.labels.clone().unwrap_or_default()));
        if controlled || !matches || !is_active(pod) || set.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let mut adopted = pod.clone();
        adopted.metadata.owner_references.get_or_insert_default().push(owner(K::API_VERSION, K::KIND, &set.metadata));
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        self.client.namespaced::<Pod>(&namespace).update(&adopted).await.map(|_| true)
    }

    async fn create(&self, origin: &K, set: &ReplicaSet) -> Result<(), ApiError> {
        let template = set.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default();
        let meta = template.metadata.unwrap_or_default();
        let name = set.metadata.name.clone().unwrap_or_default();
        let pod = Pod {
            metadata: ObjectMeta {
                generate_name: Some(format!("{name}-")),
                labels: meta.labels,
                annotations: meta.annotations,
                finalizers: meta.finalizers,
                owner_references: Some(vec![owner(K::API_VERSION, K::KIND, &set.metadata)]),
                ..ObjectMeta::default()
            },
            spec: template.spec,
            status: None,
        };
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let made = self.client.namespaced::<Pod>(&namespace).create(&pod).await?;
        let text = format!("Created pod: {}", made.metadata.name.unwrap_or_default());
        self.events.event(reference(origin), EventType::Normal, "SuccessfulCreate", text);
        Ok(())
    }

    /// Deletes the least useful Pods: unassigned, pending, not ready, doubled up on a node, youngest first.
    async fn shrink(&self, origin: &K, mut active: Vec<&Pod>, wanted: usize) -> Result<(), ApiError> {
        let mut per_node: BTreeMap<Option<String>, usize> = BTreeMap::new();
        let node = |p: &Pod| p.spec.as_ref().and_then(|s| s.node_name.clone());
        for p in &active {
            *per_node.entry(node(p)).or_default() += 1;
        }
        let now = self.clock.wall();
        active.sort_by_key(|p| {
            let rank = match phase(p) {
                "Pending" => 0,
                "Unknown" | "" => 1,
                _ => 2,
            };
            let ready = ready_since(p);
            let created = p.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
            let crowd = Reverse(per_node.get(&node(p)).copied().unwrap_or(0));
            (node(p).is_some(), rank, ready.is_some(), crowd, Reverse(ready), Reverse(created))
        });
        for pod in active.iter().take((active.len() - wanted).min(BURST)) {
            let (namespace, name) =
                (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default());
            match self.client.namespaced::<Pod>(&namespace).delete(&name, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => self.events.event(
                    reference(origin),
                    EventType::Normal,
                    "SuccessfulDelete",
                    format!("Deleted pod: {name}"),
                ),
            }
        }
        Ok(())
    }

    async fn write_status(
        &self,
        origin: &K,
        set: &ReplicaSet,
        mine: &[Pod],
        failure: Option<&ApiError>,
    ) -> Result<Again, ApiError> {
        let spec = set.spec.clone().unwrap_or_default();
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let active: Vec<&Pod> = mine.iter().filter(|p| is_active(p)).collect();
        let count = |f: &dyn Fn(&&&Pod) -> bool| i32::try_from(active.iter().filter(f).count()).unwrap_or(i32::MAX);
        let wait = i64::from(spec.min_ready_seconds.unwrap_or(0));
        let now = self.clock.wall().as_second();
        let available = |p: &&&Pod| ready_since(p).is_some_and(|t| now - t.as_second() >= wait);
        let template = spec.template.as_ref().and_then(|t| t.metadata.as_ref()?.labels.clone()).unwrap_or_default();
        let labelled =
            |p: &&&Pod| template.iter().all(|(k, v)| p.metadata.labels.as_ref().and_then(|l| l.get(k)) == Some(v));
        let terminating = mine
            .iter()
            .filter(|p| p.metadata.deletion_timestamp.is_some() && !matches!(phase(p), "Succeeded" | "Failed"))
            .count();
        let old = set.status.clone().unwrap_or_default();
        let mut conditions = old.conditions.clone().unwrap_or_default();
        // A failure that lasts keeps its first message: a new one each time would ask for the next try at once.
        let known = conditions.iter().any(|c| c.type_ == "ReplicaFailure");
        if failure.is_none() {
            conditions.retain(|c| c.type_ != "ReplicaFailure");
        }
        if let Some(e) = failure.filter(|_| !known) {
            conditions.push(podlab_api::apps::ReplicaSetCondition {
                type_: "ReplicaFailure".into(),
                status: "True".into(),
                reason: Some("FailedCreate".into()),
                message: Some(e.message.clone()),
                last_transition_time: Some(podlab_api::meta::Time(self.clock.wall_secs())),
            });
        }
        let status = ReplicaSetStatus {
            replicas: i32::try_from(active.len()).unwrap_or(i32::MAX),
            fully_labeled_replicas: Some(count(&labelled)),
            ready_replicas: Some(count(&|p| ready_since(p).is_some())),
            available_replicas: Some(count(&available)),
            terminating_replicas: Some(i32::try_from(terminating).unwrap_or(i32::MAX)),
            observed_generation: set.metadata.generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        };
        let again = if wait > 0 && status.available_replicas < status.ready_replicas {
            Again::After(std::time::Duration::from_secs(1))
        } else {
            Again::OnChange
        };
        let same_failure = |a: &ReplicaSetStatus, b: &ReplicaSetStatus| {
            let text =
                |s: &ReplicaSetStatus| s.conditions.iter().flatten().map(|c| c.message.clone()).collect::<Vec<_>>();
            text(a) == text(b)
        };
        let with = |s: &ReplicaSetStatus| ReplicaSetStatus { conditions: None, ..s.clone() };
        if with(&normal(&old)) == with(&normal(&status)) && same_failure(&old, &status) {
            return Ok(again);
        }
        match self.client.namespaced::<K>(&namespace).update_status(&origin.with_status(status)).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(again),
        }
    }

    /// The sets whose Pods a change concerns.
    pub(crate) fn concerned(sets: &Cache<K>, pod: &Arc<Pod>) -> Vec<Key> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let controller = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        match controller {
            Some(o) if o.kind == K::KIND => vec![(namespace, o.name.clone())],
            Some(_) => Vec::new(),
            None => {
                let labels = pod.metadata.labels.clone().unwrap_or_default();
                let matching = sets.list().into_iter().filter(|s| {
                    s.metadata().namespace.as_ref() == Some(&namespace)
                        && s.as_set().spec.is_some_and(|s| selects(&s.selector, &labels))
                });
                matching.map(|s| crate::work::key_of(&*s)).collect()
            }
        }
    }
}

/// Absent counts are zero.
fn normal(s: &ReplicaSetStatus) -> ReplicaSetStatus {
    let zero = |n: Option<i32>| Some(n.unwrap_or(0));
    ReplicaSetStatus {
        fully_labeled_replicas: zero(s.fully_labeled_replicas),
        ready_replicas: zero(s.ready_replicas),
        available_replicas: zero(s.available_replicas),
        terminating_replicas: zero(s.terminating_replicas),
        ..s.clone()
    }
}
