//! The list: what each mutant does wrong, and the trials that turn red because of it.

use serde::{Deserialize, Serialize};

/// Whose behaviour is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The node agent.
    NodeAgent,
    /// The scheduler.
    Scheduler,
    /// The controllers.
    Controllers,
    /// The API server.
    ApiServer,
    /// The CRI runtime.
    Cri,
    /// The CNI plugins.
    Cni,
    /// The CSI driver.
    Csi,
}

impl Component {
    /// As the table writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeAgent => "node agent",
            Self::Scheduler => "scheduler",
            Self::Controllers => "controllers",
            Self::ApiServer => "API server",
            Self::Cri => "CRI",
            Self::Cni => "CNI",
            Self::Csi => "CSI",
        }
    }
}

macro_rules! mutants {
    ($($variant:ident, $name:literal, $component:ident, $wrong:literal, [$($trial:literal),+];)+) => {
        /// A known-bad change. Its name is written in kebab case.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Mutant {
            $(#[doc = $wrong] #[serde(rename = $name)] $variant,)+
        }

        impl Mutant {
            /// All of them, component by component.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The one of a name.
            pub fn of(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|m| m.name() == name)
            }

            /// Whose behaviour is changed.
            pub fn component(self) -> Component {
                match self { $(Self::$variant => Component::$component,)+ }
            }

            /// What is wrong with it, in a sentence.
            pub fn wrong(self) -> &'static str {
                match self { $(Self::$variant => $wrong,)+ }
            }

            /// Names of trials, each of which fails when it is on. A scenario of both worlds has `@virtual` behind its
            /// name where the virtual one is meant.
            pub fn caught_by(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($trial),+],)+ }
            }
        }
    };
}

mutants! {
    BackoffStays, "backoff-stays", NodeAgent, "A crash loop waits ten seconds each time.",
        ["virtual/backoff/crash-loop-doubles-from-ten-seconds-to-five-minutes"];
    BackoffNeverResets, "backoff-never-resets", NodeAgent, "A container that lived long does not start over.",
        ["virtual/backoff/a-container-that-lived-ten-minutes-starts-over"];
    OneFailureIsEnough, "one-failure-is-enough", NodeAgent, "A probe's failure threshold counts as 1.",
        ["virtual/probes/three-failures-ten-seconds-apart-restart"];
    OneSuccessIsEnough, "one-success-is-enough", NodeAgent, "A probe's success threshold counts as 1.",
        ["virtual/probes/readiness-takes-its-success-threshold"];
    StartupHoldsNobody, "startup-holds-nobody", NodeAgent, "Other probes do not wait for the startup probe.",
        ["virtual/probes/liveness-waits-for-the-startup-probe"];
    PreStopIsFree, "pre-stop-is-free", NodeAgent, "What preStop took does not count against the grace period.",
        ["virtual/termination/prestop-takes-from-the-grace-period"];
    PreStopIsSkipped, "pre-stop-is-skipped", NodeAgent, "Deleting a Pod runs no preStop hook.",
        ["termination/prestop-runs-before-term@virtual"];
    SidecarsGoFirst, "sidecars-go-first", NodeAgent, "Sidecars get their TERM together with the containers.",
        ["virtual/termination/a-sidecar-outlives-the-main-container"];
    GraceIsForgotten, "grace-is-forgotten", NodeAgent, "A Pod gets thirty seconds whatever it or its deletion says.",
        ["virtual/termination/a-deletion-may-bring-its-own-grace"];
    FailureLooksLikeSuccess, "failure-looks-like-success", NodeAgent, "A Pod whose container failed for good shows Succeeded.",
        ["containers/never-restarted-ends-failed@virtual"];
    OnFailureIsAlways, "on-failure-is-always", NodeAgent, "OnFailure restarts a container that ended well.",
        ["containers/on-failure-lets-success-be@virtual"];
    InitFailureIsIgnored, "init-failure-is-ignored", NodeAgent, "A failed init container lets the next one start.",
        ["virtual/init/a-failing-init-container-backs-off"];
    PullsTogether, "pulls-together", NodeAgent, "Serial pulls do not wait for each other.",
        ["virtual/images/pulls-wait-for-each-other"];
    StatusWrittenOnce, "status-written-once", NodeAgent, "A status write that fails is not repeated.",
        ["virtual/crash/a-refused-status-write-is-repeated"];
    ForgetsWhatRuns, "forgets-what-runs", NodeAgent, "After its restart the agent does not ask the runtime what runs.",
        ["recovery/agent-restart-leaves-the-container-alone@virtual"];
    RoomForEverybody, "room-for-everybody", Scheduler, "Requests are not held against what a node has left.",
        ["scheduling/unschedulable-until-room-is-made@virtual"];
    AntiAffinityIsIgnored, "anti-affinity-is-ignored", Scheduler, "Pods that must not be together are put together.",
        ["scheduling/anti-affinity-spreads-over-two-nodes@virtual"];
    TaintsAreIgnored, "taints-are-ignored", Scheduler, "A Pod is put on a node whose taints it does not tolerate.",
        ["virtual/node/a-new-pod-does-not-go-to-a-lost-node"];
    PreemptsNobody, "preempts-nobody", Scheduler, "A Pod of high priority evicts no other.",
        ["virtual/node/preemption-waits-for-the-grace-of-its-victim"];
    TolerationsEndAtOnce, "tolerations-end-at-once", Controllers, "A toleration's seconds are taken as none.",
        ["virtual/node/a-toleration-of-ten-seconds-is-ten-seconds"];
    OrphansStay, "orphans-stay", Controllers, "What an object owned stays when the object goes.",
        ["virtual/finish/a-pod-whose-owner-is-gone-goes-too"];
    DeletesAtOnce, "deletes-at-once", ApiServer, "A deleted Pod's object goes before its node agent has let go.",
        ["virtual/termination/thirty-seconds-are-the-default-grace"];
    EveryExitIsZero, "every-exit-is-zero", Cri, "Every container is reported to have ended with 0.",
        ["containers/never-restarted-ends-failed"];
    KillsAtOnce, "kills-at-once", Cri, "StopContainer sends KILL without asking first.",
        ["termination/prestop-runs-before-term"];
    OomIsJustAnExit, "oom-is-just-an-exit", Cri, "A container killed for its memory does not say so.",
        ["containers/memory-limit-kills-with-oomkilled"];
    NetworkIsKept, "network-is-kept", Cri, "A sandbox that stops does not give its network back.",
        ["termination/prestop-runs-before-term"];
    AddressesAreKept, "addresses-are-kept", Cni, "host-local's DEL keeps the address.",
        ["termination/prestop-runs-before-term"];
    AnnotationIsIgnored, "annotation-is-ignored", Cni, "bridge does not ask for the address an annotation names.",
        ["network/static-address-annotation"];
    VolumesComeEmpty, "volumes-come-empty", Csi, "NodeUnstageVolume clears the volume.", ["volumes/claim-keeps-data-over-pods"];
    StagesOnce, "stages-once", Csi, "NodeStageVolume of a volume that is staged already is an error.",
        ["volumes/a-lost-answer-to-stage-is-harmless"];
    PublishesReadOnly, "publishes-read-only", Csi, "NodePublishVolume mounts read-only whoever asks.",
        ["volumes/claim-keeps-data-over-pods"];
}
