//! Manifests, indexes and image configurations, OCI's and Docker's, as far as a runtime reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ImageError, reference::is_digest};

/// Media types a registry is asked for.
pub const ACCEPT: &str = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, */*";

/// Reference to other content.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub digest: String,
    #[serde(default)]
    pub size: u64,
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
}

/// A manifest or an index: whichever list is there.
#[derive(Debug, Default, Deserialize)]
pub struct Manifest {
    pub config: Option<Descriptor>,
    pub layers: Option<Vec<Descriptor>>,
    pub manifests: Option<Vec<Descriptor>>,
}

const MAX_LAYERS: usize = 128;

impl Manifest {
    pub fn parse(json: &[u8]) -> Result<Self, ImageError> {
        let m: Self =
            serde_json::from_slice(json).map_err(|e| ImageError::Malformed(format!("unreadable manifest: {e}")))?;
        let all = m.config.iter().chain(m.layers.iter().flatten()).chain(m.manifests.iter().flatten());
        if let Some(bad) = all.into_iter().find(|d| !is_digest(&d.digest)) {
            return Err(ImageError::Malformed(format!("unsupported digest {:?} in manifest", bad.digest)));
        }
        if m.layers.as_ref().is_some_and(|l| l.len() > MAX_LAYERS) {
            return Err(ImageError::Malformed(format!("more than {MAX_LAYERS} layers")));
        }
        Ok(m)
    }

    /// The entry of an index for this machine.
    pub fn for_here(&self) -> Option<&Descriptor> {
        let list = self.manifests.as_ref()?;
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let fits = |d: &&Descriptor| d.platform.as_ref().is_some_and(|p| p.os == "linux" && p.architecture == arch);
        list.iter().find(fits).or_else(|| list.iter().find(|d| d.platform.is_none()))
    }
}

/// What an image says of its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `user[:group]`.
    #[serde(rename = "User", default)]
    pub user: String,
    /// `KEY=value`.
    #[serde(rename = "Env", default, deserialize_with = "or_empty")]
    pub env: Vec<String>,
    /// First words of the command.
    #[serde(rename = "Entrypoint", default, deserialize_with = "or_empty")]
    pub entrypoint: Vec<String>,
    /// Rest of the command.
    #[serde(rename = "Cmd", default, deserialize_with = "or_empty")]
    pub cmd: Vec<String>,
    /// Working directory.
    #[serde(rename = "WorkingDir", default)]
    pub working_dir: String,
    /// Signal that asks it to end.
    #[serde(rename = "StopSignal", default)]
    pub stop_signal: String,
    /// Labels.
    #[serde(rename = "Labels", default, deserialize_with = "or_empty")]
    pub labels: BTreeMap<String, String>,
    /// Directories it wants as volumes.
    #[serde(rename = "Volumes", default, deserialize_with = "or_empty")]
    pub volumes: BTreeMap<String, serde_json::Value>,
}

fn or_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// The image's configuration file.
#[derive(Debug, Default, Deserialize)]
pub struct ConfigFile {
    #[serde(default, deserialize_with = "or_empty")]
    pub config: ImageConfig,
    #[serde(default)]
    pub rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
pub struct RootFs {
    #[serde(default)]
    pub diff_ids: Vec<String>,
}

impl ConfigFile {
    pub fn parse(json: &[u8]) -> Result<Self, ImageError> {
        let c: Self =
            serde_json::from_slice(json).map_err(|e| ImageError::Malformed(format!("unreadable image config: {e}")))?;
        if let Some(bad) = c.rootfs.diff_ids.iter().find(|d| !is_digest(d)) {
            return Err(ImageError::Malformed(format!("unsupported diff id {bad:?}")));
        }
        Ok(c)
    }
}
