//! CSI volumes: attach verified, staged once per node, published once per Pod; taken down by what is on disk.
//!
//! ```text
//! attach required? ─► node.status.volumesAttached has it ─► VolumeAttachment metadata
//!      ─► NodeStage (…/plugins/kubernetes.io/csi/<driver>/<sha256(handle)>/globalmount) ─► NodePublish (…/mount) ─► fsGroup
//! ```
//! Source: k/k pkg/volume/csi.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use podlab_api::{
    core::{CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, Pod, Secret, SecretReference, Volume},
    storage::{CSIDriver, VolumeAttachment},
};
use podlab_lifecycle::spec;
use podlab_timeline::{Outcome, PodKey, Recorder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{
    MountFailure, MountStep, VolumeError,
    manager::Shared,
    ownership::{self, Access},
};
use crate::{
    container::MountSource,
    csi::{AccessType, CsiError, CsiNode, Drivers, PublishRequest, StageRequest},
    status::key_of,
};

/// Largest `vol_data.json` read back.
const MAX_DATA: usize = 64 * 1024;

/// What is written beside a published volume so that it can be taken down without the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeData {
    driver_name: String,
    volume_handle: String,
    spec_vol_name: String,
    #[serde(default)]
    attachment_id: String,
    #[serde(default)]
    volume_lifecycle_mode: String,
    #[serde(default)]
    block: bool,
}

/// CSI volumes of the node.
pub(crate) struct CsiVolumes {
    drivers: Arc<Drivers>,
    recorder: Recorder,
    /// One stage, publish or their opposites at a time per volume handle.
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Pods by `kubernetes.io/csi/<driver>^<handle>`.
    users: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Names of the volumes in use, whenever they change.
    in_use: watch::Sender<Vec<String>>,
    /// Staging directories of volumes this process has staged.
    staged: Mutex<BTreeSet<PathBuf>>,
}

impl CsiVolumes {
    pub(super) fn new(drivers: Arc<Drivers>, recorder: Recorder) -> Self {
        Self {
            drivers,
            recorder,
            locks: Mutex::default(),
            users: Mutex::default(),
            in_use: watch::Sender::default(),
            staged: Mutex::default(),
        }
    }

    /// Says whom the volumes in use concern, after their users changed.
    fn users_changed(&self) {
        let now = self.in_use();
        self.in_use.send_if_modified(|old| {
            let changed = *old != now;
            *old = now;
            changed
        });
    }

    /// Wakes whenever the volumes in use change.
    pub(super) fn subscribe_in_use(&self) -> watch::Receiver<Vec<String>> {
        self.in_use.subscribe()
    }

    /// Takes note of what Pods of this node have from before, so that nothing of it is detached under them.
    pub(super) fn reconstruct(&self, s: &Shared) {
        let pods = s.config.root_dir.join("pods");
        let mut users = self.users.lock();
        for uid in s.host.list(&pods).unwrap_or_default() {
            let root = pods.join(&uid).join("volumes").join("kubernetes.io~csi");
            for name in s.host.list(&root).unwrap_or_default() {
                let bytes = s.host.read_at(&root.join(&name).join("vol_data.json"), 0, MAX_DATA).unwrap_or_default();
                let Ok(data) = serde_json::from_slice::<VolumeData>(&bytes) else { continue };
                if data.volume_lifecycle_mode == "Persistent" {
                    users.entry(unique_name(&data.driver_name, &data.volume_handle)).or_default().insert(uid.clone());
                }
            }
        }
    }

    pub(super) fn in_use(&self) -> Vec<String> {
        self.users.lock().iter().filter(|(_, u)| !u.is_empty()).map(|(n, _)| n.clone()).collect()
    }

    /// A volume of a PersistentVolume.
    pub(super) async fn persistent(
        &self,
        s: &Shared,
        pod: &Pod,
        pv: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        read_only: bool,
    ) -> Result<MountSource, MountFailure> {
        let name = pv.metadata.name.clone().unwrap_or_default();
        let at = |step: MountStep| {
            let volume = name.clone();
            move |error: VolumeError| MountFailure { step, volume, error }
        };
        let unique = unique_name(&source.driver, &source.volume_handle);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.users.lock().entry(unique.clone()).or_default().insert(uid);
        self.users_changed();
        let driver = s.objects.csi_driver(&source.driver);
        let context = self.attached(s, &driver, source, &unique).await.map_err(at(MountStep::WaitForAttach))?;

        let _turn = self.lock(&source.volume_handle).await;
        let client = self.drivers.node(&source.driver).await.map_err(|e| at(MountStep::MountDevice)(e.into()))?;
        let block = pv.spec.as_ref().and_then(|sp| sp.volume_mode.as_deref()) == Some("Block");
        let access = access_of(pv, source, block, &client, pod);
        let stage_dir = s.config.csi_dir(&source.driver).join(sha(&source.volume_handle));
        let staging = stage_dir.join("globalmount");
        let mut volume_context: BTreeMap<String, String> = source.volume_attributes.clone().unwrap_or_default();
        if client.capabilities.stage_unstage {
            let secrets =
                secret_of(s, source.node_stage_secret_ref.as_ref()).await.map_err(at(MountStep::MountDevice))?;
            let stage = StageRequest {
                volume_id: source.volume_handle.clone(),
                staging_path: staging.clone(),
                publish_context: context.clone(),
                volume_context: volume_context.clone(),
                access: access.clone(),
                secrets,
            };
            self.stage(s, pod, &client.node, &stage_dir, &source.driver, stage)
                .await
                .map_err(at(MountStep::MountDevice))?;
        }
        volume_context.extend(pod_info(&driver, pod, false));
        let secrets = secret_of(s, source.node_publish_secret_ref.as_ref()).await.map_err(at(MountStep::SetUp))?;
        let data = VolumeData {
            driver_name: source.driver.clone(),
            volume_handle: source.volume_handle.clone(),
            spec_vol_name: name.clone(),
            attachment_id: attachment_name(&source.volume_handle, &source.driver, &s.config.node_name),
            volume_lifecycle_mode: "Persistent".to_owned(),
            block,
        };
        let read_only = read_only || source.read_only == Some(true);
        let request = PublishRequest {
            volume_id: source.volume_handle.clone(),
            staging_path: client.capabilities.stage_unstage.then_some(staging),
            target_path: PathBuf::new(),
            publish_context: context,
            volume_context,
            access,
            read_only,
            secrets,
        };
        let group = fs_group_policy(&driver, pv, source, client.capabilities.volume_mount_group);
        self.publish(s, pod, &client.node, &data, request, group).await.map_err(at(MountStep::SetUp))
    }

    /// An inline ephemeral volume: published, never staged or attached.
    pub(super) async fn inline(
        &self,
        s: &Shared,
        pod: &Pod,
        v: &Volume,
        source: &CSIVolumeSource,
    ) -> Result<MountSource, VolumeError> {
        let driver = s.objects.csi_driver(&source.driver);
        let modes = driver.as_ref().and_then(|d| d.spec.volume_lifecycle_modes.clone()).unwrap_or_default();
        if !modes.iter().any(|m| m == "Ephemeral") {
            return Err(VolumeError::Text(format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" not supported by driver {} (only supports {modes:?})",
                source.driver
            )));
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let handle = format!("csi-{}", sha(&format!("{uid}{}", v.name)));
        let _turn = self.lock(&handle).await;
        let client = self.drivers.node(&source.driver).await?;
        let mut volume_context: BTreeMap<String, String> = source.volume_attributes.clone().unwrap_or_default();
        volume_context.extend(pod_info(&driver, pod, true));
        let reference = source
            .node_publish_secret_ref
            .as_ref()
            .map(|r| SecretReference { name: Some(r.name.clone()), namespace: pod.metadata.namespace.clone() });
        let data = VolumeData {
            driver_name: source.driver.clone(),
            volume_handle: handle.clone(),
            spec_vol_name: v.name.clone(),
            attachment_id: String::new(),
            volume_lifecycle_mode: "Ephemeral".to_owned(),
            block: false,
        };
        let read_only = source.read_only == Some(true);
        let request = PublishRequest {
            volume_id: handle,
            staging_path: None,
            target_path: PathBuf::new(),
            publish_context: BTreeMap::new(),
            volume_context,
            access: AccessType { fs_type: source.fs_type.clone().unwrap_or_default(), ..AccessType::default() },
            read_only,
            secrets: secret_of(s, reference.as_ref()).await?,
        };
        let policy = driver.as_ref().and_then(|d| d.spec.fs_group_policy.clone());
        self.publish(s, pod, &client.node, &data, request, policy.as_deref() == Some("File")).await
    }

    async fn lock(&self, handle: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = self.locks.lock().entry(handle.to_owned()).or_default().clone();
        lock.lock_owned().await
    }

    /// The publish context of an attached volume; empty when the driver needs no attaching.
    async fn attached(
        &self,
        s: &Shared,
        driver: &Option<Arc<CSIDriver>>,
        source: &CSIPersistentVolumeSource,
        unique: &str,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        let required = driver.as_ref().and_then(|d| d.spec.attach_required).unwrap_or(true);
        if !required {
            return Ok(BTreeMap::new());
        }
        let name = attachment_name(&source.volume_handle, &source.driver, &s.config.node_name);
        let attachment = s.client.all::<VolumeAttachment>().get_opt(&name).await?;
        let status = attachment.and_then(|a| a.status);
        let shown = s.objects.node().is_some_and(|n| {
            let list = n.status.as_ref().and_then(|st| st.volumes_attached.clone()).unwrap_or_default();
            list.iter().any(|a| a.name == unique)
        });
        match status {
            Some(st) if st.attached && shown => Ok(st.attachment_metadata.unwrap_or_default()),
            Some(st) if st.attached => {
                Err(VolumeError::Text(format!("volume {unique} is not yet listed in the node's volumesAttached")))
            }
            Some(st) => match st.attach_error.and_then(|e| e.message) {
                Some(m) => Err(VolumeError::Text(m)),
                None => Err(VolumeError::Text(format!("volume attachment {name} is not attached yet"))),
            },
            None => Err(VolumeError::Text(format!("volumeattachments.storage.k8s.io \"{name}\" not found"))),
        }
    }

    async fn stage(
        &self,
        s: &Shared,
        pod: &Pod,
        node: &Arc<dyn CsiNode>,
        dir: &Path,
        driver: &str,
        request: StageRequest,
    ) -> Result<(), VolumeError> {
        // What this process has not staged itself is staged again: the call is idempotent, and after a power loss the
        // directory is there but its mount is not.
        if self.staged.lock().contains(dir) {
            return Ok(());
        }
        let marker = dir.join("vol_data.json");
        s.host.create_dir_all(&request.staging_path, 0o750).map_err(VolumeError::file("create staging directory"))?;
        let data = serde_json::json!({"driverName": driver, "volumeHandle": request.volume_id}).to_string();
        s.host.write(&marker, data.as_bytes(), 0o600).map_err(VolumeError::file("write vol_data.json"))?;
        let subject = request.volume_id.clone();
        self.call(Some(&key_of(pod)), "NodeStageVolume", &subject, node.stage(request)).await?;
        self.staged.lock().insert(dir.to_owned());
        Ok(())
    }

    async fn publish(
        &self,
        s: &Shared,
        pod: &Pod,
        node: &Arc<dyn CsiNode>,
        data: &VolumeData,
        mut request: PublishRequest,
        chown: bool,
    ) -> Result<MountSource, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let dir = s.config.volume_dir(uid, "kubernetes.io~csi", &data.spec_vol_name);
        let target = dir.join(if data.block { "device" } else { "mount" });
        s.host.create_dir_all(&dir, 0o750).map_err(VolumeError::file("create volume directory"))?;
        let text = serde_json::to_vec(data).map_err(|e| VolumeError::Text(e.to_string()))?;
        s.host.write(&dir.join("vol_data.json"), &text, 0o600).map_err(VolumeError::file("write vol_data.json"))?;
        request.target_path.clone_from(&target);
        let (subject, read_only) = (request.volume_id.clone(), request.read_only);
        self.call(Some(&key_of(pod)), "NodePublishVolume", &subject, node.publish(request)).await?;
        if chown && !read_only && !data.block {
            ownership::apply(s.host.as_ref(), pod, &target, Access::ReadWrite)?;
        }
        Ok(MountSource { path: target, read_only, block: data.block })
    }

    /// Unpublishes what a Pod had, and unstages what no other Pod uses.
    pub(super) async fn tear_down(&self, s: &Shared, uid: &str) -> Result<(), VolumeError> {
        let root = s.config.pod_dir(uid).join("volumes").join("kubernetes.io~csi");
        for name in s.host.list(&root).unwrap_or_default() {
            let dir = root.join(&name);
            let bytes = s.host.read_at(&dir.join("vol_data.json"), 0, MAX_DATA).unwrap_or_default();
            let Ok(data) = serde_json::from_slice::<VolumeData>(&bytes) else { continue };
            let _turn = self.lock(&data.volume_handle).await;
            let client = self.drivers.node(&data.driver_name).await?;
            let target = dir.join(if data.block { "device" } else { "mount" });
            self.call(
                None,
                "NodeUnpublishVolume",
                &data.volume_handle,
                client.node.unpublish(&data.volume_handle, &target),
            )
            .await?;
            s.host.remove_tree(&dir).map_err(VolumeError::file("remove volume directory"))?;
            self.unstage(s, uid, &data, &client.node).await?;
        }
        Ok(())
    }

    async fn unstage(
        &self,
        s: &Shared,
        uid: &str,
        data: &VolumeData,
        node: &Arc<dyn CsiNode>,
    ) -> Result<(), VolumeError> {
        let unique = unique_name(&data.driver_name, &data.volume_handle);
        if self.others(s, uid, data) {
            if let Some(users) = self.users.lock().get_mut(&unique) {
                users.remove(uid);
            }
            self.users_changed();
            return Ok(());
        }
        let dir = s.config.csi_dir(&data.driver_name).join(sha(&data.volume_handle));
        if s.host.stat(&dir).is_ok() {
            self.staged.lock().remove(&dir);
            let staging = dir.join("globalmount");
            self.call(None, "NodeUnstageVolume", &data.volume_handle, node.unstage(&data.volume_handle, &staging))
                .await?;
            s.host.unmount(&staging).map_err(VolumeError::file("unmount staging directory"))?;
            s.host.remove_tree(&dir).map_err(VolumeError::file("remove staging directory"))?;
        }
        self.users.lock().remove(&unique);
        self.users_changed();
        Ok(())
    }

    /// Whether another Pod of the node still has the volume, by what is on disk.
    fn others(&self, s: &Shared, uid: &str, data: &VolumeData) -> bool {
        let pods = s.config.root_dir.join("pods");
        s.host.list(&pods).unwrap_or_default().iter().filter(|u| *u != uid).any(|other| {
            let root = pods.join(other).join("volumes").join("kubernetes.io~csi");
            s.host.list(&root).unwrap_or_default().iter().any(|v| {
                let bytes = s.host.read_at(&root.join(v).join("vol_data.json"), 0, MAX_DATA).unwrap_or_default();
                serde_json::from_slice::<VolumeData>(&bytes)
                    .is_ok_and(|d| d.driver_name == data.driver_name && d.volume_handle == data.volume_handle)
            })
        })
    }

    async fn call<T>(
        &self,
        pod: Option<&PodKey>,
        method: &str,
        subject: &str,
        call: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        let start = self.recorder.now();
        let result = call.await;
        let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        self.recorder.call(pod, method, subject, start, outcome);
        result
    }
}

/// The name of a volume in the node's status.
fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of the VolumeAttachment of a volume on a node.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha(&format!("{handle}{driver}{node}")))
}

fn sha(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

fn access_of(
    pv: &PersistentVolume,
    source: &CSIPersistentVolumeSource,
    block: bool,
    client: &crate::csi::Driver,
    pod: &Pod,
) -> AccessType {
    let sp = pv.spec.clone().unwrap_or_default();
    AccessType {
        block,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        mount_flags: sp.mount_options.unwrap_or_default(),
        mount_group: ownership::fs_group(pod)
            .filter(|_| client.capabilities.volume_mount_group)
            .map(|g| g.to_string())
            .unwrap_or_default(),
        mode: sp.access_modes.and_then(|m| m.first().cloned()).unwrap_or_default(),
        tells_writers_apart: client.capabilities.single_node_multi_writer,
    }
}

/// Whether the node agent changes the group of the files. Source: k/k pkg/volume/csi/csi_mounter.go supportsFSGroup.
fn fs_group_policy(
    driver: &Option<Arc<CSIDriver>>,
    pv: &PersistentVolume,
    source: &CSIPersistentVolumeSource,
    delegated: bool,
) -> bool {
    if delegated {
        return false;
    }
    match driver.as_ref().and_then(|d| d.spec.fs_group_policy.as_deref()).unwrap_or("ReadWriteOnceWithFSType") {
        "None" => false,
        "File" => true,
        _ => {
            let modes = pv.spec.as_ref().and_then(|sp| sp.access_modes.clone()).unwrap_or_default();
            let once = modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
            once && source.fs_type.as_deref().is_some_and(|t| !t.is_empty())
        }
    }
}

fn pod_info(driver: &Option<Arc<CSIDriver>>, pod: &Pod, ephemeral: bool) -> BTreeMap<String, String> {
    if driver.as_ref().and_then(|d| d.spec.pod_info_on_mount) != Some(true) {
        return BTreeMap::new();
    }
    let m = &pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    [
        ("csi.storage.k8s.io/pod.name", text(&m.name)),
        ("csi.storage.k8s.io/pod.namespace", text(&m.namespace)),
        ("csi.storage.k8s.io/pod.uid", text(&m.uid)),
        ("csi.storage.k8s.io/serviceAccount.name", text(&spec::pod_spec(pod).service_account_name)),
        ("csi.storage.k8s.io/ephemeral", ephemeral.to_string()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect()
}

async fn secret_of(s: &Shared, reference: Option<&SecretReference>) -> Result<BTreeMap<String, String>, VolumeError> {
    let Some(r) = reference else { return Ok(BTreeMap::new()) };
    let namespace = r.namespace.as_deref().unwrap_or_default();
    let secret = s.client.namespaced::<Secret>(namespace).get(r.name.as_deref().unwrap_or_default()).await?;
    Ok(secret.data.into_iter().flatten().map(|(k, v)| (k, String::from_utf8_lossy(&v.0).into_owned())).collect())
}
