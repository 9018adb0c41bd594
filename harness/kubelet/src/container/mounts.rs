//! A container's mounts. Source: k/k pkg/kubelet/kubelet_pods.go makeMounts.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use podlab_api::core::{Container, VolumeMount};
use podlab_cri::v1;

use super::{config::ConfigError, expand::expand};
use crate::host::{FileKind, Host};

/// Where a volume of the Pod is on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// Its root.
    pub(crate) path: PathBuf,
    /// Whether the volume as such is read-only.
    pub(crate) read_only: bool,
    /// Device of a raw block volume.
    pub(crate) block: bool,
}

/// What mounts are made from.
pub(crate) struct MountInputs<'a> {
    pub(crate) container: &'a Container,
    pub(crate) volumes: &'a BTreeMap<String, MountSource>,
    pub(crate) env: &'a BTreeMap<String, String>,
    pub(crate) pod_dir: PathBuf,
    pub(crate) host: &'a dyn Host,
    /// Image volumes by volume name.
    pub(crate) images: &'a BTreeMap<String, v1::ImageSpec>,
}

/// Mounts of the container's volumes, in order.
pub(crate) fn volume_mounts(inputs: &MountInputs<'_>) -> Result<Vec<v1::Mount>, ConfigError> {
    let mut out = Vec::new();
    for (index, mount) in inputs.container.volume_mounts.iter().flatten().enumerate() {
        out.push(one(inputs, index, mount)?);
    }
    Ok(out)
}

/// Devices of the container's raw block volumes.
pub(crate) fn devices(inputs: &MountInputs<'_>) -> Result<Vec<v1::Device>, ConfigError> {
    let mut out = Vec::new();
    for d in inputs.container.volume_devices.iter().flatten() {
        let source = inputs.volumes.get(&d.name).filter(|s| s.block);
        let source = source.ok_or_else(|| {
            ConfigError::Text(format!(
                "cannot find volume \"{}\" to pass into container \"{}\"",
                d.name, inputs.container.name
            ))
        })?;
        let permissions = if source.read_only { "r" } else { "mrw" };
        out.push(v1::Device {
            container_path: d.device_path.clone(),
            host_path: source.path.display().to_string(),
            permissions: permissions.to_owned(),
        });
    }
    Ok(out)
}

fn one(inputs: &MountInputs<'_>, index: usize, mount: &VolumeMount) -> Result<v1::Mount, ConfigError> {
    let base = v1::Mount {
        container_path: absolute(&mount.mount_path),
        readonly: mount.read_only == Some(true),
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
            _ => v1::MountPropagation::PropagationPrivate,
        }
        .into(),
        recursive_read_only: mount.recursive_read_only.as_deref() == Some("Enabled"),
        ..Default::default()
    };
    if let Some(image) = inputs.images.get(&mount.name) {
        return Ok(v1::Mount {
            image: Some(image.clone()),
            image_sub_path: mount.sub_path.clone().unwrap_or_default(),
            readonly: true,
            ..base
        });
    }
    let missing = || {
        ConfigError::Text(format!(
            "cannot find volume \"{}\" to mount into container \"{}\"",
            mount.name, inputs.container.name
        ))
    };
    let source = inputs.volumes.get(&mount.name).filter(|s| !s.block).ok_or_else(missing)?;
    let host_path = match sub_path(mount, inputs.env)? {
        Some(relative) => bind_subpath(inputs, index, mount, source, &relative)?,
        None => source.path.clone(),
    };
    Ok(v1::Mount { host_path: host_path.display().to_string(), readonly: base.readonly || source.read_only, ..base })
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// The path inside the volume, expanded and checked.
fn sub_path(mount: &VolumeMount, env: &BTreeMap<String, String>) -> Result<Option<PathBuf>, ConfigError> {
    let expanded = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(expr) => {
            let lost = std::cell::RefCell::new(None);
            let text = expand(expr, &|n| {
                let value = env.get(n).cloned();
                if value.is_none() {
                    *lost.borrow_mut() = Some(n.to_owned());
                }
                value
            });
            if let Some(name) = lost.into_inner() {
                return Err(ConfigError::Text(format!("missing value for \"{name}\"")));
            }
            text
        }
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if expanded.is_empty() {
        return Ok(None);
    }
    let path = PathBuf::from(&expanded);
    if path.is_absolute() {
        return Err(ConfigError::Text(format!("error SubPath `{expanded}` must not be an absolute path")));
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(ConfigError::Text(format!("unable to provision SubPath `{expanded}`: must not contain '..'")));
    }
    Ok(Some(path))
}

/// Binds the subpath to a place of its own, so that what the container does to its volume later cannot redirect it.
fn bind_subpath(
    inputs: &MountInputs<'_>,
    index: usize,
    mount: &VolumeMount,
    source: &MountSource,
    relative: &Path,
) -> Result<PathBuf, ConfigError> {
    let text = |error: std::io::Error| {
        // What the Pod's owner is told names no path of the node; pkg/kubelet/kubelet_pods.go makeMounts.
        tracing::error!(%error, volume = mount.name, container = inputs.container.name, "prepare a subPath");
        ConfigError::Text(format!(
            "failed to prepare subPath for volumeMount \"{}\" of container \"{}\"",
            mount.name, inputs.container.name
        ))
    };
    let target =
        inputs.pod_dir.join("volume-subpaths").join(&mount.name).join(&inputs.container.name).join(index.to_string());
    let root = inputs.host.stat(&source.path).map_err(text)?;
    if root.kind != FileKind::Dir {
        return Err(ConfigError::Text(format!("volume \"{}\" is not a directory", mount.name)));
    }
    inputs.host.unmount(&target).map_err(text)?;
    inputs.host.bind_subpath(&source.path, relative, &target, root.mode).map_err(text)?;
    Ok(target)
}

/// Whether the container mounts something of its own at a path.
pub(crate) fn mounts_at(container: &Container, path: &str) -> bool {
    container.volume_mounts.iter().flatten().any(|m| m.mount_path.trim_end_matches('/') == path)
}
