//! Generated types of `proto/csi.proto` and `proto/pluginregistration.proto`.
#![allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all, reason = "generated code")]

tonic::include_proto!("csi.v1");

/// Plugin registration.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
