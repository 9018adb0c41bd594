//! All controllers on one client.

use podlab_api::{
    KubeType,
    apps::{Deployment, ReplicaSet},
    coordination::Lease,
    core::{Namespace, Node, Pod, ReplicationController, Service},
    policy::PodDisruptionBudget,
};
use podlab_client::{
    Client, ListOptions,
    events::{self, EventRecorder, Family},
    reflector::{Cache, Delta, reflector},
};
use podlab_clock::{Clock, Rng};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    deployment::Deployments,
    disruption::Disruption,
    endpoints::EndpointSlices,
    garbage::{self, Collector, FOLLOWED, Graph},
    namespace::NamespaceDeleter,
    node_lifecycle::NodeLifecycle,
    pod_gc::PodCollector,
    replicaset::ReplicaSets,
    replicated::Replicated,
    seed::Seeder,
    taint_eviction::TaintEviction,
    work::{Queue, drive, feed, key_of},
};

/// Deltas on their way to the queues; beyond this the watch waits.
const BUFFER: usize = 1024;

/// What the controllers need to know.
#[derive(Debug, Clone)]
pub struct ControllersConfig {
    /// The cluster's CA, PEM: the content of every namespace's `kube-root-ca.crt`.
    pub ca: String,
}

/// The controllers.
#[derive(Debug)]
pub struct Controllers {
    config: ControllersConfig,
    client: Client,
    clock: Clock,
    rng: Rng,
}

/// Starts tasks and hands out shared caches.
pub(crate) struct Starter {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    rng: Rng,
    shutdown: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
    pods: Option<Hub>,
}

/// The one watch of all Pods: nearly every controller wants it, and reading each change once is enough.
struct Hub {
    cache: Cache<Pod>,
    deltas: mpsc::Receiver<Delta<Pod>>,
    readers: Vec<mpsc::Sender<Delta<Pod>>>,
}

impl Starter {
    /// Follows all Pods; the receiver gets every change, as those of the other controllers do.
    pub(crate) fn follow_pods(&mut self) -> (Cache<Pod>, mpsc::Receiver<Delta<Pod>>) {
        let mut hub = match self.pods.take() {
            Some(hub) => hub,
            None => {
                let (cache, deltas) = self.follow::<Pod>();
                Hub { cache, deltas, readers: Vec::new() }
            }
        };
        let (send, receive) = mpsc::channel(BUFFER);
        hub.readers.push(send);
        let cache = hub.cache.clone();
        self.pods = Some(hub);
        (cache, receive)
    }

    /// Begins to hand out changes of Pods, once everybody who wants them has said so.
    fn hand_out_pods(&mut self) {
        let Some(Hub { mut deltas, readers, .. }) = self.pods.take() else { return };
        self.tasks.spawn(async move {
            while let Some(delta) = deltas.recv().await {
                for reader in &readers {
                    // One that has gone has its controller gone with it.
                    let _ = reader.send(delta.clone()).await;
                }
            }
        });
    }

    /// Follows a resource; the receiver gets every change.
    pub(crate) fn follow<K: KubeType>(&mut self) -> (Cache<K>, mpsc::Receiver<Delta<K>>) {
        let (r, cache, deltas) = reflector::<K>(&self.client, None, ListOptions::default(), self.clock, BUFFER);
        self.tasks.spawn(r.run(self.shutdown.clone()));
        (cache, deltas)
    }

    pub(crate) fn events(&mut self, component: &str) -> EventRecorder {
        let rng = self.rng.fork(component);
        let (recorder, writer) = events::recorder(&self.client, Family::Legacy, component, "", self.clock, rng);
        self.tasks.spawn(writer.run(self.shutdown.clone()));
        recorder
    }

    pub(crate) fn drive(&mut self, controller: impl crate::work::Reconcile + 'static, queue: Queue) {
        let (clock, shutdown) = (self.clock, self.shutdown.clone());
        self.tasks.spawn(drive(controller, queue, clock, shutdown));
    }
}

impl Controllers {
    /// Controllers on an API.
    pub fn new(config: ControllersConfig, client: Client, clock: Clock, rng: Rng) -> Self {
        Self { config, client, clock, rng }
    }

    /// Runs all controllers until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut s = Starter {
            client: self.client.clone(),
            clock: self.clock,
            rng: self.rng,
            shutdown: shutdown.clone(),
            tasks: JoinSet::new(),
            pods: None,
        };
        namespaces(&mut s, &self.config);
        workloads(&mut s);
        replication_controllers(&mut s);
        collectors(&mut s);
        nodes(&mut s);
        crate::volumes::start(&mut s);
        crate::job::start(&mut s);
        crate::cron::start(&mut s);
        crate::daemon::start(&mut s);
        crate::stateful::start(&mut s);
        budgets(&mut s);
        s.hand_out_pods();
        shutdown.cancelled().await;
        s.tasks.shutdown().await;
    }
}

fn namespaces(s: &mut Starter, config: &ControllersConfig) {
    let (deletions, seeds) = (Queue::default(), Queue::default());
    let (_, deltas) = s.follow::<Namespace>();
    let queues = [deletions.clone(), seeds.clone()];
    s.tasks.spawn(feed(deltas, deletions.clone(), move |d| {
        let key = key_of(&**d.object());
        queues[1].add(key.clone());
        vec![key]
    }));
    s.drive(NamespaceDeleter { client: s.client.clone(), clock: s.clock }, deletions);
    // Deleting the account or the bundle brings it back.
    let (_, deltas) = s.follow::<podlab_api::core::ServiceAccount>();
    let of_namespace = |namespace: Option<String>| vec![(String::new(), namespace.unwrap_or_default())];
    s.tasks.spawn(feed(deltas, seeds.clone(), move |d| match d {
        Delta::Deleted(o) => of_namespace(o.metadata.namespace.clone()),
        Delta::Applied { .. } => Vec::new(),
    }));
    let (_, deltas) = s.follow::<podlab_api::core::ConfigMap>();
    s.tasks.spawn(feed(deltas, seeds.clone(), move |d| {
        let object = d.object();
        let ours = object.metadata.name.as_deref() == Some("kube-root-ca.crt");
        if ours { of_namespace(object.metadata.namespace.clone()) } else { Vec::new() }
    }));
    s.drive(Seeder { client: s.client.clone(), ca: config.ca.clone() }, seeds);
}

fn workloads(s: &mut Starter) {
    let (sets, set_deltas) = s.follow::<ReplicaSet>();
    let (_, deployment_deltas) = s.follow::<Deployment>();
    let (services, service_deltas) = s.follow::<Service>();
    let (pods, pod_deltas) = s.follow_pods();
    let (set_queue, deployment_queue, service_queue) = (Queue::default(), Queue::default(), Queue::default());

    s.tasks.spawn(feed(deployment_deltas, deployment_queue.clone(), |d| vec![key_of(&**d.object())]));
    let deployments = deployment_queue.clone();
    s.tasks.spawn(feed(set_deltas, set_queue.clone(), move |d| {
        let object = d.object();
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        for o in object.metadata.owner_references.iter().flatten().filter(|o| o.kind == "Deployment") {
            deployments.add((namespace.clone(), o.name.clone()));
        }
        vec![key_of(&**object)]
    }));
    s.tasks.spawn(feed(service_deltas, service_queue.clone(), |d| vec![key_of(&**d.object())]));
    let (services_of, sets_of) = (service_queue.clone(), sets.clone());
    s.tasks.spawn(feed(pod_deltas, set_queue.clone(), move |d| {
        let (old, new) = match d {
            Delta::Applied { old, new } => (old.as_ref(), new),
            Delta::Deleted(last) => (None, last),
        };
        for key in EndpointSlices::concerned(&services, [old, Some(new)]) {
            services_of.add(key);
        }
        ReplicaSets::concerned(&sets_of, new)
    }));
    let events = s.events(ReplicaSet::CONTROLLER);
    let (client, clock) = (s.client.clone(), s.clock);
    s.drive(ReplicaSets::<ReplicaSet>::new(client.clone(), events, clock), set_queue);
    let events = s.events("deployment-controller");
    s.drive(Deployments { client: client.clone(), events, clock }, deployment_queue);
    s.drive(EndpointSlices { client, pods }, service_queue);
}

fn replication_controllers(s: &mut Starter) {
    let (all, deltas) = s.follow::<ReplicationController>();
    let (_, pod_deltas) = s.follow_pods();
    let queue = Queue::default();
    s.tasks.spawn(feed(deltas, queue.clone(), |d| vec![key_of(&**d.object())]));
    s.tasks.spawn(feed(pod_deltas, queue.clone(), move |d| ReplicaSets::concerned(&all, d.object())));
    let events = s.events(ReplicationController::CONTROLLER);
    s.drive(ReplicaSets::<ReplicationController>::new(s.client.clone(), events, s.clock), queue);
}

fn collectors(s: &mut Starter) {
    let (pods, pod_deltas) = s.follow_pods();
    let (nodes, node_deltas) = s.follow::<Node>();
    let queue = Queue::default();
    let whole = || vec![(String::new(), "all".to_owned())];
    s.tasks.spawn(feed(pod_deltas, queue.clone(), move |d| {
        let object = d.object();
        let unscheduled = object.spec.as_ref().is_none_or(|s| s.node_name.as_deref().unwrap_or_default().is_empty());
        let doomed = object.metadata.deletion_timestamp.is_some() && unscheduled;
        if doomed { whole() } else { Vec::new() }
    }));
    s.tasks.spawn(feed(node_deltas, queue.clone(), move |_| whole()));
    s.drive(
        PodCollector { client: s.client.clone(), pods, nodes, clock: s.clock, missing: parking_lot::Mutex::default() },
        queue,
    );

    let (graph, queue) = (Graph::default(), Queue::default());
    for resource in FOLLOWED {
        let (client, graph, queue) = (s.client.clone(), graph.clone(), queue.clone());
        s.tasks.spawn(garbage::follow(client, *resource, graph, queue, s.clock, s.shutdown.clone()));
    }
    s.drive(Collector { client: s.client.clone(), graph }, queue);
}

fn nodes(s: &mut Starter) {
    let (nodes, node_deltas) = s.follow::<Node>();
    let (leases, lease_deltas) = s.follow::<Lease>();
    let (pods, pod_deltas) = s.follow_pods();
    let (lifecycle, eviction) = (Queue::default(), Queue::default());
    let of_node = |name: Option<String>| (String::new(), name.unwrap_or_default());
    let (eviction_of, pods_of) = (eviction.clone(), pods.clone());
    s.tasks.spawn(feed(node_deltas, lifecycle.clone(), move |d| {
        let node = d.object();
        let changed = match d {
            Delta::Applied { old: Some(old), new } => old.spec != new.spec,
            _ => true,
        };
        let here =
            |p: &std::sync::Arc<Pod>| p.spec.as_ref().and_then(|s| s.node_name.as_ref()) == node.metadata.name.as_ref();
        for pod in pods_of.list().into_iter().filter(|p| changed && here(p)) {
            eviction_of.add(key_of(&*pod));
        }
        vec![of_node(node.metadata.name.clone())]
    }));
    s.tasks.spawn(feed(lease_deltas, lifecycle.clone(), move |d| {
        let lease = d.object();
        let ours = lease.metadata.namespace.as_deref() == Some("kube-node-lease");
        if ours { vec![of_node(lease.metadata.name.clone())] } else { Vec::new() }
    }));
    s.tasks.spawn(feed(pod_deltas, eviction.clone(), |d| vec![key_of(&**d.object())]));
    let events = s.events("node-controller");
    let (client, clock) = (s.client.clone(), s.clock);
    s.drive(NodeLifecycle::new(client.clone(), events, (nodes.clone(), leases, pods.clone()), clock), lifecycle);
    let events = s.events("taint-eviction-controller");
    s.drive(TaintEviction { client, events, nodes, pods, clock, scheduled: std::sync::Mutex::default() }, eviction);
}

fn budgets(s: &mut Starter) {
    let (budgets, budget_deltas) = s.follow::<PodDisruptionBudget>();
    let (_, pod_deltas) = s.follow_pods();
    let queue = Queue::default();
    s.tasks.spawn(feed(budget_deltas, queue.clone(), |d| vec![key_of(&**d.object())]));
    s.tasks.spawn(feed(pod_deltas, queue.clone(), move |d| {
        let old = match d {
            Delta::Applied { old, .. } => old.as_deref(),
            Delta::Deleted(_) => None,
        };
        Disruption::concerned(&budgets, old, d.object())
    }));
    let events = s.events("controllermanager");
    s.drive(Disruption { client: s.client.clone(), events, clock: s.clock }, queue);
}
