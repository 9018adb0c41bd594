//! The tap at the CSI seam of a node: the node service of every driver that registers, ours or a foreign one. The volume
//! manager records the calls.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use podlab_fault::Call;
use podlab_kubelet::{
    CsiError, CsiNode, CsiNodeInfo, NodeCapabilities, PluginInfo, Plugins, PublishRequest, StageRequest,
};

use super::tap::{Injected, Tap};

/// Plugins whose drivers are reached through a tap.
pub(super) struct CsiTap<P> {
    inner: P,
    tap: Tap,
}

impl<P> CsiTap<P> {
    pub(super) fn new(inner: P, tap: Tap) -> Self {
        Self { inner, tap }
    }
}

#[async_trait]
impl<P: Plugins> Plugins for CsiTap<P> {
    async fn info(&self, socket: &Path) -> Result<PluginInfo, CsiError> {
        self.inner.info(socket).await
    }

    async fn notify(&self, socket: &Path, error: &str) -> Result<(), CsiError> {
        self.inner.notify(socket, error).await
    }

    async fn connect(&self, endpoint: &Path) -> Result<Arc<dyn CsiNode>, CsiError> {
        Ok(Arc::new(NodeTap { inner: self.inner.connect(endpoint).await?, tap: self.tap.clone() }))
    }
}

/// The node service of one driver.
struct NodeTap {
    inner: Arc<dyn CsiNode>,
    tap: Tap,
}

impl NodeTap {
    async fn tapped<T, F: Future<Output = Result<T, CsiError>>>(
        &self,
        method: &str,
        make: impl Fn() -> F,
    ) -> Result<T, CsiError> {
        let failed = |e: Injected| CsiError::Rpc {
            code: tonic::Code::from_i32(i32::try_from(e.code).unwrap_or(2)),
            message: e.message,
        };
        self.tap.through(Call::Csi { method }, None, failed, make).await
    }
}

#[async_trait]
impl CsiNode for NodeTap {
    async fn info(&self) -> Result<CsiNodeInfo, CsiError> {
        self.tapped("NodeGetInfo", || self.inner.info()).await
    }

    async fn capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        self.tapped("NodeGetCapabilities", || self.inner.capabilities()).await
    }

    async fn stage(&self, request: StageRequest) -> Result<(), CsiError> {
        self.tapped("NodeStageVolume", || self.inner.stage(request.clone())).await
    }

    async fn unstage(&self, volume_id: &str, staging_path: &Path) -> Result<(), CsiError> {
        self.tapped("NodeUnstageVolume", || self.inner.unstage(volume_id, staging_path)).await
    }

    async fn publish(&self, request: PublishRequest) -> Result<(), CsiError> {
        self.tapped("NodePublishVolume", || self.inner.publish(request.clone())).await
    }

    async fn unpublish(&self, volume_id: &str, target_path: &Path) -> Result<(), CsiError> {
        self.tapped("NodeUnpublishVolume", || self.inner.unpublish(volume_id, target_path)).await
    }
}
