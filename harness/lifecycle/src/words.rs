//! The closed vocabularies of the lifecycle: phases, condition types, and the reasons the node agent writes.
//!
//! Source: k/k pkg/kubelet/container/sync_result.go, pkg/kubelet/images/types.go, staging/src/k8s.io/api/core/v1/types.go.

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Accepted, not all containers started yet.
    Pending,
    /// At least one container runs or will be restarted.
    Running,
    /// All containers ended with exit code 0 and stay down.
    Succeeded,
    /// All containers ended and at least one failed.
    Failed,
    /// The node cannot tell.
    Unknown,
}

impl Phase {
    /// The phase of a wire string; absent or foreign strings are `Pending`, as a new Pod's.
    pub fn parse(s: Option<&str>) -> Self {
        match s {
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some("Unknown") => Self::Unknown,
            _ => Self::Pending,
        }
    }

    /// The wire string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether the phase never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each variant is the upstream word")]
        pub enum $name { $($variant),* }
        impl $name {
            /// The wire string.
            pub fn as_str(self) -> &'static str { match self { $(Self::$variant => stringify!($variant)),* } }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}

reasons! {
    /// Why a container waits.
    WaitingReason {
        ContainerCreating, PodInitializing, CrashLoopBackOff, ErrImagePull, ImagePullBackOff, ErrImageNeverPull,
        InvalidImageName, ImageInspectError, RegistryUnavailable, SignatureValidationFailed, CreateContainerConfigError,
        PreCreateHookError, CreateContainerError, PreStartHookError, RunContainerError, PostStartHookError,
        RestartingAllContainers,
    }
}

/// Condition types the node agent owns or shares.
pub mod condition {
    /// The sandbox exists and its network is up.
    pub const READY_TO_START: &str = "PodReadyToStartContainers";
    /// All init containers are done.
    pub const INITIALIZED: &str = "Initialized";
    /// The Pod may receive traffic.
    pub const READY: &str = "Ready";
    /// All containers are ready.
    pub const CONTAINERS_READY: &str = "ContainersReady";
    /// A node was chosen.
    pub const SCHEDULED: &str = "PodScheduled";
    /// The Pod is about to be ended by a disruption.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// A resize waits.
    pub const RESIZE_PENDING: &str = "PodResizePending";
    /// A resize is being carried out.
    pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
    /// Everything restarts because a restart rule said so.
    pub const ALL_RESTARTING: &str = "AllContainersRestarting";

    /// Whether only the node agent writes conditions of this type.
    /// Source: k/k pkg/kubelet/types/pod_status.go PodConditionByKubelet.
    pub fn owned_by_agent(kind: &str) -> bool {
        matches!(
            kind,
            READY_TO_START
                | INITIALIZED
                | READY
                | CONTAINERS_READY
                | SCHEDULED
                | RESIZE_PENDING
                | RESIZE_IN_PROGRESS
                | ALL_RESTARTING
        )
    }
}

/// Go's `%v` of a string slice: `[a b]`.
pub fn bracketed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}
