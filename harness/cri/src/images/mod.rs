//! Images: references, the store on disk, pulls from registries, imports of archives.
//!
//! ```text
//! reference ─► registry (manifest, config, layers; digests checked) ─► unpack ─► layer directories, by chain id
//! archive  ──────────────────────────────────────────────────────────►        └► record: names, config, layers
//! ```

mod auth;
mod error;
mod http;
mod import;
mod manifest;
mod pull;
mod reference;
mod store;
mod unpack;

pub use auth::Credentials;
pub use error::ImageError;
pub use manifest::ImageConfig;
pub use pull::Puller;
pub use reference::Reference;
pub(crate) use store::disk_usage;
pub use store::{ImageRecord, Store};
