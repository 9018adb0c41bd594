//! Images of a simulated node: what the cluster's registries have, and what was pulled from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use base64::Engine;
use parking_lot::Mutex;
use podlab_cri::v1;
use podlab_kubelet::{Cri, Images, RuntimeError};

use super::runtime::SimRuntime;

/// What the world's registries serve; the same for all nodes.
#[derive(Debug, Default)]
pub(in crate::world) struct Registries {
    /// Reference → the user and password it takes, if any.
    images: BTreeMap<String, Option<(String, String)>>,
}

impl Registries {
    /// `testimage:1` in both registries, as a new cluster has it.
    pub(in crate::world) fn new(user: &str, password: &str) -> Self {
        let login = Some((user.to_owned(), password.to_owned()));
        let images = BTreeMap::from([
            ("registry.test/testimage:1".to_owned(), None),
            ("private.registry.test/testimage:1".to_owned(), login),
        ]);
        Self { images }
    }
}

/// The images of one node.
#[derive(Debug)]
pub(in crate::world) struct ImageStore {
    registries: Arc<Registries>,
    present: Mutex<BTreeSet<String>>,
}

impl ImageStore {
    /// Id and first digest of an image that is there, by its reference or its id.
    pub(super) fn known(&self, name: &str) -> Option<(String, String)> {
        let present = self.present.lock();
        let found = present.iter().find(|r| **r == name || id_of(r) == name)?;
        let image = image(found);
        Some((image.id, image.repo_digests.into_iter().next()?))
    }

    pub(in crate::world) fn new(registries: Arc<Registries>) -> Self {
        Self { registries, present: Mutex::default() }
    }
}

/// An image's id: of the content, so the same in both registries.
fn id_of(reference: &str) -> String {
    let content = reference.rsplit('/').next().unwrap_or_default();
    let digest =
        content.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("sha256:{digest:064x}")
}

fn image(reference: &str) -> v1::Image {
    let repository = reference.rsplit_once(':').map_or(reference, |(r, _)| r);
    v1::Image {
        id: id_of(reference),
        repo_tags: vec![reference.to_owned()],
        repo_digests: vec![format!("{repository}@{}", id_of(reference))],
        size: 1 << 20,
        spec: Some(v1::ImageSpec { image: id_of(reference), ..Default::default() }),
        uid: Some(v1::Int64Value { value: 0 }),
        ..Default::default()
    }
}

/// User and password of what a pull presents.
fn login(auth: &v1::AuthConfig) -> (String, String) {
    let decoded = base64::engine::general_purpose::STANDARD.decode(auth.auth.trim()).unwrap_or_default();
    match String::from_utf8_lossy(&decoded).split_once(':') {
        Some((u, p)) if auth.username.is_empty() => (u.to_owned(), p.to_owned()),
        _ => (auth.username.clone(), auth.password.clone()),
    }
}

#[async_trait]
impl Images for SimRuntime {
    async fn image_status(&self, wanted: v1::ImageSpec) -> Cri<Option<v1::Image>> {
        let present = self.parts.images.present.lock();
        Ok(present.iter().find(|r| **r == wanted.image || id_of(r) == wanted.image).map(|r| image(r)))
    }

    async fn list_images(&self) -> Cri<Vec<v1::Image>> {
        Ok(self.parts.images.present.lock().iter().map(|r| image(r)).collect())
    }

    async fn pull_image(
        &self,
        wanted: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        _sandbox: v1::PodSandboxConfig,
    ) -> Cri<String> {
        // Worded as the bridge words it: containerd's sentences around what the registry said.
        let name = &wanted.image;
        let fail = |code, why: String| {
            let message = format!("failed to pull and unpack image {name:?}: failed to resolve image: {why}");
            Err(RuntimeError::new(code, message))
        };
        let denied = "pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials";
        match self.parts.images.registries.images.get(name) {
            Some(None) => {}
            Some(Some(wanted)) if auth.as_ref().map(login).as_ref() == Some(wanted) => {}
            Some(Some(_)) => return fail(tonic::Code::Unknown, denied.to_owned()),
            None if name.starts_with("private.") && auth.is_none() => {
                return fail(tonic::Code::Unknown, denied.to_owned());
            }
            None => return fail(tonic::Code::NotFound, format!("{name}: not found")),
        }
        self.parts.images.present.lock().insert(name.clone());
        Ok(id_of(name))
    }

    async fn remove_image(&self, wanted: v1::ImageSpec) -> Cri<()> {
        self.parts.images.present.lock().retain(|r| *r != wanted.image && id_of(r) != wanted.image);
        Ok(())
    }

    async fn image_fs_info(&self) -> Cri<v1::ImageFsInfoResponse> {
        Ok(v1::ImageFsInfoResponse::default())
    }
}
