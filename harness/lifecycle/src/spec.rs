//! Reading a Pod's spec: its containers by kind, sidecars, restart policies, identities used in messages.

use podlab_api::core::{Container, EphemeralContainer, Pod, PodSpec};

/// The three lists a container may be declared in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// `spec.initContainers`, sidecars included.
    Init,
    /// `spec.containers`.
    Regular,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

impl ContainerKind {
    /// `involvedObject.fieldPath` of a container of this kind.
    pub fn field_path(self, name: &str) -> String {
        let list = match self {
            Self::Init => "initContainers",
            Self::Regular => "containers",
            Self::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{name}}}")
    }
}

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart whatever the exit code.
    Always,
    /// Restart after a failure.
    OnFailure,
    /// Do not restart.
    Never,
}

impl RestartPolicy {
    /// Absent means `Always`.
    pub fn parse(s: Option<&str>) -> Self {
        match s {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }
}

/// An empty spec, for Pods that have none.
pub fn pod_spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// The Pod's restart policy.
pub fn restart_policy(pod: &Pod) -> RestartPolicy {
    RestartPolicy::parse(pod_spec(pod).restart_policy.as_deref())
}

/// Init containers in order, sidecars included.
pub fn init_containers(pod: &Pod) -> &[Container] {
    pod_spec(pod).init_containers.as_deref().unwrap_or_default()
}

/// Regular containers in order.
pub fn containers(pod: &Pod) -> &[Container] {
    &pod_spec(pod).containers
}

/// Ephemeral containers in order, as ordinary containers.
pub fn ephemeral_containers(pod: &Pod) -> Vec<Container> {
    pod_spec(pod).ephemeral_containers.iter().flatten().map(as_container).collect()
}

/// Whether an init container is a sidecar.
/// Source: k/k pkg/api/v1/pod/util.go IsRestartableInitContainer.
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// The container of a name, with its kind.
pub fn find(pod: &Pod, name: &str) -> Option<(ContainerKind, Container)> {
    let by_name = |list: &[Container]| list.iter().find(|c| c.name == name).cloned();
    by_name(init_containers(pod))
        .map(|c| (ContainerKind::Init, c))
        .or_else(|| by_name(containers(pod)).map(|c| (ContainerKind::Regular, c)))
        .or_else(|| by_name(&ephemeral_containers(pod)).map(|c| (ContainerKind::Ephemeral, c)))
}

/// Whether the Pod is marked for deletion.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the Pod uses the node's network.
pub fn host_network(pod: &Pod) -> bool {
    pod_spec(pod).host_network.unwrap_or(false)
}

/// Where a Pod came from: `api`, `file` or `http`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Marks the API's picture of a static Pod; the value is the hash of the Pod it shows.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Hash of a static Pod's manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the Pod comes from the node itself, not from the API.
/// Source: k/k pkg/kubelet/types/pod_update.go IsStaticPod.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|s| s != "api")
}

/// Whether the Pod is the API's picture of a static one. Source: IsMirrorPod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// `name_namespace(uid)`, as messages write a Pod. Source: k/k pkg/kubelet/util/format/pod.go.
pub fn pod_label(pod: &Pod) -> String {
    let m = &pod.metadata;
    format!(
        "{}_{}({})",
        m.name.as_deref().unwrap_or_default(),
        m.namespace.as_deref().unwrap_or_default(),
        m.uid.as_deref().unwrap_or_default()
    )
}

/// An ephemeral container in the shape of an ordinary one.
pub fn as_container(e: &EphemeralContainer) -> Container {
    let e = e.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}
