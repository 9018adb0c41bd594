//! What the parts of a node agent share, and the few things they ask of it together.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use podlab_api::{
    core::{Node, Pod},
    k8s_openapi::api::node::v1::RuntimeClass,
};
use podlab_client::Client;
use podlab_clock::{Clock, Rng};
use podlab_cri::v1;
use podlab_lifecycle::{
    backoff::Backoff,
    eviction::Pressure,
    qos::{self, QosClass},
    resources::{self, PodCgroupLimits},
    spec,
    status::{self, MayRun, Verdict},
};
use podlab_mutant::{self as mutant, Mutant};
use podlab_timeline::{PodKey, Recorder};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admission,
    config::KubeletConfig,
    container::{downward::Allocatable, qos_cgroup_path},
    csi::Drivers,
    host::{Host, Machine},
    images::{ImageAges, ImageManager},
    labels,
    metrics::Metrics,
    objects::Objects,
    pods::Workers,
    prober::Prober,
    runtime::{Images, Runtime},
    say::Say,
    statics::Statics,
    status::StatusManager,
    users::UserRanges,
    volumes::VolumeManager,
};

/// Whether runtime and network work, as last asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RuntimeHealth {
    /// Asked at least once.
    pub(crate) known: bool,
    /// Why the runtime does not work.
    pub(crate) runtime_problem: Option<String>,
    /// Why the network does not work.
    pub(crate) network_problem: Option<String>,
    /// What the runtime can do, by handler; the empty name is the default one.
    pub(crate) handlers: BTreeMap<String, HandlerFeatures>,
    /// Whether it knows `supplementalGroupsPolicy`.
    pub(crate) groups_policy: bool,
}

/// What a runtime handler can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HandlerFeatures {
    pub(crate) recursive_read_only_mounts: bool,
    pub(crate) user_namespaces: bool,
}

/// The shared parts.
pub(crate) struct Agent {
    pub(crate) config: Arc<KubeletConfig>,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) recorder: Recorder,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) image_service: Arc<dyn Images>,
    pub(crate) machine: Machine,
    /// What the node has.
    pub(crate) capacity: Allocatable,
    /// What Pods may have of it.
    pub(crate) allocatable: Allocatable,
    pub(crate) say: Say,
    pub(crate) status: Arc<StatusManager>,
    pub(crate) prober: Arc<Prober>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) images: ImageManager,
    pub(crate) volumes: VolumeManager,
    pub(crate) users: UserRanges,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) workers: Workers,
    pub(crate) crash: Mutex<Backoff>,
    pub(crate) health: tokio::sync::watch::Sender<RuntimeHealth>,
    pub(crate) runtime_name: Mutex<(String, String)>,
    /// UIDs the runtime had something of when the agent started.
    pub(crate) inventory: Mutex<BTreeSet<String>>,
    /// CPU requests of all Burstable Pods, as last written to their cgroup.
    pub(crate) qos_shares: Mutex<Option<i64>>,
    /// UIDs of the last listing that neither the API nor a worker knew.
    pub(crate) suspects: Mutex<BTreeSet<String>>,
    /// The API's Pods are known and what they do not explain is being removed.
    pub(crate) swept: std::sync::atomic::AtomicBool,
    /// Pressure conditions the node shows.
    pub(crate) pressure: tokio::sync::watch::Sender<BTreeSet<Pressure>>,
    /// The machine is about to go down.
    pub(crate) leaving: std::sync::atomic::AtomicBool,
    pub(crate) statics: Statics,
    pub(crate) image_ages: ImageAges,
    pub(crate) metrics: Arc<Metrics>,
    /// The node as last written or read.
    pub(crate) node: Mutex<Node>,
    pub(crate) tasks: TaskTracker,
    pub(crate) shutdown: CancellationToken,
}

impl Agent {
    /// Scheme before container ids in the API.
    pub(crate) fn scheme(&self) -> String {
        self.runtime_name.lock().0.clone()
    }

    /// Whether the runtime may hold something of a Pod from before this agent.
    pub(crate) fn had_at_start(&self, uid: &str) -> bool {
        !mutant::is(Mutant::ForgetsWhatRuns) && self.inventory.lock().contains(uid)
    }

    /// Why Pods cannot get a network, if so.
    pub(crate) fn network_problem(&self) -> Option<String> {
        self.health.borrow().network_problem.clone()
    }

    /// The user namespace of a Pod that a handler shall run: `None` for the node's.
    ///
    /// # Errors
    /// A sentence why it cannot have the one it asks for.
    pub(crate) fn users_of(&self, pod: &Pod, handler: &str) -> Result<Option<v1::UserNamespace>, String> {
        let asks = spec::pod_spec(pod).host_users == Some(false);
        let can = self.health.borrow().handlers.get(handler).is_some_and(|f| f.user_namespaces);
        if asks && !can {
            let who =
                if handler.is_empty() { "runtime".to_owned() } else { format!("RuntimeClass handler {handler:?}") };
            return Err(format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces"));
        }
        self.users_known(pod)
    }

    /// The same for a Pod whose sandbox is there.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn users_known(&self, pod: &Pod) -> Result<Option<v1::UserNamespace>, String> {
        let dir = self.config.pod_dir(pod.metadata.uid.as_deref().unwrap_or_default());
        let max = u32::try_from(self.config.max_pods).unwrap_or(u32::MAX);
        self.users.of(self.host.as_ref(), pod, dir, max)
    }

    /// The node's object, for decisions.
    pub(crate) fn node_view(&self) -> Node {
        match self.objects.node() {
            Some(n) => (*n).clone(),
            None => self.node.lock().clone(),
        }
    }

    /// What Pods may use of the node.
    pub(crate) fn capacity_for_pods(&self) -> BTreeMap<String, i64> {
        let node = self.node.lock();
        admission::amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()))
    }

    /// Refuses a Pod.
    pub(crate) fn reject(&self, pod: &Pod, verdict: &Verdict) {
        let event: &'static str = event_reason(&verdict.reason);
        self.say.warn(pod, event, verdict.message.clone());
        self.metrics.inc("kubelet_admission_rejections_total", &[("reason", &verdict.reason)]);
        self.status.set(pod, status::rejected(pod, verdict), MayRun::No);
        self.status.finish(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    /// The runtime handler of a Pod's RuntimeClass; empty for the default.
    pub(crate) async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        let Some(name) = spec::pod_spec(pod).runtime_class_name.as_deref().filter(|n| !n.is_empty()) else {
            return Ok(String::new());
        };
        match self.client.all::<RuntimeClass>().get(name).await {
            Ok(class) => Ok(class.handler),
            Err(e) if e.is_not_found() => Err(format!("RuntimeClass \"{name}\" not found")),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Adjusts the QoS cgroups to the Pods that are there.
    pub(crate) fn qos_changed(&self) {
        if self.config.cgroup_root.is_none() {
            return;
        }
        let burstable: i64 = self
            .workers
            .active()
            .iter()
            .filter(|p| qos::of(p) == QosClass::Burstable)
            .map(|p| resources::pod_requests(p).get("cpu").copied().unwrap_or(0))
            .sum();
        if self.qos_shares.lock().replace(burstable) == Some(burstable) {
            return;
        }
        for (class, shares) in
            [(QosClass::Burstable, resources::shares(burstable)), (QosClass::BestEffort, resources::SHARES.0)]
        {
            let limits = PodCgroupLimits { cpu_shares: shares, ..PodCgroupLimits::default() };
            if let Err(error) = self.host.cgroup_apply(qos_cgroup_path(class), &limits) {
                tracing::warn!(class = class.as_str(), %error, "QoS cgroup not updated");
            }
        }
    }

    /// Removes sandboxes, containers and logs of a Pod that is no more.
    pub(crate) async fn remove_leftovers(&self, uid: &str) {
        let filter = v1::PodSandboxFilter {
            label_selector: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
            ..Default::default()
        };
        let sandboxes = match self.runtime.list_pod_sandbox(filter).await {
            Ok(s) => s,
            Err(error) => {
                tracing::warn!(uid, %error, "sandboxes not listed");
                return;
            }
        };
        for s in sandboxes {
            if let Err(error) = self.runtime.remove_pod_sandbox(&s.id).await {
                tracing::warn!(uid, %error, "sandbox not removed");
            }
            if let Some(m) = &s.metadata {
                let key = PodKey { namespace: m.namespace.clone(), name: m.name.clone(), uid: m.uid.clone() };
                self.remove_logs(&key);
            }
        }
        self.volumes.forget_messages(uid);
        self.inventory.lock().remove(uid);
        self.metrics.forget_pod(uid);
    }

    fn remove_logs(&self, key: &PodKey) {
        let dir = self.config.log_dir(&key.namespace, &key.name, &key.uid);
        if let Err(error) = self.host.remove_tree(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "logs not removed");
        }
        if let Some(links) = &self.config.container_logs_dir {
            let prefix = format!("{}_{}_", key.name, key.namespace);
            for name in self.host.list(links).unwrap_or_default().iter().filter(|n| n.starts_with(&prefix)) {
                let link = links.join(name);
                if self.host.read_link(&link).is_ok_and(|t| t.starts_with(&dir)) {
                    let _ = self.host.remove_file(&link);
                }
            }
        }
    }
}

/// Events take reasons that live for ever; those of rejections are a closed set, but for extended resources.
fn event_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 11] = [
        "SysctlForbidden",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "NodeAffinity",
        "NodePorts",
        "TaintToleration",
        "NodeShutdown",
        "Evicted",
        "UnexpectedAdmissionError",
    ];
    KNOWN.iter().find(|k| **k == reason).copied().unwrap_or("UnexpectedAdmissionError")
}
