//! Labels and annotations the node agent puts on CRI objects, by which it finds them again.
//! Source: k/k pkg/kubelet/kuberuntime/labels.go.

pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub(crate) const HASH: &str = "io.kubernetes.container.hash";
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub(crate) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub(crate) const PORTS: &str = "io.kubernetes.container.ports";
pub(crate) const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub(crate) const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";

pub(crate) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub(crate) const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
