//! Deployment: ReplicaSets by revision, rolled over within surge and unavailability.
//! Source: k/k pkg/controller/deployment/{deployment_controller,rolling,sync,progress}.go, util/deployment_util.go.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    apps::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
    core::PodTemplateSpec,
    k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
    matching::selects,
    meta::{LabelSelector, ObjectMeta, Time},
};
use podlab_client::{
    Client, DeleteOptions, ListOptions,
    events::{EventRecorder, EventType, reference},
};
use podlab_clock::Clock;
use sha2::{Digest, Sha256};

use crate::{
    replicaset::{controlled_by, owner},
    work::{Again, Key, Reconcile},
};

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// The controller.
pub(crate) struct Deployments {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
}

/// A percentage of `total`, rounded up or down, or a plain number.
pub(crate) fn resolve(value: Option<&IntOrString>, default: &str, total: i32, up: bool) -> i32 {
    let percent = |text: &str| {
        let n = text.trim_end_matches('%').parse::<i64>().unwrap_or(0) * i64::from(total);
        i32::try_from(if up { (n + 99) / 100 } else { n / 100 }).unwrap_or(i32::MAX)
    };
    match value {
        Some(IntOrString::Int(n)) => *n,
        Some(IntOrString::String(text)) => percent(text),
        None => percent(default),
    }
}

/// Surge and unavailability of a rolling update; both zero would never move.
pub(crate) fn limits(spec: &DeploymentSpec) -> (i32, i32) {
    let wanted = spec.replicas.unwrap_or(1);
    let strategy = spec.strategy.as_ref();
    if strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate") {
        return (0, wanted);
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let surge = resolve(rolling.and_then(|r| r.max_surge.as_ref()), "25%", wanted, true);
    let unavailable = resolve(rolling.and_then(|r| r.max_unavailable.as_ref()), "25%", wanted, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(wanted)) }
}

/// The template without the hash label, as it is compared between revisions.
fn bare(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH);
    }
    template
}

/// A stable, name-safe hash of a template; `collisions` makes another one when a name is taken.
pub(crate) fn hash(template: &PodTemplateSpec, collisions: i32) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = serde_json::to_string(&bare(template)).unwrap_or_default();
    let digest = Sha256::digest(format!("{text}{collisions}"));
    digest.iter().take(10).map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect()
}

fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

fn name_of(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

fn revision(set: &ReplicaSet) -> i64 {
    set.metadata.annotations.as_ref().and_then(|a| a.get(REVISION)?.parse().ok()).unwrap_or(0)
}

#[async_trait]
impl Reconcile for Deployments {
    fn name(&self) -> &'static str {
        "deployment"
    }

    async fn reconcile(&self, (namespace, name): &Key) -> Result<Again, ApiError> {
        let Some(deployment) = self.client.namespaced::<Deployment>(namespace).get_opt(name).await? else {
            return Ok(Again::OnChange);
        };
        let Some(spec) = deployment.spec.clone() else { return Ok(Again::OnChange) };
        let (all, _) = self.client.namespaced::<ReplicaSet>(namespace).list(&ListOptions::default()).await?;
        let mut sets: Vec<ReplicaSet> = all.into_iter().filter(|s| self.owns(&deployment, s)).collect();
        sets.sort_by_key(|s| s.metadata.creation_timestamp.as_ref().map(|t| t.0));
        if deployment.metadata.deletion_timestamp.is_some() {
            return self.write_status(&deployment, &sets).await;
        }
        let current = sets.iter().position(|s| {
            s.spec.as_ref().and_then(|s| s.template.as_ref()).is_some_and(|t| bare(t) == bare(&spec.template))
        });
        let paused = spec.paused.unwrap_or(false);
        let current = match current {
            Some(i) => Some(i),
            None if paused => None,
            None => {
                let recreate = spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
                if recreate && !self.scale_all_down(&deployment, &sets).await? {
                    return self.write_status(&deployment, &sets).await;
                }
                let made = self.create_set(&deployment, &spec, &sets).await?;
                sets.push(made);
                Some(sets.len() - 1)
            }
        };
        if let (Some(i), false) = (current, paused) {
            let new = sets.remove(i);
            let new = self.bump_revision(&deployment, new, &sets).await?;
            self.roll(&deployment, &spec, &new, &sets).await?;
            self.clean_up(&deployment, &spec, &new, &sets).await?;
            sets.push(new);
        }
        let (all, _) = self.client.namespaced::<ReplicaSet>(namespace).list(&ListOptions::default()).await?;
        let sets: Vec<ReplicaSet> = all.into_iter().filter(|s| self.owns(&deployment, s)).collect();
        self.write_status(&deployment, &sets).await
    }
}

impl Deployments {
    fn owns(&self, deployment: &Deployment, set: &ReplicaSet) -> bool {
        let selector = deployment.spec.as_ref().map(|s| &s.selector);
        controlled_by(&set.metadata, deployment.metadata.uid.as_ref())
            && selector.is_some_and(|s| selects(s, &set.metadata.labels.clone().unwrap_or_default()))
    }

    async fn create_set(
        &self,
        d: &Deployment,
        spec: &DeploymentSpec,
        old: &[ReplicaSet],
    ) -> Result<ReplicaSet, ApiError> {
        let (surge, _) = limits(spec);
        let wanted = spec.replicas.unwrap_or(1);
        let running: i32 = old.iter().map(replicas).sum();
        let size = if old.is_empty() { wanted } else { (wanted + surge - running).clamp(0, wanted) };
        let number = old.iter().map(revision).max().unwrap_or(0) + 1;
        let namespace = d.metadata.namespace.clone().unwrap_or_default();
        let mut collisions = d.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        loop {
            let hash = hash(&spec.template, collisions);
            let with_hash = |labels: Option<BTreeMap<String, String>>| {
                let mut labels = labels.unwrap_or_default();
                labels.insert(HASH.into(), hash.clone());
                Some(labels)
            };
            let mut template = spec.template.clone();
            let meta = template.metadata.get_or_insert_default();
            meta.labels = with_hash(meta.labels.take());
            let mut annotations = d.metadata.annotations.clone().unwrap_or_default();
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            annotations.insert(REVISION.into(), number.to_string());
            annotations.insert(DESIRED.into(), wanted.to_string());
            annotations.insert(MAX_REPLICAS.into(), (wanted + surge).to_string());
            let set = ReplicaSet {
                metadata: ObjectMeta {
                    name: Some(format!("{}-{hash}", name_of(&d.metadata))),
                    labels: meta.labels.clone(),
                    annotations: Some(annotations),
                    owner_references: Some(vec![owner("apps/v1", "Deployment", &d.metadata)]),
                    ..ObjectMeta::default()
                },
                spec: Some(ReplicaSetSpec {
                    replicas: Some(size),
                    min_ready_seconds: spec.min_ready_seconds,
                    selector: LabelSelector {
                        match_labels: with_hash(spec.selector.match_labels.clone()),
                        ..spec.selector.clone()
                    },
                    template: Some(template),
                }),
                status: None,
            };
            match self.client.namespaced::<ReplicaSet>(&namespace).create(&set).await {
                Err(e) if e.is_already_exists() && collisions < 100 => collisions += 1,
                Err(e) => return Err(e),
                Ok(made) => {
                    if size > 0 {
                        self.say_scaled(d, &made, 0, size);
                    }
                    return Ok(made);
                }
            }
        }
    }

    fn say_scaled(&self, d: &Deployment, set: &ReplicaSet, from: i32, to: i32) {
        let way = if to > from { "up" } else { "down" };
        let text = format!("Scaled {way} replica set {} from {from} to {to}", name_of(&set.metadata));
        self.events.event(reference(d), EventType::Normal, "ScalingReplicaSet", text);
    }

    async fn scale(&self, d: &Deployment, set: &ReplicaSet, to: i32) -> Result<(), ApiError> {
        let from = replicas(set);
        if from == to {
            return Ok(());
        }
        let namespace = d.metadata.namespace.clone().unwrap_or_default();
        let mut changed = set.clone();
        if let Some(spec) = changed.spec.as_mut() {
            spec.replicas = Some(to);
        }
        self.client.namespaced::<ReplicaSet>(&namespace).update(&changed).await?;
        self.say_scaled(d, set, from, to);
        Ok(())
    }

    /// Recreate: everything old goes first; true once nothing of it runs.
    async fn scale_all_down(&self, d: &Deployment, sets: &[ReplicaSet]) -> Result<bool, ApiError> {
        for set in sets {
            self.scale(d, set, 0).await?;
        }
        Ok(sets
            .iter()
            .all(|s| s.status.as_ref().is_none_or(|s| s.replicas == 0 && s.terminating_replicas.unwrap_or(0) == 0)))
    }

    /// A set that becomes current again (rollback) gets the next revision.
    async fn bump_revision(&self, d: &Deployment, set: ReplicaSet, old: &[ReplicaSet]) -> Result<ReplicaSet, ApiError> {
        let namespace = d.metadata.namespace.clone().unwrap_or_default();
        let newest = old.iter().map(revision).max().unwrap_or(0);
        let set = if revision(&set) > newest {
            set
        } else {
            let mut changed = set;
            changed.metadata.annotations.get_or_insert_default().insert(REVISION.into(), (newest + 1).to_string());
            self.client.namespaced::<ReplicaSet>(&namespace).update(&changed).await?
        };
        let text = revision(&set).to_string();
        if d.metadata.annotations.as_ref().and_then(|a| a.get(REVISION)) != Some(&text) {
            let body = serde_json::json!({"metadata": {"annotations": {REVISION: text}}});
            self.client
                .namespaced::<Deployment>(&namespace)
                .patch(&name_of(&d.metadata), &podlab_client::PatchKind::Merge, &body)
                .await?;
        }
        Ok(set)
    }

    /// One step: first up within the surge, otherwise down within the unavailability.
    async fn roll(
        &self,
        d: &Deployment,
        spec: &DeploymentSpec,
        new: &ReplicaSet,
        old: &[ReplicaSet],
    ) -> Result<(), ApiError> {
        let (surge, unavailable) = limits(spec);
        let wanted = spec.replicas.unwrap_or(1);
        let total: i32 = old.iter().map(replicas).sum::<i32>() + replicas(new);
        if replicas(new) > wanted {
            return self.scale(d, new, wanted).await;
        }
        if replicas(new) < wanted {
            let room = wanted + surge - total;
            if room > 0 {
                return self.scale(d, new, (replicas(new) + room).min(wanted)).await;
            }
        }
        let least = wanted - unavailable;
        let new_unavailable = replicas(new) - available(new);
        let mut may_go = total - least - new_unavailable;
        // Unhealthy ones first: they serve nobody.
        for set in old.iter().filter(|s| replicas(s) > 0) {
            if may_go <= 0 {
                return Ok(());
            }
            let sick = (replicas(set) - available(set)).min(may_go);
            if sick > 0 {
                self.scale(d, set, replicas(set) - sick).await?;
                may_go -= sick;
            }
        }
        let all_available: i32 = old.iter().map(available).sum::<i32>() + available(new);
        let mut may_go = (all_available - least).max(0);
        for set in old.iter().filter(|s| replicas(s) > 0 && available(s) == replicas(s)) {
            let down = replicas(set).min(may_go);
            if down > 0 {
                self.scale(d, set, replicas(set) - down).await?;
                may_go -= down;
            }
        }
        Ok(())
    }

    /// Keeps only as many old, empty sets as the history limit says.
    async fn clean_up(
        &self,
        d: &Deployment,
        spec: &DeploymentSpec,
        new: &ReplicaSet,
        old: &[ReplicaSet],
    ) -> Result<(), ApiError> {
        let keep = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let done = available(new) == spec.replicas.unwrap_or(1);
        let idle = |s: &&ReplicaSet| {
            replicas(s) == 0
                && s.status.as_ref().is_none_or(|s| s.replicas == 0)
                && s.metadata.deletion_timestamp.is_none()
        };
        let mut empty: Vec<&ReplicaSet> = old.iter().filter(idle).collect();
        if !done || empty.len() <= keep {
            return Ok(());
        }
        empty.sort_by_key(|s| revision(s));
        let namespace = d.metadata.namespace.clone().unwrap_or_default();
        for set in &empty[..empty.len() - keep] {
            match self
                .client
                .namespaced::<ReplicaSet>(&namespace)
                .delete(&name_of(&set.metadata), &DeleteOptions::default())
                .await
            {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    async fn write_status(&self, d: &Deployment, sets: &[ReplicaSet]) -> Result<Again, ApiError> {
        let spec = d.spec.clone().unwrap_or_default();
        let wanted = spec.replicas.unwrap_or(1);
        let new = sets.iter().find(|s| {
            s.spec.as_ref().and_then(|s| s.template.as_ref()).is_some_and(|t| bare(t) == bare(&spec.template))
        });
        let of = |f: &dyn Fn(&podlab_api::apps::ReplicaSetStatus) -> i32| -> i32 {
            sets.iter().filter_map(|s| s.status.as_ref()).map(f).sum()
        };
        let total = of(&|s| s.replicas);
        let live = of(&|s| s.available_replicas.unwrap_or(0));
        let updated = new.and_then(|s| s.status.as_ref()).map_or(0, |s| s.replicas);
        let (_, unavailable) = limits(&spec);
        let now = Time(self.clock.wall_secs());
        let old = d.status.clone().unwrap_or_default();
        let enough = live >= wanted - unavailable;
        let complete = updated == wanted && total == wanted && live == wanted;
        let set_name = new.map(|s| name_of(&s.metadata)).unwrap_or_default();
        let mut conditions = Vec::new();
        conditions.push(if enough {
            ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
        } else {
            (
                "Available",
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.".to_owned(),
            )
        });
        let (deadline, again) = self.deadline(&spec, &old, complete);
        conditions.push(if complete {
            (
                "Progressing",
                "True",
                "NewReplicaSetAvailable",
                format!("ReplicaSet \"{set_name}\" has successfully progressed."),
            )
        } else if deadline {
            (
                "Progressing",
                "False",
                "ProgressDeadlineExceeded",
                format!("ReplicaSet \"{set_name}\" has timed out progressing."),
            )
        } else {
            ("Progressing", "True", "ReplicaSetUpdated", format!("ReplicaSet \"{set_name}\" is progressing."))
        });
        let number = |n: i32| Some(n).filter(|n| *n != 0);
        let progressed = number(updated) != old.updated_replicas.and_then(number)
            || number(live) != old.available_replicas.and_then(number);
        let condition = |(type_, status, reason, message): (&str, &str, &str, String)| {
            let before = old.conditions.iter().flatten().find(|c| c.type_ == type_);
            let moved = before.is_none_or(|c| c.status != status);
            let same = before.is_some_and(|c| {
                c.status == status && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(&message)
            });
            let keep_update = same && !(type_ == "Progressing" && progressed);
            let transition = before.and_then(|c| c.last_transition_time.clone()).filter(|_| !moved);
            let update = before.and_then(|c| c.last_update_time.clone()).filter(|_| keep_update);
            DeploymentCondition {
                type_: type_.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: transition.or_else(|| Some(now.clone())),
                last_update_time: update.or_else(|| Some(now.clone())),
            }
        };
        let status = DeploymentStatus {
            replicas: number(total),
            updated_replicas: number(updated),
            ready_replicas: number(of(&|s| s.ready_replicas.unwrap_or(0))),
            available_replicas: number(live),
            unavailable_replicas: number((total.max(wanted) - live).max(0)),
            terminating_replicas: Some(of(&|s| s.terminating_replicas.unwrap_or(0))),
            observed_generation: d.metadata.generation,
            collision_count: old.collision_count,
            conditions: Some(conditions.into_iter().map(condition).collect()),
        };
        if status != old {
            let namespace = d.metadata.namespace.clone().unwrap_or_default();
            let mut changed = d.clone();
            changed.metadata.resource_version = None;
            changed.status = Some(status);
            match self.client.namespaced::<Deployment>(&namespace).update_status(&changed).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(again)
    }

    /// Whether no progress was made for too long, and when to look again.
    fn deadline(&self, spec: &DeploymentSpec, old: &DeploymentStatus, complete: bool) -> (bool, Again) {
        let limit = i64::from(spec.progress_deadline_seconds.unwrap_or(600));
        let progressing = old.conditions.iter().flatten().find(|c| c.type_ == "Progressing");
        let Some(since) = progressing.and_then(|c| c.last_update_time.as_ref()).filter(|_| !complete) else {
            return (false, Again::OnChange);
        };
        let left = limit - (self.clock.wall().as_second() - since.0.as_second());
        if left > 0 {
            return (false, Again::After(Duration::from_secs(u64::try_from(left).unwrap_or(1))));
        }
        (true, Again::OnChange)
    }
}
