//! How components reach the API server: the object-safe [`Api`] trait (one implementation in process, one over HTTPS),
//! the typed [`Client`] over it, [`reflector`] caches and the [`events`] recorder.
//!
//! A component takes an `Arc<dyn Api>` and never knows which implementation it has.
#![deny(missing_docs)]

mod api;
pub mod events;
pub mod http;
pub mod kubeconfig;
pub mod reflector;
mod typed;

pub use api::{
    Api, Collection, DeleteOptions, ListOptions, ObjectList, PatchKind, Target, WatchEvent, WatchOptions, WatchStream,
    WatchType,
};
pub use typed::{Client, Resource, TypedEvent};
