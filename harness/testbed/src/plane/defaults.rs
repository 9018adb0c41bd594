//! What every cluster is born with: the storage classes of the bundled driver and its CSIDriver object. Made once, by a
//! plane that finds them missing; a user may change or delete them while it runs.

use podlab_api::{ApiError, KubeType, storage};
use podlab_client::Client;
use podlab_csi::driver;
use serde_json::{Value, json};

/// Creates the objects that are not there.
///
/// # Errors
/// The API's, but not that an object exists.
pub(crate) async fn create(client: &Client) -> Result<(), ApiError> {
    ensure::<storage::CSIDriver>(client, json!({"metadata": {"name": driver::NAME},
        "spec": {"attachRequired": false, "podInfoOnMount": false, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent"]}}))
    .await?;
    for (name, mode, default) in
        [("standard", "WaitForFirstConsumer", true), ("standard-immediate", "Immediate", false)]
    {
        let mut annotations = serde_json::Map::new();
        if default {
            annotations.insert("storageclass.kubernetes.io/is-default-class".into(), "true".into());
        }
        ensure::<storage::StorageClass>(client, json!({"metadata": {"name": name, "annotations": annotations},
            "provisioner": driver::NAME, "reclaimPolicy": "Delete", "volumeBindingMode": mode, "allowVolumeExpansion": true}))
        .await?;
    }
    Ok(())
}

async fn ensure<K: KubeType>(client: &Client, tree: Value) -> Result<(), ApiError> {
    let object: K = serde_json::from_value(tree).map_err(|e| ApiError::bad_request(e.to_string()))?;
    match client.all::<K>().create(&object).await {
        Err(e) if !e.is_already_exists() => Err(e),
        _ => Ok(()),
    }
}
