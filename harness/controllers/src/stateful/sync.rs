//! One pass over one StatefulSet.

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    apps::{StatefulSet, StatefulSetStatus},
    core::{PersistentVolumeClaim, Pod, PodTemplateSpec},
    jiff::Timestamp,
};
use podlab_client::{
    Client, DeleteOptions, ListOptions,
    events::{EventRecorder, EventType, reference},
};
use podlab_clock::Clock;

use super::{
    claims::{is_stale, missing, with_owner},
    plan::{Act, is_available, is_ready, phase, plan},
    pod::{claims, first, identify, make, ordinal_in, revision, wanted},
};
use crate::{
    claim_pods::{Claimer, claim, ignore_missing},
    replicaset::owner,
    revision::{History, Parent, template_of},
    work::{Again, Key, Reconcile},
};

/// The controller.
pub(crate) struct StatefulSets {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
}

/// What one pass works on.
struct View {
    set: StatefulSet,
    history: History,
    /// Name of the revision Pods below the partition are made from.
    current: String,
    /// Name of the revision that is wanted.
    update: String,
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
}

#[async_trait]
impl Reconcile for StatefulSets {
    fn name(&self) -> &'static str {
        "statefulset"
    }

    async fn reconcile(&self, (namespace, name): &Key) -> Result<Again, ApiError> {
        let Some(set) = self.client.namespaced::<StatefulSet>(namespace).get_opt(name).await? else {
            return Ok(Again::OnChange);
        };
        if set.spec.is_none() {
            return Ok(Again::OnChange);
        }
        let mut view = self.look(set).await?;
        let mut again = Again::OnChange;
        let mut done = Ok(());
        if view.set.metadata.deletion_timestamp.is_none() {
            done = self.settle_claims(&view).await;
            let plan = plan(&view.set, &view.pods, &view.update, self.clock.wall());
            again = plan.again.map_or(Again::OnChange, Again::After);
            for act in &plan.acts {
                if done.is_err() {
                    break;
                }
                done = self.act(&mut view, act).await;
            }
        }
        self.write_status(&view).await?;
        let in_use: Vec<String> = view.pods.iter().map(|p| revision(p).to_owned()).collect();
        let keep = view.set.spec.as_ref().and_then(|s| s.revision_history_limit);
        let used = |name: Option<&String>| name.is_some_and(|n| in_use.contains(n) || *n == view.current);
        view.history.truncate(&self.client, keep, |r| used(r.metadata.name.as_ref())).await?;
        done.map(|()| again)
    }
}

impl StatefulSets {
    async fn look(&self, set: StatefulSet) -> Result<View, ApiError> {
        let spec = set.spec.clone().unwrap_or_default();
        let owner = owner("apps/v1", "StatefulSet", &set.metadata);
        let old = set.status.clone().unwrap_or_default();
        let collisions = old.collision_count.unwrap_or(0);
        let parent = Parent { meta: &set.metadata, owner: owner.clone(), template: &spec.template, collisions };
        let history = History::of(&self.client, &parent).await?;
        let update = history.current.metadata.name.clone().unwrap_or_default();
        let current = old.current_revision.filter(|n| history.find(n).is_some()).unwrap_or_else(|| update.clone());
        let claimer = Claimer { meta: &set.metadata, selector: &spec.selector, owner };
        let pods = claim(&self.client, &claimer, |p| ordinal_in(&set, p).is_some()).await?;
        let mut claims = Vec::new();
        if spec.volume_claim_templates.as_ref().is_some_and(|t| !t.is_empty()) {
            let namespace = set.metadata.namespace.clone().unwrap_or_default();
            let api = self.client.namespaced::<PersistentVolumeClaim>(&namespace);
            claims = api.list(&ListOptions::default()).await?.0;
        }
        Ok(View { set, history, current, update, pods, claims })
    }

    fn say(&self, set: &StatefulSet, verb: &'static str, what: &str, done: Result<&str, &ApiError>) {
        let name = set.metadata.name.clone().unwrap_or_default();
        let (kind, reason, text) = match (done, verb) {
            (Ok(word), "Create") => (EventType::Normal, "SuccessfulCreate", word.to_owned()),
            (Ok(word), "Delete") => (EventType::Normal, "SuccessfulDelete", word.to_owned()),
            (Ok(word), _) => (EventType::Normal, "SuccessfulUpdate", word.to_owned()),
            (Err(e), verb) => {
                let reason = match verb {
                    "Create" => "FailedCreate",
                    "Delete" => "FailedDelete",
                    _ => "FailedUpdate",
                };
                (EventType::Warning, reason, format!("failed error: {}", e.message))
            }
        };
        self.events.event(reference(set), kind, reason, format!("{verb} {what} in StatefulSet {name} {text}"));
    }

    async fn act(&self, view: &mut View, act: &Act) -> Result<(), ApiError> {
        let namespace = view.set.metadata.namespace.clone().unwrap_or_default();
        let api = self.client.namespaced::<Pod>(&namespace);
        match act {
            Act::Create(ordinal) => self.create(view, *ordinal).await,
            Act::Claims(ordinal) => {
                let done = self.make_claims(view, *ordinal).await;
                if let Err(e) = &done {
                    let pod = format!("Pod {}-{ordinal}", view.set.metadata.name.clone().unwrap_or_default());
                    self.say(&view.set, "Update", &pod, Err(e));
                }
                done
            }
            Act::Delete(name) => {
                let done = ignore_missing(api.delete(name, &DeleteOptions::default()).await);
                self.say(&view.set, "Delete", &format!("Pod {name}"), done.as_ref().map(|_| "successful"));
                done.map(drop)
            }
            Act::Identify(name) => {
                let Some(pod) = view.pods.iter().find(|p| p.metadata.name.as_deref() == Some(name)) else {
                    return Ok(());
                };
                let mut pod = pod.clone();
                identify(&mut pod);
                let done = ignore_missing(api.update(&pod).await);
                self.say(&view.set, "Update", &format!("Pod {name}"), done.as_ref().map(|_| "successful"));
                done.map(drop)
            }
        }
    }

    /// The claims first: a Pod whose claims cannot be made is not made either.
    async fn create(&self, view: &mut View, ordinal: i32) -> Result<(), ApiError> {
        let (revision, template) = view.revision_for(ordinal);
        let pod = make(&view.set, &template, &revision, ordinal);
        let name = pod.metadata.name.clone().unwrap_or_default();
        let own: Vec<_> = claims(&view.set, ordinal).into_iter().map(|c| c.metadata.name).collect();
        if view.claims.iter().any(|c| own.contains(&c.metadata.name) && is_stale(c, &name)) {
            return Ok(());
        }
        let what = format!("Pod {name}");
        if let Err(e) = self.make_claims(view, ordinal).await {
            self.say(&view.set, "Create", &what, Err(&e));
            return Err(e);
        }
        let namespace = view.set.metadata.namespace.clone().unwrap_or_default();
        match self.client.namespaced::<Pod>(&namespace).create(&pod).await {
            Ok(made) => {
                self.say(&view.set, "Create", &what, Ok("successful"));
                view.pods.push(made);
                Ok(())
            }
            // Another pass has made it, or somebody else's Pod has the name.
            Err(e) if e.is_already_exists() => Err(e),
            Err(e) => {
                self.say(&view.set, "Create", &what, Err(&e));
                Err(e)
            }
        }
    }

    async fn make_claims(&self, view: &mut View, ordinal: i32) -> Result<(), ApiError> {
        let (wanted, verdict) = missing(&view.set, ordinal, &view.claims);
        let set = view.set.metadata.name.clone().unwrap_or_default();
        for claim in wanted {
            let (namespace, name) = crate::work::key_of(&claim);
            let made = self.client.namespaced::<PersistentVolumeClaim>(&namespace).create(&claim).await;
            match made {
                Ok(made) => {
                    let what = format!("Claim {name} Pod {set}-{ordinal}");
                    self.say(&view.set, "Create", &what, Ok("success"));
                    view.claims.push(made);
                }
                Err(e) if e.is_already_exists() => {}
                Err(mut e) => {
                    self.say(&view.set, "Create", &format!("Claim {name} for Pod {set}-{ordinal}"), Err(&e));
                    e.message = format!("failed to create PVC {name}: {}", e.message);
                    return Err(e);
                }
            }
        }
        verdict
    }

    /// Gives the claims of all Pods the owner they go with.
    async fn settle_claims(&self, view: &View) -> Result<(), ApiError> {
        let namespace = view.set.metadata.namespace.clone().unwrap_or_default();
        let api = self.client.namespaced::<PersistentVolumeClaim>(&namespace);
        for pod in &view.pods {
            let Some(ordinal) = ordinal_in(&view.set, pod) else { continue };
            for wanted in claims(&view.set, ordinal) {
                let claim = view.claims.iter().find(|c| c.metadata.name == wanted.metadata.name);
                if let Some(changed) = claim.and_then(|c| with_owner(&view.set, c, ordinal, Some(pod))) {
                    ignore_missing(api.update(&changed).await)?;
                }
            }
        }
        Ok(())
    }

    async fn write_status(&self, view: &View) -> Result<(), ApiError> {
        let status = view.status(self.clock.wall());
        let old = view.set.status.clone().unwrap_or_default();
        if normal(&status) == normal(&old) {
            return Ok(());
        }
        let namespace = view.set.metadata.namespace.clone().unwrap_or_default();
        let mut changed = view.set.clone();
        changed.metadata.resource_version = None;
        changed.status = Some(status);
        ignore_missing(self.client.namespaced::<StatefulSet>(&namespace).update_status(&changed).await).map(drop)
    }
}

impl View {
    /// Revision and template of an ordinal: the one before the update below its partition.
    fn revision_for(&self, ordinal: i32) -> (String, PodTemplateSpec) {
        let spec = self.set.spec.clone().unwrap_or_default();
        let rolling = spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        let partition = rolling.and_then(|r| r.partition).unwrap_or(0);
        if ordinal < first(&self.set).saturating_add(partition)
            && let Some(template) = self.history.find(&self.current).and_then(template_of)
        {
            return (self.current.clone(), template);
        }
        (self.update.clone(), spec.template)
    }

    /// The counts; an update whose Pods are all there and Ready is complete. Source: computeReplicaStatus, completeRollingUpdate.
    fn status(&self, now: Timestamp) -> StatefulSetStatus {
        let min_ready = self.set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
        let count =
            |f: &dyn Fn(&Pod) -> bool| i32::try_from(self.pods.iter().filter(|p| f(p)).count()).unwrap_or(i32::MAX);
        let of = |name: &str| count(&|p| revision(p) == name && p.metadata.deletion_timestamp.is_none());
        let replicas = count(&|p| !phase(p).is_empty());
        let (ready, updated) = (count(&is_ready), of(&self.update));
        let strategy = self.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()?.type_.clone());
        let rolls = strategy.as_deref() != Some("OnDelete");
        let wanted = wanted(&self.set);
        let complete = rolls && updated == wanted && ready == wanted && replicas == wanted;
        let (current, current_replicas) =
            if complete { (&self.update, updated) } else { (&self.current, of(&self.current)) };
        let positive = |n: i32| Some(n).filter(|n| *n > 0);
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas,
            ready_replicas: positive(ready),
            available_replicas: Some(count(&|p| is_available(p, min_ready, now))),
            current_replicas: positive(current_replicas),
            updated_replicas: positive(updated),
            current_revision: Some(current.clone()),
            update_revision: Some(self.update.clone()),
            collision_count: Some(self.history.collisions),
            conditions: self.set.status.as_ref().and_then(|s| s.conditions.clone()),
        }
    }
}

/// Absent counts are zero.
fn normal(s: &StatefulSetStatus) -> StatefulSetStatus {
    let zero = |n: Option<i32>| Some(n.unwrap_or(0));
    StatefulSetStatus {
        ready_replicas: zero(s.ready_replicas),
        available_replicas: zero(s.available_replicas),
        current_replicas: zero(s.current_replicas),
        updated_replicas: zero(s.updated_replicas),
        collision_count: zero(s.collision_count),
        ..s.clone()
    }
}
