//! The node as an API object: registration, status, conditions, lease, runtime health.
//! Source: k/k pkg/kubelet/{kubelet_node_status.go,nodestatus/setters.go}, staging/src/k8s.io/component-helpers/apimachinery/lease.

mod enforce;
mod health;
mod lease;
mod register;
mod status;

pub(crate) use enforce::enforce;
pub(crate) use health::{check, watch_health};
pub(crate) use lease::renew;
pub(crate) use register::register;
pub(crate) use status::{allocatable, report};
