//! Generated types of `proto/runtime.proto`: messages, clients and server traits of package `runtime.v1`.
#![allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all, reason = "generated code")]

tonic::include_proto!("runtime.v1");
