//! Volumes behind a PersistentVolumeClaim: the claim must be bound, then the volume's own source is set up.
//! Source: k/k pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go.

use podlab_api::core::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};

use super::{MountFailure, MountStep, VolumeError, csi::CsiVolumes, manager::Shared, simple};
use crate::container::MountSource;

/// Sets up the volume a claim is bound to.
pub(super) async fn set_up(
    s: &Shared,
    csi: &CsiVolumes,
    pod: &Pod,
    v: &Volume,
    claim: &str,
    read_only: bool,
) -> Result<MountSource, MountFailure> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let at =
        |volume: &str, error: VolumeError| MountFailure { step: MountStep::SetUp, volume: volume.to_owned(), error };
    let pv = bound_volume(s, namespace, claim).await.map_err(|e| at(&v.name, e))?;
    let name = pv.metadata.name.clone().unwrap_or_default();
    let source = pv.spec.clone().unwrap_or_default();
    let block = source.volume_mode.as_deref() == Some("Block");
    if let Some(h) = &source.host_path {
        let mut mounted = simple::host_path(s.host.as_ref(), h).map_err(|e| at(&name, e))?;
        mounted.read_only |= read_only;
        mounted.block = block;
        return Ok(mounted);
    }
    if let Some(l) = &source.local {
        return simple::local(s, pod, &name, &l.path, block, read_only).map_err(|e| at(&name, e));
    }
    if let Some(c) = &source.csi {
        return csi.persistent(s, pod, &pv, c, read_only).await;
    }
    Err(at(&name, VolumeError::Text("no volume plugin matched".to_owned())))
}

async fn bound_volume(s: &Shared, namespace: &str, claim: &str) -> Result<PersistentVolume, VolumeError> {
    let context = |e: String| VolumeError::Text(format!("error processing PVC {namespace}/{claim}: {e}"));
    let pvc = s.client.namespaced::<PersistentVolumeClaim>(namespace).get(claim).await;
    let pvc = pvc.map_err(|e| context(format!("failed to fetch PVC from API server: {e}")))?;
    let bound = pvc.status.as_ref().and_then(|st| st.phase.as_deref()) == Some("Bound");
    let volume = pvc.spec.as_ref().and_then(|sp| sp.volume_name.clone()).filter(|n| bound && !n.is_empty());
    let Some(volume) = volume else { return Err(context("PVC is not bound".to_owned())) };
    let pv = s.client.all::<PersistentVolume>().get(&volume).await;
    let pv = pv.map_err(|e| context(format!("failed to fetch PV {volume} from API server: {e}")))?;
    let owner = pv.spec.as_ref().and_then(|sp| sp.claim_ref.as_ref()).and_then(|r| r.uid.clone());
    if owner.is_none() {
        return Err(context(format!(
            "found PV object {volume} but its pv.Spec.ClaimRef is nil indicating it is not yet bound to the claim"
        )));
    }
    if owner != pvc.metadata.uid {
        return Err(context(format!(
            "found PV object {volume} but its pv.Spec.ClaimRef.UID does not point to the claim"
        )));
    }
    Ok(pv)
}
