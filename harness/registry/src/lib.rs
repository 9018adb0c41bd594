//! The hermetic OCI registry: the distribution API over plain HTTP on sockets it is given, open or behind basic
//! authentication, with pull, push and tag listing. Blobs live in memory and, when a directory is given, on disk.
//!
//! Source: OCI distribution-spec 1.1.
#![deny(missing_docs)]

pub mod archive;
mod routes;
mod server;
mod storage;

pub use server::{Access, Registry, RegistryError};
pub use storage::{Storage, StorageError};
