//! The CSI seam: the wire types of `csi.v1` and of plugin registration, the bundled [`driver`], its [`registrar`], and
//! the [`provisioner`] and [`attacher`] that upstream ships as sidecars.
//!
//! ```text
//! claim ─► provisioner ─► driver (Controller) ─► PersistentVolume
//! registration directory ─► registrar ─► node agent ─► driver (Node: stage, publish)
//! ```
#![warn(missing_docs)]

pub mod attacher;
pub mod driver;
mod grpc;
pub mod provisioner;
pub mod registrar;
pub mod v1;

pub use grpc::{ServeError, connect};
pub use provisioner::access_mode;
