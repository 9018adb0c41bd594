//! From CRI messages to what a simulated process needs, and back to what a runtime lists.

use std::path::{Path, PathBuf};

use podlab_cri::{NetRequest, PortMapping, v1};

use super::super::program::{Mount, User};

/// `PATH` of the test image.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn security(c: &v1::ContainerConfig) -> v1::LinuxContainerSecurityContext {
    c.linux.as_ref().and_then(|l| l.security_context.clone()).unwrap_or_default()
}

pub(super) fn user(s: &v1::LinuxContainerSecurityContext) -> User {
    let id = |v: &Option<v1::Int64Value>| v.as_ref().map_or(0, |v| v.value);
    User { uid: id(&s.run_as_user), gid: id(&s.run_as_group), groups: s.supplemental_groups.clone() }
}

pub(super) fn mounts(c: &v1::ContainerConfig) -> Vec<Mount> {
    let one = |m: &v1::Mount| Mount {
        inside: PathBuf::from(&m.container_path),
        outside: PathBuf::from(&m.host_path),
        read_only: m.readonly,
    };
    c.mounts.iter().map(one).collect()
}

/// The command of a container; the test image's own is `serve`.
pub(super) fn argv(c: &v1::ContainerConfig) -> Vec<String> {
    let mut argv = c.command.clone();
    argv.extend(c.args.iter().cloned());
    if argv.is_empty() { vec!["serve".to_owned()] } else { argv }
}

pub(super) fn memory_limit(c: &v1::ContainerConfig) -> Option<u64> {
    let limit = c.linux.as_ref()?.resources.as_ref()?.memory_limit_in_bytes;
    u64::try_from(limit).ok().filter(|l| *l > 0)
}

pub(super) fn namespace_options(c: &v1::PodSandboxConfig) -> Option<v1::NamespaceOption> {
    c.linux.as_ref()?.security_context.as_ref()?.namespace_options.clone()
}

/// What the network is told of a Pod; `None` on the node's network.
pub(super) fn net_request(id: &str, c: &v1::PodSandboxConfig) -> Option<NetRequest> {
    if namespace_options(c).is_some_and(|o| o.network() == v1::NamespaceMode::Node) {
        return None;
    }
    let m = c.metadata.clone().unwrap_or_default();
    let port = |p: &v1::PortMapping| {
        let host = u16::try_from(p.host_port).ok().filter(|n| *n > 0)?;
        let container_port = u16::try_from(p.container_port).ok()?;
        Some(PortMapping { host_port: host, container_port, protocol: "tcp", host_ip: p.host_ip.clone() })
    };
    Some(NetRequest {
        sandbox_id: id.to_owned(),
        netns: PathBuf::from(format!("/run/netns/{id}")),
        ifname: "eth0".into(),
        pod_namespace: m.namespace,
        pod_name: m.name,
        pod_uid: m.uid,
        annotations: c.annotations.clone(),
        port_mappings: c.port_mappings.iter().filter_map(port).collect(),
        ..NetRequest::default()
    })
}

/// The status of a container that was just created.
pub(super) fn created(
    id: &str,
    c: &v1::ContainerConfig,
    (image_id, image_ref): (String, String),
    log_directory: &str,
    now: i64,
) -> v1::ContainerStatus {
    let u = user(&security(c));
    let mut groups = vec![u.gid];
    groups.extend(u.groups.iter().filter(|g| **g != u.gid));
    let image = c.image.clone().unwrap_or_default();
    let asked = image.user_specified_image;
    let shown = if asked.is_empty() { image.image } else { asked.clone() };
    v1::ContainerStatus {
        id: id.to_owned(),
        metadata: c.metadata.clone(),
        state: v1::ContainerState::ContainerCreated.into(),
        created_at: now,
        image: Some(v1::ImageSpec { image: shown, user_specified_image: asked, ..Default::default() }),
        image_ref,
        image_id,
        stop_signal: match c.stop_signal() {
            v1::Signal::RuntimeDefault => v1::Signal::Sigterm.into(),
            given => given.into(),
        },
        labels: c.labels.clone(),
        annotations: c.annotations.clone(),
        mounts: c.mounts.clone(),
        log_path: Path::new(log_directory).join(&c.log_path).display().to_string(),
        user: Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser { uid: u.uid, gid: u.gid, supplemental_groups: groups }),
        }),
        resources: c
            .linux
            .as_ref()
            .and_then(|l| l.resources.clone())
            .map(|r| v1::ContainerResources { linux: Some(r), windows: None }),
        ..Default::default()
    }
}

pub(super) fn listed_sandbox(s: &v1::PodSandboxStatus) -> v1::PodSandbox {
    v1::PodSandbox {
        id: s.id.clone(),
        metadata: s.metadata.clone(),
        state: s.state,
        created_at: s.created_at,
        labels: s.labels.clone(),
        annotations: s.annotations.clone(),
        runtime_handler: s.runtime_handler.clone(),
    }
}

pub(super) fn listed_container(s: &v1::ContainerStatus, sandbox: &str) -> v1::Container {
    v1::Container {
        id: s.id.clone(),
        pod_sandbox_id: sandbox.to_owned(),
        metadata: s.metadata.clone(),
        image: s.image.clone(),
        image_ref: s.image_ref.clone(),
        state: s.state,
        created_at: s.created_at,
        labels: s.labels.clone(),
        annotations: s.annotations.clone(),
        image_id: s.image_id.clone(),
    }
}
