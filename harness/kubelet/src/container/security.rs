//! Whom a container runs as and what it may do. Source: k/k pkg/securitycontext/{util,accessors}.go,
//! pkg/kubelet/kuberuntime/security_context{,_others}.go.

use std::path::Path;

use podlab_api::core::{AppArmorProfile, Container, Pod, SeccompProfile};
use podlab_cri::v1;
use podlab_lifecycle::spec;

use super::config::ConfigError;

/// Paths hidden from unprivileged containers.
const MASKED: [&str; 13] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/devices/system/cpu/cpu0/thermal_throttle",
];
/// Paths they may only read.
const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The image's default user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageUser {
    /// Numeric user, if it is one.
    pub(crate) uid: Option<i64>,
    /// Name, otherwise.
    pub(crate) username: String,
}

/// Refuses to start a container as root that must not be.
pub(crate) fn check_non_root(pod: &Pod, container: &Container, image: &ImageUser) -> Result<(), ConfigError> {
    let own = container.security_context.as_ref();
    let all = spec::pod_spec(pod).security_context.as_ref();
    let must = own.and_then(|s| s.run_as_non_root).or_else(|| all.and_then(|s| s.run_as_non_root)).unwrap_or(false);
    if !must {
        return Ok(());
    }
    let place = format!("(pod: \"{}\", container: {})", spec::pod_label(pod), container.name);
    match run_as_user(pod, container) {
        Some(0) => Err(ConfigError::Text(format!("container's runAsUser breaks non-root policy {place}"))),
        Some(_) => Ok(()),
        None if !image.username.is_empty() && image.uid.is_none() => Err(ConfigError::Text(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root {place}",
            image.username
        ))),
        None if image.uid.unwrap_or(0) == 0 => {
            Err(ConfigError::Text(format!("container has runAsNonRoot and image will run as root {place}")))
        }
        None => Ok(()),
    }
}

/// The user the spec asks for.
pub(crate) fn run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    let own = container.security_context.as_ref().and_then(|s| s.run_as_user);
    own.or_else(|| spec::pod_spec(pod).security_context.as_ref().and_then(|s| s.run_as_user))
}

/// Supplementary groups: the Pod's, and its fsGroup.
pub(crate) fn groups(pod: &Pod) -> Vec<i64> {
    let Some(s) = &spec::pod_spec(pod).security_context else { return Vec::new() };
    s.fs_group.into_iter().chain(s.supplemental_groups.iter().flatten().copied()).collect()
}

/// Whether the Pod's groups replace those of the image.
pub(crate) fn groups_policy(pod: &Pod) -> v1::SupplementalGroupsPolicy {
    let strict = spec::pod_spec(pod).security_context.as_ref().and_then(|s| s.supplemental_groups_policy.as_deref());
    if strict == Some("Strict") { v1::SupplementalGroupsPolicy::Strict } else { v1::SupplementalGroupsPolicy::Merge }
}

/// Namespaces of a Pod's sandbox and containers; `target` is the container an ephemeral one looks into.
pub(crate) fn namespaces(pod: &Pod, target: Option<&str>) -> v1::NamespaceOption {
    let s = spec::pod_spec(pod);
    let mode = |host: Option<bool>| if host == Some(true) { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod };
    let pid = if s.host_pid == Some(true) {
        v1::NamespaceMode::Node
    } else if target.is_some() {
        v1::NamespaceMode::Target
    } else if s.share_process_namespace == Some(true) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    v1::NamespaceOption {
        network: mode(s.host_network).into(),
        ipc: mode(s.host_ipc).into(),
        pid: pid.into(),
        target_id: target.filter(|_| pid == v1::NamespaceMode::Target).unwrap_or_default().to_owned(),
        userns_options: None,
    }
}

/// Seccomp profile of a container, or of the sandbox for `None`.
pub(crate) fn seccomp(pod: &Pod, container: Option<&Container>, default_on: bool, root: &Path) -> v1::SecurityProfile {
    let own = container.and_then(|c| c.security_context.as_ref()).and_then(|s| s.seccomp_profile.as_ref());
    let profile =
        own.or_else(|| spec::pod_spec(pod).security_context.as_ref().and_then(|s| s.seccomp_profile.as_ref()));
    let kind = v1::security_profile::ProfileType::Unconfined;
    match profile {
        Some(SeccompProfile { type_, localhost_profile }) => match type_.as_str() {
            "RuntimeDefault" => v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
                ..Default::default()
            },
            "Localhost" => v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::Localhost.into(),
                localhost_ref: root
                    .join("seccomp")
                    .join(localhost_profile.clone().unwrap_or_default())
                    .display()
                    .to_string(),
            },
            _ => v1::SecurityProfile { profile_type: kind.into(), ..Default::default() },
        },
        None if default_on => v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
            ..Default::default()
        },
        None => v1::SecurityProfile { profile_type: kind.into(), ..Default::default() },
    }
}

fn apparmor(pod: &Pod, container: &Container) -> Option<v1::SecurityProfile> {
    let own = container.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let AppArmorProfile { type_, localhost_profile } =
        own.or_else(|| spec::pod_spec(pod).security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()))?;
    let profile_type = match type_.as_str() {
        "RuntimeDefault" => v1::security_profile::ProfileType::RuntimeDefault,
        "Localhost" => v1::security_profile::ProfileType::Localhost,
        _ => v1::security_profile::ProfileType::Unconfined,
    };
    Some(v1::SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: localhost_profile.clone().unwrap_or_default(),
    })
}

/// The security context of a container.
pub(crate) fn context(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<&str>,
    seccomp_default: bool,
    root: &Path,
) -> v1::LinuxContainerSecurityContext {
    let own = container.security_context.clone().unwrap_or_default();
    let all = spec::pod_spec(pod).security_context.clone().unwrap_or_default();
    let privileged = own.privileged.unwrap_or(false);
    let int = |v: i64| v1::Int64Value { value: v };
    let user = run_as_user(pod, container);
    let (uid, username) = match user {
        Some(u) => (Some(u), String::new()),
        None if image.uid.is_some() => (image.uid, String::new()),
        None => (None, image.username.clone()),
    };
    let selinux = own.se_linux_options.or(all.se_linux_options).map(|o| v1::SeLinuxOption {
        user: o.user.unwrap_or_default(),
        role: o.role.unwrap_or_default(),
        r#type: o.type_.unwrap_or_default(),
        level: o.level.unwrap_or_default(),
    });
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let list = |paths: &[&str]| if unmasked { Vec::new() } else { paths.iter().map(|p| (*p).to_owned()).collect() };
    v1::LinuxContainerSecurityContext {
        capabilities: Some(own.capabilities.map_or_else(v1::Capability::default, |c| v1::Capability {
            add_capabilities: c.add.unwrap_or_default(),
            drop_capabilities: c.drop.unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        })),
        privileged,
        namespace_options: Some(namespaces(pod, target)),
        selinux_options: selinux,
        run_as_user: uid.map(int),
        run_as_group: own.run_as_group.or(all.run_as_group).map(int),
        run_as_username: username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod).into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: list(&MASKED),
        readonly_paths: list(&READONLY),
        seccomp: Some(seccomp(pod, Some(container), seccomp_default && !privileged, root)),
        apparmor: apparmor(pod, container),
        ..Default::default()
    }
}
