//! The volumes of each Pod: waits for all of them, retries each with its own back-off, refreshes the live ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use podlab_api::core::{Pod, Volume};
use podlab_client::Client;
use podlab_clock::{Clock, Mono, Rng};
use podlab_lifecycle::{spec, volume};
use podlab_timeline::{Lane, Outcome, Recorder};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{MountFailure, MountStep, VolumeError, atomic, claim, csi::CsiVolumes, payload, simple, token::Tokens};
use crate::{
    config::KubeletConfig,
    container::{MountSource, downward::Allocatable},
    host::{FileKind, Host},
    objects::Objects,
    say::Say,
    status::key_of,
};

/// What the plugins work with.
pub(super) struct Shared {
    pub(super) config: Arc<KubeletConfig>,
    pub(super) client: Client,
    pub(super) host: Arc<dyn Host>,
    pub(super) objects: Arc<Objects>,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) allocatable: Allocatable,
    pub(super) tokens: Arc<Tokens>,
}

#[derive(Default)]
struct PodVolumes {
    mounted: BTreeMap<String, MountSource>,
    failures: BTreeMap<String, (u32, Mono)>,
    payloads: BTreeMap<String, u64>,
}

/// All volumes of the node.
pub(crate) struct VolumeManager {
    shared: Shared,
    csi: Arc<CsiVolumes>,
    say: Say,
    recorder: Recorder,
    pods: Mutex<BTreeMap<String, PodVolumes>>,
}

/// Parts the manager is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<KubeletConfig>,
    pub(crate) client: Client,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) allocatable: Allocatable,
    pub(crate) drivers: Arc<crate::csi::Drivers>,
    pub(crate) say: Say,
    pub(crate) recorder: Recorder,
}

impl VolumeManager {
    pub(crate) fn new(p: Parts) -> Self {
        let csi = Arc::new(CsiVolumes::new(p.drivers, p.recorder.lane(Lane::Csi)));
        let tokens = Tokens::new(p.client.clone(), p.clock, p.rng.fork("token jitter"));
        let shared = Shared {
            config: p.config,
            client: p.client,
            host: p.host,
            objects: p.objects,
            clock: p.clock,
            rng: p.rng,
            allocatable: p.allocatable,
            tokens: Arc::new(tokens),
        };
        csi.reconstruct(&shared);
        Self { shared, csi, say: p.say, recorder: p.recorder.lane(Lane::Agent), pods: Mutex::default() }
    }

    /// Volumes of the node that need attaching and are in use, as `node.status.volumesInUse` names them.
    pub(crate) fn in_use(&self) -> Vec<String> {
        self.csi.in_use()
    }

    /// Wakes whenever those change.
    pub(crate) fn subscribe_in_use(&self) -> tokio::sync::watch::Receiver<Vec<String>> {
        self.csi.subscribe_in_use()
    }

    /// Begins what takes a round trip before anybody waits for it: the Pod's tokens.
    pub(crate) fn prefetch(&self, pod: &Arc<Pod>, tasks: &TaskTracker) {
        for v in used_volumes(pod) {
            let sources = v.projected.iter().flat_map(|p| p.sources.iter().flatten());
            for t in sources.filter_map(|s| s.service_account_token.as_ref()) {
                let (tokens, pod, t) = (self.shared.tokens.clone(), pod.clone(), t.clone());
                // A failure is met again, and said, by whoever needs the token.
                tasks.spawn(async move {
                    tokens.get(&pod, t.audience.as_deref(), t.expiration_seconds.unwrap_or(3600)).await.map(drop)
                });
            }
        }
    }

    /// Waits until every volume the Pod's containers use is there; refreshes those whose contents can change.
    /// `Ok(None)` when `ending` was cancelled.
    ///
    /// # Errors
    /// After two minutes, with the volumes still missing.
    pub(crate) async fn ensure(
        &self,
        pod: &Pod,
        ending: &CancellationToken,
    ) -> Result<Option<BTreeMap<String, MountSource>>, VolumeError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let wanted = used_volumes(pod);
        let deadline = self.shared.clock.now().after(volume::MOUNT_TIMEOUT);
        loop {
            if self.try_due(pod, ending).await.is_none() {
                return Ok(None);
            }
            let (missing, next) = self.missing(&uid, &wanted);
            if missing.is_empty() {
                self.refresh(pod, &uid, &wanted).await;
                return Ok(Some(self.pods.lock().get(&uid).map(|s| s.mounted.clone()).unwrap_or_default()));
            }
            if self.shared.clock.now() >= deadline {
                return Err(VolumeError::Text(format!(
                    "unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[]: context deadline exceeded",
                    missing.join(" ")
                )));
            }
            let wait = next.map_or(Duration::from_millis(500), |at| at.since(self.shared.clock.now()));
            let wait = self.shared.clock.sleep(wait.min(deadline.since(self.shared.clock.now())));
            if ending.run_until_cancelled(wait).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Tries the volumes that are missing and whose back-off is over; `None` when `ending` was cancelled.
    pub(crate) async fn try_due(&self, pod: &Pod, ending: &CancellationToken) -> Option<()> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let now = self.shared.clock.now();
        let due: Vec<&Volume> = {
            let pods = self.pods.lock();
            let state = pods.get(&uid);
            let ready = |v: &&Volume| {
                let failed = state.and_then(|s| s.failures.get(&v.name));
                !state.is_some_and(|s| s.mounted.contains_key(&v.name)) && failed.is_none_or(|(_, at)| *at <= now)
            };
            used_volumes(pod).into_iter().filter(ready).collect()
        };
        let tries = join_all(due.iter().map(|v| self.try_one(pod, v)));
        let results = ending.run_until_cancelled(tries).await?;
        for (v, result) in due.iter().zip(results) {
            self.note(pod, &uid, v, result);
        }
        Some(())
    }

    /// When the next volume of a Pod that failed before is tried again; `None` when none has.
    pub(crate) fn next_try(&self, pod: &Pod) -> Option<Mono> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.missing(uid, &used_volumes(pod)).1
    }

    fn missing(&self, uid: &str, wanted: &[&Volume]) -> (Vec<String>, Option<Mono>) {
        let pods = self.pods.lock();
        let state = pods.get(uid);
        let missing: Vec<String> = wanted
            .iter()
            .filter(|v| !state.is_some_and(|s| s.mounted.contains_key(&v.name)))
            .map(|v| v.name.clone())
            .collect();
        let next = state.and_then(|s| missing.iter().filter_map(|n| s.failures.get(n)).map(|(_, at)| *at).min());
        (missing, next)
    }

    fn note(&self, pod: &Pod, uid: &str, v: &Volume, result: Result<Mounted, MountFailure>) {
        let mut pods = self.pods.lock();
        let state = pods.entry(uid.to_owned()).or_default();
        match result {
            Ok(m) => {
                state.failures.remove(&v.name);
                if let Some(hash) = m.payload {
                    state.payloads.insert(v.name.clone(), hash);
                }
                state.mounted.insert(v.name.clone(), m.source);
            }
            Err(f) => {
                let count = state.failures.get(&v.name).map_or(0, |(n, _)| *n) + 1;
                let at = self.shared.clock.now().after(volume::retry_delay(count));
                state.failures.insert(v.name.clone(), (count, at));
                let reason = if f.step == MountStep::MapVolume { "FailedMapVolume" } else { "FailedMount" };
                self.say.warn(
                    pod,
                    reason,
                    format!("{} failed for volume \"{}\" : {}", f.step.as_str(), f.volume, f.error),
                );
            }
        }
    }

    async fn try_one(&self, pod: &Pod, v: &Volume) -> Result<Mounted, MountFailure> {
        let start = self.recorder.now();
        let result = self.set_up(pod, v).await;
        let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.error.to_string()), |_| Outcome::Ok);
        self.recorder.call(Some(&key_of(pod)), "SetUpVolume", &v.name, start, outcome);
        result
    }

    async fn set_up(&self, pod: &Pod, v: &Volume) -> Result<Mounted, MountFailure> {
        let s = &self.shared;
        let at = |error: VolumeError| MountFailure { step: MountStep::SetUp, volume: v.name.clone(), error };
        if let Some(e) = &v.empty_dir {
            return simple::empty_dir(s, pod, &v.name, e).map(Mounted::plain).map_err(at);
        }
        if let Some(h) = &v.host_path {
            return simple::host_path(s.host.as_ref(), h).map(Mounted::plain).map_err(at);
        }
        if let Some(c) = &v.persistent_volume_claim {
            return claim::set_up(s, &self.csi, pod, v, &c.claim_name, c.read_only == Some(true))
                .await
                .map(Mounted::plain);
        }
        if let Some(e) = &v.ephemeral {
            let name = format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), v.name);
            let _ = e;
            return claim::set_up(s, &self.csi, pod, v, &name, false).await.map(Mounted::plain);
        }
        if let Some(c) = &v.csi {
            return self.csi.inline(s, pod, v, c).await.map(Mounted::plain).map_err(at);
        }
        if let Some(kind) = payload::plugin(v) {
            let files = payload::render(s, pod, v).await.map_err(at)?;
            let hash = payload::hash(&files);
            let source = atomic::set_up(s, pod, &v.name, kind, &files).map_err(at)?;
            return Ok(Mounted { source, payload: Some(hash) });
        }
        Err(at(VolumeError::Text("no volume plugin matched".to_owned())))
    }

    /// Rewrites what changed. Failures are said and tried again at the next sync: the Pod runs with what it has.
    async fn refresh(&self, pod: &Pod, uid: &str, wanted: &[&Volume]) {
        for v in wanted {
            let Some(kind) = payload::plugin(v) else { continue };
            let known = self.pods.lock().get(uid).and_then(|s| s.payloads.get(&v.name).copied());
            let result = match payload::render(&self.shared, pod, v).await {
                Ok(files) if Some(payload::hash(&files)) == known => continue,
                Ok(files) => atomic::set_up(&self.shared, pod, &v.name, kind, &files)
                    .map(|source| (source, payload::hash(&files))),
                Err(e) => Err(e),
            };
            let mut pods = self.pods.lock();
            let state = pods.entry(uid.to_owned()).or_default();
            match result {
                Ok((_, hash)) => {
                    state.payloads.insert(v.name.clone(), hash);
                }
                Err(error) => {
                    drop(pods);
                    self.say.warn(
                        pod,
                        "FailedMount",
                        format!("MountVolume.SetUp failed for volume \"{}\" : {error}", v.name),
                    );
                }
            }
        }
    }

    /// Takes down everything a Pod had, by what is found on disk, so that it works after a restart as well. What its
    /// containers said at their end stays until the API has let the Pod go: an agent may die before it has told it.
    ///
    /// # Errors
    /// The first thing that could not be taken down; the caller tries again.
    pub(crate) async fn tear_down(&self, uid: &str) -> Result<(), VolumeError> {
        let dir = self.shared.config.pod_dir(uid);
        let host = self.shared.host.as_ref();
        let under = |sub: &str| host.mounts_under(&dir.join(sub)).map_err(VolumeError::file("read mounts"));
        for m in under("volume-subpaths")? {
            host.unmount(&m).map_err(VolumeError::file(format!("unmount {}", m.display())))?;
        }
        self.csi.tear_down(&self.shared, uid).await?;
        for m in under("")? {
            host.unmount(&m).map_err(VolumeError::file(format!("unmount {}", m.display())))?;
        }
        for name in host.list(&dir).unwrap_or_default().iter().filter(|n| *n != MESSAGES) {
            let path = dir.join(name);
            let is_dir = host.lstat(&path).is_ok_and(|s| s.kind == FileKind::Dir);
            let removed = if is_dir { host.remove_tree(&path) } else { host.remove_file(&path) };
            removed.map_err(VolumeError::file(format!("remove {}", path.display())))?;
        }
        self.pods.lock().remove(uid);
        self.shared.tokens.forget(uid);
        Ok(())
    }

    /// Removes what containers said at their end, and the Pod's directory once there is nothing else in it.
    pub(crate) fn forget_messages(&self, uid: &str) {
        let dir = self.shared.config.pod_dir(uid);
        let host = self.shared.host.as_ref();
        let forget = || {
            host.remove_tree(&dir.join(MESSAGES))?;
            if host.list(&dir).is_ok_and(|left| left.is_empty()) { host.remove_tree(&dir) } else { Ok(()) }
        };
        if let Err(error) = forget() {
            tracing::warn!(uid, %error, "termination messages not removed");
        }
    }
}

/// Of a Pod's directory, the one that holds its containers' termination messages.
const MESSAGES: &str = "containers";

struct Mounted {
    source: MountSource,
    payload: Option<u64>,
}

impl Mounted {
    fn plain(source: MountSource) -> Self {
        Self { source, payload: None }
    }
}

/// Volumes that some container mounts; the others are never set up. Image volumes are the runtime's business.
fn used_volumes(pod: &Pod) -> Vec<&Volume> {
    let ephemeral = spec::ephemeral_containers(pod);
    let all = spec::init_containers(pod).iter().chain(spec::containers(pod)).chain(&ephemeral);
    let names: BTreeSet<&str> = all
        .flat_map(|c| {
            let mounts = c.volume_mounts.iter().flatten().map(|m| m.name.as_str());
            mounts.chain(c.volume_devices.iter().flatten().map(|d| d.name.as_str()))
        })
        .collect();
    let volumes = spec::pod_spec(pod).volumes.as_deref().unwrap_or_default();
    volumes.iter().filter(|v| names.contains(v.name.as_str()) && v.image.is_none()).collect()
}
