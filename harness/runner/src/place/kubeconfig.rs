//! A cluster that is already there, with its own node agent and runtime: each trial in a namespace of its own, which the
//! scenario knows as `default`. What a trial makes carries the run's label; it is removed after the trial, and what a
//! killed run left is removed by the next.

mod backend;
mod nodes;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use podlab_api::{
    ApiError, Object, ResourceRef,
    core::{Namespace, Pod, Service, ServiceAccount},
};
use podlab_client::{
    Api, Client, Collection, DeleteOptions, ListOptions, Target,
    http::HttpApi,
    kubeconfig::{self, ClusterAccess},
};
use podlab_clock::Clock;
use podlab_scenario::{Capability, Scenario};
use podlab_timeline::{Recorder, fold::read_log};
use serde_json::json;
use tokio::sync::RwLock;

use self::backend::KubeconfigBackend;
use super::{
    mapped::Mapped,
    mapping::{ImageRule, Mapping, RUN_LABEL},
    owner,
};
use crate::{
    Outcome, PlayOptions, Trial,
    play::{self, failure},
    steps::chain,
};

/// Who made a namespace, so that the next run knows whether it still lives.
const RUNNER: &str = "podlab.dev/runner";
/// How long a new namespace may be without its default service account.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(30);
/// How long the end of a namespace is waited for.
const END_LIMIT: Duration = Duration::from_secs(90);
/// A namespace of a runner on another host counts as left behind after this.
const ABANDONED: Duration = Duration::from_secs(6 * 3600);

const STORAGE_CLASSES: ResourceRef = ResourceRef {
    group: "storage.k8s.io",
    version: "v1",
    plural: "storageclasses",
    kind: "StorageClass",
    namespaced: false,
};
/// Cluster-scoped kinds a scenario can make.
const CLUSTER_SCOPED: [ResourceRef; 4] = [
    STORAGE_CLASSES,
    ResourceRef {
        group: "scheduling.k8s.io",
        version: "v1",
        plural: "priorityclasses",
        kind: "PriorityClass",
        namespaced: false,
    },
    ResourceRef {
        group: "rbac.authorization.k8s.io",
        version: "v1",
        plural: "clusterrolebindings",
        kind: "ClusterRoleBinding",
        namespaced: false,
    },
    ResourceRef { group: "", version: "v1", plural: "persistentvolumes", kind: "PersistentVolume", namespaced: false },
];

/// Which cluster, and what it has.
#[derive(Debug, Clone, Default)]
pub struct KubeconfigOptions {
    /// The kubeconfig.
    pub file: PathBuf,
    /// Context in it; the current one when absent.
    pub context: Option<String>,
    /// What stands there for images of the scenarios.
    pub images: Vec<ImageRule>,
    /// What it has beside what can be seen.
    pub has: Vec<Capability>,
}

/// A foreign cluster.
pub struct KubeconfigPlace {
    file: PathBuf,
    api: Arc<HttpApi>,
    /// Schedulable nodes by name, with their CPU in thousandths.
    nodes: Vec<(String, u64)>,
    images: Vec<ImageRule>,
    capabilities: BTreeSet<Capability>,
    run: String,
    next: AtomicU32,
    /// Trials that need the nodes to themselves hold this alone.
    alone: RwLock<()>,
}

impl std::fmt::Debug for KubeconfigPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster of {}", self.file.display())
    }
}

fn all(resource: ResourceRef) -> Collection {
    Collection { resource, namespace: None }
}

impl KubeconfigPlace {
    /// Looks at the cluster: its nodes, and what it has. Removes what dead runs left behind.
    ///
    /// # Errors
    /// In one sentence: the file, the API, or that no node is Ready.
    pub async fn connect(options: &KubeconfigOptions) -> Result<Self, String> {
        let access = kubeconfig::load_context(&options.file, options.context.as_deref()).map_err(|e| chain(&e))?;
        Self::at(options, &access).await
    }

    async fn at(options: &KubeconfigOptions, access: &ClusterAccess) -> Result<Self, String> {
        let api = Arc::new(HttpApi::new(access).map_err(|e| chain(&e))?);
        let nodes = nodes::that_take_pods(&api, Clock::real()).await;
        let nodes = nodes
            .map_err(|e| format!("the cluster of {} ({}): {}", options.file.display(), access.server, e.message))?;
        if nodes.is_empty() {
            return Err(format!("no node of the cluster at {} is Ready and takes Pods", access.server));
        }
        let mut place = Self {
            file: options.file.clone(),
            api,
            nodes,
            images: options.images.clone(),
            capabilities: options.has.iter().copied().collect(),
            run: format!("{}-{}", std::process::id(), Clock::real().wall().as_second()),
            next: AtomicU32::new(0),
            alone: RwLock::new(()),
        };
        place.capabilities.extend([Capability::ClockReal, Capability::KernelOom]);
        if place.nodes.len() > 1 {
            place.capabilities.insert(Capability::TwoNodes);
        }
        if options.images.iter().any(|i| i.to.contains("{trial}")) {
            place.capabilities.insert(Capability::FreshImages);
        }
        place.look().await.map_err(|e| e.message)?;
        place.sweep(false).await.map_err(|e| format!("remove what dead runs left: {}", e.message))?;
        Ok(place)
    }

    /// What can be seen of its services, classes and Pods.
    async fn look(&mut self) -> Result<(), ApiError> {
        let services = Collection { resource: ResourceRef::of::<Service>(), namespace: Some("kube-system".into()) };
        let services = self.api.list(&services, &ListOptions::default()).await?;
        if services.items.iter().any(|s| s.name() == "kube-dns") {
            self.capabilities.insert(Capability::Services);
        }
        let classes = self.api.list(&all(STORAGE_CLASSES), &ListOptions::default()).await?;
        let there = |name: &str| classes.items.iter().any(|c| c.name() == name);
        if there("standard") && there("standard-immediate") {
            self.capabilities.insert(Capability::Storage);
        }
        let pods = self.api.list(&all(ResourceRef::of::<Pod>()), &ListOptions::default()).await?;
        let ended = |p: &Object| matches!(p.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"));
        let busy = pods.items.iter().any(|p| !ended(p) && requests_cpu(p));
        if !busy {
            self.capabilities.insert(Capability::NodeSize);
        }
        Ok(())
    }

    /// What it has.
    pub fn capabilities(&self) -> &BTreeSet<Capability> {
        &self.capabilities
    }

    /// Why its nodes are not what a scenario asks for.
    pub(crate) fn too_small(&self, scenario: &Scenario) -> Option<String> {
        let wanted = usize::from(scenario.cluster.nodes);
        if self.nodes.len() < wanted {
            return Some(format!("it is for {wanted} nodes, and this cluster has {} that take Pods", self.nodes.len()));
        }
        if !scenario.needs().contains_key(&Capability::NodeSize) {
            return None;
        }
        let milli = scenario.cluster.node_cpu_milli;
        // What the scheduler says of a Pod that does not fit counts all nodes there are.
        let sized = self.nodes.len() == wanted && self.nodes.iter().all(|(_, cpu)| *cpu == milli);
        (!sized).then(|| {
            let has: Vec<String> = self.nodes.iter().map(|(name, cpu)| format!("{name} {cpu}m")).collect();
            format!("it counts on {wanted} node(s) of {milli}m CPU, and this cluster has {}", has.join(", "))
        })
    }

    /// Plays one trial. Dropping the future leaves its namespace to [`KubeconfigPlace::end`] and the next run.
    pub(crate) async fn play(&self, name: &str, path: &Path, scenario: &Scenario, options: &PlayOptions) -> Trial {
        let clock = Clock::real();
        // One that counts CPUs must not share the nodes; a writer waits for all readers and keeps new ones out.
        let (_alone, _beside) = if scenario.needs().contains_key(&Capability::NodeSize) {
            (Some(self.alone.write().await), None)
        } else {
            (None, Some(self.alone.read().await))
        };
        let start = clock.now();
        let log = options.out.join(name).join("run.jsonl");
        let mut trial = play::blank(name, scenario, start, log.clone());
        if let Err(why) = play::prepare(&log) {
            trial.outcome = Outcome::Broken(failure("prepare", why));
            return trial;
        }
        let namespace = format!("podlab-{}-{}", self.run, self.next.fetch_add(1, Ordering::Relaxed));
        let wanted = usize::from(scenario.cluster.nodes);
        let chosen: Vec<String> = self.nodes.iter().take(wanted).map(|(n, _)| n.clone()).collect();
        let mapping = Mapping {
            run: self.run.clone(),
            nodes: chosen.into_iter().enumerate().map(|(i, n)| (n, format!("node-{}", i + 1))).collect(),
            pinned: self.nodes.len() > wanted,
            images: self.images.iter().map(|r| (r.from.clone(), r.to.replace("{trial}", &namespace))).collect(),
            namespace,
        };
        match self.prepare(&mapping.namespace, name, clock).await {
            Err(e) => trial.outcome = Outcome::Broken(failure("boot", format!("make a namespace: {}", e.message))),
            Ok(()) => {
                trial.boot = clock.now().since(start);
                trial.outcome = self.on_cluster(path, scenario, options, &mapping, &trial, clock).await;
            }
        }
        if let Err(why) = self.clean(&mapping.namespace, clock).await
            && trial.outcome == Outcome::Passed
        {
            trial.outcome = Outcome::Broken(failure("clean up", why));
        }
        trial.duration = clock.now().since(start);
        play::conclude(&mut trial, scenario, &read_log(&log).unwrap_or_default());
        trial
    }

    async fn on_cluster(
        &self,
        path: &Path,
        scenario: &Scenario,
        options: &PlayOptions,
        mapping: &Mapping,
        trial: &Trial,
        clock: Clock,
    ) -> Outcome {
        let recorder = match Recorder::to_file(&trial.log, clock) {
            Ok(recorder) => recorder,
            Err(e) => return Outcome::Broken(failure("prepare", chain(&e))),
        };
        let mapped = Mapped::new(self.api.clone(), mapping.clone());
        let made = mapped.made();
        let backend = KubeconfigBackend {
            place: self,
            mapping: mapping.clone(),
            client: Client::new(Arc::new(mapped)),
            recorder,
            log: trial.log.clone(),
            clock,
        };
        let outcome = play::within_limits(&backend, path, scenario, options, trial).await;
        let made: Vec<(ResourceRef, String)> =
            made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().cloned().collect();
        for (resource, name) in made {
            let target = Target { collection: all(resource), name, subresource: None };
            // What cannot be removed now carries the run's label: the end of the run tries again, and so does the next.
            let _ = self.api.delete(&target, &DeleteOptions::default()).await;
        }
        outcome
    }

    async fn prepare(&self, namespace: &str, trial: &str, clock: Clock) -> Result<(), ApiError> {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": namespace, "labels": {RUN_LABEL: self.run},
            "annotations": {RUNNER: owner::this(), "podlab.dev/trial": trial},
        }});
        self.api.create(&all(ResourceRef::of::<Namespace>()), None, Object(object)).await?;
        let collection =
            Collection { resource: ResourceRef::of::<ServiceAccount>(), namespace: Some(namespace.into()) };
        let target = Target { collection, name: "default".into(), subresource: None };
        let there = async {
            loop {
                match self.api.get(&target).await {
                    // Until a controller has made it, no Pod is admitted.
                    Err(e) if e.is_not_found() => clock.sleep(Duration::from_millis(50)).await,
                    other => return other.map(drop),
                }
            }
        };
        let late = || Err(ApiError::internal("the namespace got no default service account"));
        clock.timeout(NAMESPACE_LIMIT, there).await.unwrap_or_else(late)
    }

    /// Removes a namespace and waits for its end: what runs in it would be in the next trial's way.
    async fn clean(&self, namespace: &str, clock: Clock) -> Result<(), String> {
        let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some(namespace.to_owned()) };
        let soon = DeleteOptions { grace_period: Some(Duration::from_secs(1)), ..DeleteOptions::default() };
        // The namespace's own deletion would give each its whole grace period. What fails here, that does.
        let _ = self.api.delete_collection(&pods, &ListOptions::default(), &soon).await;
        let target =
            Target { collection: all(ResourceRef::of::<Namespace>()), name: namespace.into(), subresource: None };
        match self.api.delete(&target, &DeleteOptions::default()).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => {
                return Err(format!("delete namespace {namespace}: {}", e.message));
            }
            _ => {}
        }
        let gone = async {
            while !matches!(self.api.get(&target).await, Err(e) if e.is_not_found()) {
                clock.sleep(Duration::from_millis(100)).await;
            }
        };
        let late = || format!("namespace {namespace} is not gone after {END_LIMIT:?}; the next run tries again");
        clock.timeout(END_LIMIT, gone).await.ok_or_else(late)
    }

    /// Removes what carries the label of dead runs, or with `own` of this one. Returns without waiting for its end.
    async fn sweep(&self, own: bool) -> Result<(), ApiError> {
        let labelled = ListOptions { label_selector: Some(RUN_LABEL.to_owned()), ..ListOptions::default() };
        let run_of = |o: &Object| o.str_at(&["metadata", "labels", RUN_LABEL]).unwrap_or_default().to_owned();
        let namespaces = all(ResourceRef::of::<Namespace>());
        let found = self.api.list(&namespaces, &labelled).await?;
        let living: BTreeSet<String> =
            found.items.iter().filter(|n| lives(n)).map(|n| run_of(n)).filter(|r| !own || *r != self.run).collect();
        let mut doomed: Vec<(ResourceRef, Arc<Object>)> =
            found.items.into_iter().map(|n| (namespaces.resource, n)).collect();
        for resource in CLUSTER_SCOPED {
            // A cluster that does not let us look at a kind did not let us make one either.
            let found = self.api.list(&all(resource), &labelled).await.unwrap_or_default();
            doomed.extend(found.items.into_iter().map(|o| (resource, o)));
        }
        for (resource, object) in doomed {
            let run = run_of(&object);
            if living.contains(&run) || (run == self.run) != own {
                continue;
            }
            let target = Target { collection: all(resource), name: object.name().to_owned(), subresource: None };
            match self.api.delete(&target, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() && !e.is_conflict() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes whatever of this run is still there.
    pub(crate) async fn end(&self) {
        // The next run does it if this one cannot.
        let _ = self.sweep(true).await;
    }
}

/// Whether the run that made a namespace still lives, as far as that can be known.
fn lives(namespace: &Object) -> bool {
    owner::lives(namespace.str_at(&["metadata", "annotations", RUNNER]).unwrap_or_default()).unwrap_or_else(|| {
        let made = namespace.str_at(&["metadata", "creationTimestamp"]).and_then(|t| t.parse::<jiff::Timestamp>().ok());
        let age = |made: jiff::Timestamp| Clock::real().wall().as_second().saturating_sub(made.as_second());
        made.is_none_or(|made| age(made).unsigned_abs() < ABANDONED.as_secs())
    })
}

fn requests_cpu(pod: &Object) -> bool {
    let containers = pod.at(&["spec", "containers"]).and_then(|c| c.as_array());
    containers.into_iter().flatten().any(|c| !c["resources"]["requests"]["cpu"].is_null())
}
