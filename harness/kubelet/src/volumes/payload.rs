//! The files of configMap, secret, downwardAPI and projected volumes.
//! Source: k/k pkg/volume/{configmap,secret,downwardapi,projected}.

use std::collections::BTreeMap;

use podlab_api::core::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, Volume,
};
use podlab_lifecycle::spec;

use super::{VolumeError, manager::Shared, ownership};
use crate::container::{downward::Addresses, pod_field, resource_field, security};

/// Mode of files that state none.
const DEFAULT_MODE: u32 = 0o644;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: Option<u32>,
}

/// Files by path relative to the volume.
pub(super) type Files = BTreeMap<String, File>;

/// Which plugin a volume belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plugin {
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
}

impl Plugin {
    /// Directory name below `volumes/`.
    pub(super) fn dir(self) -> &'static str {
        match self {
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::DownwardApi => "kubernetes.io~downward-api",
            Self::Projected => "kubernetes.io~projected",
        }
    }

    /// Whether the files must not touch a disk.
    pub(super) fn in_memory(self) -> bool {
        matches!(self, Self::Secret | Self::Projected)
    }
}

/// The plugin of a volume whose contents are rendered.
pub(super) fn plugin(v: &Volume) -> Option<Plugin> {
    if v.config_map.is_some() {
        Some(Plugin::ConfigMap)
    } else if v.secret.is_some() {
        Some(Plugin::Secret)
    } else if v.downward_api.is_some() {
        Some(Plugin::DownwardApi)
    } else {
        v.projected.as_ref().map(|_| Plugin::Projected)
    }
}

/// A hash of the files, to see whether they changed.
pub(super) fn hash(files: &Files) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |bytes: &[u8]| {
        for b in bytes {
            h = (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
        h = (h ^ 0xff).wrapping_mul(0x0100_0000_01b3);
    };
    for (path, f) in files {
        eat(path.as_bytes());
        eat(&f.bytes);
        eat(&f.mode.to_le_bytes());
    }
    h
}

/// Renders the files of a volume.
pub(super) async fn render(s: &Shared, pod: &Pod, v: &Volume) -> Result<Files, VolumeError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = Files::new();
    if let Some(c) = &v.config_map {
        let from =
            Source { items: c.items.as_deref(), mode: mode_of(c.default_mode), optional: c.optional == Some(true) };
        config_map(s, namespace, &c.name, &from, &mut out).await?;
    }
    if let Some(c) = &v.secret {
        let from =
            Source { items: c.items.as_deref(), mode: mode_of(c.default_mode), optional: c.optional == Some(true) };
        secret(s, namespace, c.secret_name.as_deref().unwrap_or_default(), &from, &mut out).await?;
    }
    if let Some(d) = &v.downward_api {
        downward(s, pod, d.items.as_deref().unwrap_or_default(), mode_of(d.default_mode), &mut out)?;
    }
    if let Some(p) = &v.projected {
        let mode = mode_of(p.default_mode);
        for source in p.sources.iter().flatten() {
            if let Some(c) = &source.config_map {
                let from = Source { items: c.items.as_deref(), mode, optional: c.optional == Some(true) };
                config_map(s, namespace, &c.name, &from, &mut out).await?;
            }
            if let Some(c) = &source.secret {
                let from = Source { items: c.items.as_deref(), mode, optional: c.optional == Some(true) };
                secret(s, namespace, &c.name, &from, &mut out).await?;
            }
            if let Some(d) = &source.downward_api {
                downward(s, pod, d.items.as_deref().unwrap_or_default(), mode, &mut out)?;
            }
            if let Some(t) = &source.service_account_token {
                token(s, pod, t, mode, &mut out).await?;
            }
            if source.cluster_trust_bundle.as_ref().is_some_and(|c| c.optional != Some(true)) {
                return Err(VolumeError::Text(
                    "ClusterTrustBundle projection is not supported in static kubelet mode".to_owned(),
                ));
            }
        }
    }
    Ok(out)
}

fn mode_of(mode: Option<i32>) -> u32 {
    mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(DEFAULT_MODE) & 0o777
}

struct Source<'a> {
    items: Option<&'a [KeyToPath]>,
    mode: u32,
    optional: bool,
}

async fn config_map(
    s: &Shared,
    namespace: &str,
    name: &str,
    from: &Source<'_>,
    out: &mut Files,
) -> Result<(), VolumeError> {
    let map = match s.objects.config_map(namespace, name).await {
        Ok(m) => m,
        Err(e) if e.is_not_found() && from.optional => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let all = contents_of_map(&map);
    select("config", all, from, out)
}

async fn secret(
    s: &Shared,
    namespace: &str,
    name: &str,
    from: &Source<'_>,
    out: &mut Files,
) -> Result<(), VolumeError> {
    let secret = match s.objects.secret(namespace, name).await {
        Ok(m) => m,
        Err(e) if e.is_not_found() && from.optional => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    select("secret", contents_of_secret(&secret), from, out)
}

fn contents_of_map(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}

fn contents_of_secret(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

fn select(
    kind: &'static str,
    all: BTreeMap<String, Vec<u8>>,
    from: &Source<'_>,
    out: &mut Files,
) -> Result<(), VolumeError> {
    let Some(items) = from.items.filter(|i| !i.is_empty()) else {
        out.extend(all.into_iter().map(|(k, bytes)| (k, File { bytes, mode: from.mode, owner: None })));
        return Ok(());
    };
    for item in items {
        match all.get(&item.key) {
            Some(bytes) => {
                let mode = item.mode.map_or(from.mode, |m| mode_of(Some(m)));
                out.insert(item.path.clone(), File { bytes: bytes.clone(), mode, owner: None });
            }
            None if from.optional => {}
            None => return Err(VolumeError::Key { kind, key: item.key.clone() }),
        }
    }
    Ok(())
}

fn downward(
    s: &Shared,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    mode: u32,
    out: &mut Files,
) -> Result<(), VolumeError> {
    let addresses = Addresses { host: &s.config.node_ips, pod: &[] };
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(f), _) => pod_field(pod, &f.field_path, addresses),
            (None, Some(r)) => resource_field(pod, None, r, s.allocatable),
            (None, None) => continue,
        };
        let value = value.map_err(|e| VolumeError::Text(e.to_string()))?;
        let mode = item.mode.map_or(mode, |m| mode_of(Some(m)));
        out.insert(item.path.clone(), File { bytes: value.into_bytes(), mode, owner: None });
    }
    Ok(())
}

async fn token(
    s: &Shared,
    pod: &Pod,
    t: &ServiceAccountTokenProjection,
    mode: u32,
    out: &mut Files,
) -> Result<(), VolumeError> {
    let token = s.tokens.get(pod, t.audience.as_deref(), t.expiration_seconds.unwrap_or(3600)).await?;
    // A token only its reader may see: the one user all containers run as, or the Pod's group.
    let owner = single_user(pod);
    let private = owner.is_some() || ownership::fs_group(pod).is_some();
    let mode = if private { 0o600 } else { mode };
    out.insert(t.path.clone(), File { bytes: token.into_bytes(), mode, owner });
    Ok(())
}

/// The user all containers run as, when there is just one.
fn single_user(pod: &Pod) -> Option<u32> {
    let mut users =
        spec::init_containers(pod).iter().chain(spec::containers(pod)).map(|c| security::run_as_user(pod, c));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then_some(())?;
    u32::try_from(first).ok()
}
