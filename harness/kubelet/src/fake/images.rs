//! Images of the simulated runtime.

use async_trait::async_trait;
use podlab_cri::v1;

use super::runtime::MemoryRuntime;
use crate::runtime::{Cri, Images, RuntimeError};

fn image(name: &str) -> v1::Image {
    let digest = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    v1::Image {
        id: format!("sha256:{digest:064x}"),
        repo_tags: vec![name.to_owned()],
        size: 1 << 20,
        ..Default::default()
    }
}

#[async_trait]
impl Images for MemoryRuntime {
    async fn image_status(&self, wanted: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        let state = self.state.lock();
        let found = state
            .images
            .iter()
            .find(|(name, s)| s.present && (**name == wanted.image || image(name).id == wanted.image));
        Ok(found.map(|(name, _)| image(name)))
    }

    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        Ok(self.state.lock().images.iter().filter(|(_, s)| s.present).map(|(n, _)| image(n)).collect())
    }

    async fn pull_image(
        &self,
        wanted: v1::ImageSpec,
        _auth: Option<v1::AuthConfig>,
        _sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        let script = self.state.lock().images.get(&wanted.image).cloned();
        let Some(script) = script else {
            let message = format!(
                "failed to pull and unpack image \"{0}\": failed to resolve image: {0}: not found",
                wanted.image
            );
            return Err(RuntimeError::new(tonic::Code::NotFound, message));
        };
        self.clock.sleep(script.takes).await;
        if let Some(e) = script.error {
            return Err(RuntimeError::new(tonic::Code::Unknown, e));
        }
        if let Some(s) = self.state.lock().images.get_mut(&wanted.image) {
            s.present = true;
        }
        Ok(image(&wanted.image).id)
    }

    async fn remove_image(&self, wanted: v1::ImageSpec) -> Cri<()> {
        for (name, s) in &mut self.state.lock().images {
            if *name == wanted.image || image(name).id == wanted.image {
                s.present = false;
            }
        }
        Ok(())
    }

    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        Ok(v1::ImageFsInfoResponse::default())
    }
}
