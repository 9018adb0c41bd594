//! Volumes and claims: binding, protection while in use, claims of ephemeral volumes, attaching.
//! Source: k/k pkg/controller/volume.

pub(crate) mod attach;
pub(crate) mod bind;
pub(crate) mod claims;
pub(crate) mod ephemeral;
pub(crate) mod persistent;
pub(crate) mod protect;
mod start;
pub(crate) mod suit;

pub(crate) use start::start;

/// Set on a claim once its volume is settled.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Set on a claim or volume whose other half the controller chose.
pub(crate) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The node the scheduler chose for a claim's volume.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Who is to make the claim's volume; the older name is set as well.
pub(crate) const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
/// Who made a volume.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
