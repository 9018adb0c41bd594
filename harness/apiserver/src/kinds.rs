//! The kinds the server knows, one row each, and how to find them.

mod apps;
mod batch;
mod core;
mod events;
mod job;
mod namespace;
mod node;
mod policy;
mod rbac;
mod registry;
mod resource;
mod reviews;
mod row;
mod service;
mod storage;
mod workload;

pub(crate) use events::{from_storage as event_from_storage, to_storage as event_to_storage};
pub(crate) use registry::registry;
pub(crate) use row::{BASE, Kind, NameRule, Row, STATUS, Strategy, Sub, SubKind, Verbs};
