//! The CRI seam: the wire types of `runtime.v1` and the runtime that serves them.
pub mod v1;
