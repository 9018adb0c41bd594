//! The words of the project: Kubernetes types (re-exported from `k8s-openapi`, never re-declared), the dynamic
//! [`Object`] the API server and its clients hand around, [`ResourceRef`] (which resource), [`ApiError`] (how a call
//! failed) and quantity arithmetic. No I/O, no clock, no async.
#![deny(missing_docs)]

pub use k8s_openapi;
pub use k8s_openapi::api::{
    apps::v1 as apps, authentication::v1 as authentication, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as discovery, policy::v1 as policy, scheduling::v1 as scheduling, storage::v1 as storage,
};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
pub use k8s_openapi::jiff;

pub mod cron;
mod error;
pub mod matching;
mod object;
mod quantity;
pub mod request;
mod resource;
pub mod sysctl;

pub use error::{ApiError, Reason};
pub use object::Object;
pub use quantity::{ParseQuantityError, parse_milli, parse_quantity};
pub use resource::{KubeType, ResourceRef};
