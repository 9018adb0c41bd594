//! CNI 1.1: the wire [`types`], the plugin side ([`skel`], [`plugins`]), the runtime side ([`chain`]) and the kernel
//! interfaces they need ([`netlink`], [`nft`]).
//!
//! The bundled plugins are ordinary executables by the spec's exec protocol; [`chain`] can also call them linked in,
//! which gives the same result without an exec. Nothing here knows Kubernetes beyond the `K8S_POD_*` arguments.
#![deny(missing_docs)]

pub mod chain;
pub mod netlink;
pub mod nft;
pub mod plugins;
pub mod skel;
pub mod types;
