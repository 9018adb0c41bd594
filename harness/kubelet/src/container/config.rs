//! A container's CRI configuration. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_container.go generateContainerConfig.

use std::{collections::BTreeMap, path::PathBuf};

use podlab_api::{
    ApiError,
    core::{Container, Pod},
};
use podlab_cri::v1;
use podlab_lifecycle::{spec, termination};

use super::{
    FieldError,
    downward::{Addresses, Allocatable},
    env::EnvInputs,
    environment,
    expand::expand,
    hostname_and_domain, hosts_file, linux_resources,
    mounts::{self, MountInputs, MountSource},
    security::{self, ImageUser},
};
use crate::{config::KubeletConfig, host::Host, labels, objects::Objects};

/// Why a container's configuration could not be made; shown as `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A ConfigMap or Secret could not be had.
    #[error("{0}")]
    Object(ApiError),
    /// It has not the key asked for.
    #[error("couldn't find key {key} in {kind} {object}")]
    Key { kind: &'static str, key: String, object: String },
    /// A field reference names nothing.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A file of the Pod could not be written.
    #[error("{0}")]
    File(String),
    /// Anything else, in upstream's words.
    #[error("{0}")]
    Text(String),
}

/// What a container's configuration is made from.
pub(crate) struct ContainerInputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) restart_count: u32,
    pub(crate) image: v1::ImageSpec,
    pub(crate) image_user: ImageUser,
    pub(crate) pod_ips: &'a [String],
    pub(crate) volumes: &'a BTreeMap<String, MountSource>,
    pub(crate) image_volumes: &'a BTreeMap<String, v1::ImageSpec>,
    /// Id of the container an ephemeral one looks into.
    pub(crate) target_id: Option<String>,
    pub(crate) allocatable: Allocatable,
    pub(crate) memory_capacity: i64,
    /// Eight random hex digits for the termination log.
    pub(crate) nonce: String,
}

/// Hash of the part of a container whose change means a restart: name and image.
/// Source: k/k pkg/kubelet/container/helpers.go HashContainer.
pub(crate) fn spec_hash(c: &Container) -> u64 {
    let text = format!("{}\0{}", c.name, c.image.as_deref().unwrap_or_default());
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Makes the configuration, and the files it mounts (hosts file, termination log).
pub(crate) async fn container_config(
    inputs: &ContainerInputs<'_>,
    config: &KubeletConfig,
    objects: &Objects,
    host: &dyn Host,
) -> Result<v1::ContainerConfig, ConfigError> {
    let (pod, c) = (inputs.pod, inputs.container);
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    security::check_non_root(pod, c, &inputs.image_user)?;
    let env_inputs = EnvInputs {
        pod,
        container: c,
        addresses: Addresses { host: &config.node_ips, pod: inputs.pod_ips },
        allocatable: inputs.allocatable,
        services: objects.services(),
    };
    let env = environment(&env_inputs, objects).await?;
    let lookup = |n: &str| env.get(n).cloned();
    let expanded = |list: &Option<Vec<String>>| list.iter().flatten().map(|a| expand(a, &lookup)).collect::<Vec<_>>();

    let mount_inputs = MountInputs {
        container: c,
        volumes: inputs.volumes,
        env: &env,
        pod_dir: config.pod_dir(uid),
        host,
        images: inputs.image_volumes,
    };
    let mut mounts = mounts::volume_mounts(&mount_inputs)?;
    if !mounts::mounts_at(c, "/etc/hosts") {
        mounts.push(plain(write_hosts(inputs, config, host)?, "/etc/hosts"));
    }
    let message_path = c.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    if !message_path.is_empty() && !mounts::mounts_at(c, message_path) {
        mounts.push(plain(write_message_file(inputs, config, host)?, message_path));
    }
    let devices = mounts::devices(&mount_inputs)?;

    let log_path = format!("{}/{}.log", c.name, inputs.restart_count);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: c.name.clone(), attempt: inputs.restart_count }),
        image: Some(inputs.image.clone()),
        command: expanded(&c.command),
        args: expanded(&c.args),
        working_dir: c.working_dir.clone().unwrap_or_default(),
        envs: env.iter().map(|(k, v)| v1::KeyValue { key: k.clone(), value: v.clone().into_bytes() }).collect(),
        mounts,
        devices,
        labels: container_labels(pod, &c.name),
        annotations: annotations(inputs),
        log_path,
        stdin: c.stdin.unwrap_or(false),
        stdin_once: c.stdin_once.unwrap_or(false),
        tty: c.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(linux_resources(pod, c, inputs.memory_capacity)),
            security_context: Some(security::context(
                pod,
                c,
                &inputs.image_user,
                inputs.target_id.as_deref(),
                config.seccomp_default,
                &config.root_dir,
            )),
        }),
        ..Default::default()
    })
}

fn plain(host_path: PathBuf, container_path: &str) -> v1::Mount {
    v1::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        ..Default::default()
    }
}

fn write_hosts(inputs: &ContainerInputs<'_>, config: &KubeletConfig, host: &dyn Host) -> Result<PathBuf, ConfigError> {
    let uid = inputs.pod.metadata.uid.as_deref().unwrap_or_default();
    let path = config.pod_dir(uid).join("etc-hosts");
    let node = if spec::host_network(inputs.pod) {
        host.read_at(std::path::Path::new("/etc/hosts"), 0, 1 << 20).unwrap_or_default()
    } else {
        Vec::new()
    };
    let (hostname, domain) = hostname_and_domain(inputs.pod, &config.cluster_domain);
    let text = hosts_file(inputs.pod, inputs.pod_ips, &hostname, &domain, &String::from_utf8_lossy(&node));
    host.write(&path, text.as_bytes(), 0o644)
        .map_err(|e| ConfigError::File(format!("write {}: {e}", path.display())))?;
    Ok(path)
}

fn write_message_file(
    inputs: &ContainerInputs<'_>,
    config: &KubeletConfig,
    host: &dyn Host,
) -> Result<PathBuf, ConfigError> {
    let uid = inputs.pod.metadata.uid.as_deref().unwrap_or_default();
    let dir = config.pod_dir(uid).join("containers").join(&inputs.container.name);
    let path = dir.join(&inputs.nonce);
    let make = || {
        host.create_dir_all(&dir, 0o750)?;
        host.write(&path, b"", 0o666)
    };
    make().map_err(|e| ConfigError::File(format!("write {}: {e}", path.display())))?;
    Ok(path)
}

/// Labels of a container.
pub(crate) fn container_labels(pod: &Pod, name: &str) -> BTreeMap<String, String> {
    let m = &pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    [
        (labels::POD_NAME, text(&m.name)),
        (labels::POD_NAMESPACE, text(&m.namespace)),
        (labels::POD_UID, text(&m.uid)),
        (labels::CONTAINER_NAME, name.to_owned()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect()
}

fn annotations(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let (pod, c) = (inputs.pod, inputs.container);
    let mut out: BTreeMap<&str, String> = BTreeMap::new();
    out.insert(labels::HASH, format!("{:x}", spec_hash(c)));
    out.insert(labels::RESTART_COUNT, inputs.restart_count.to_string());
    out.insert(
        labels::MESSAGE_PATH,
        c.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned()),
    );
    out.insert(labels::MESSAGE_POLICY, c.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned()));
    out.insert(labels::POD_GRACE, termination::container_grace(pod, None, None).to_string());
    if let Some(g) = pod.metadata.deletion_grace_period_seconds {
        out.insert(labels::POD_DELETION_GRACE, g.to_string());
    }
    let json = |v: serde_json::Result<String>| v.unwrap_or_default();
    if let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        out.insert(labels::PRE_STOP, json(serde_json::to_string(hook)));
    }
    if let Some(ports) = c.ports.as_ref().filter(|p| !p.is_empty()) {
        out.insert(labels::PORTS, json(serde_json::to_string(ports)));
    }
    out.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}
