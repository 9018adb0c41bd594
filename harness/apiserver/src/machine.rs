//! The generic resource machine: every verb, for every row, from HTTP and from within the process alike.

mod create;
mod delete;
mod meta;
mod read;
mod scale;
mod services;
mod update;
mod watch;

pub(crate) use create::pod_key;
pub(crate) use delete::DeleteRequest;
pub(crate) use meta::labels_at as validate_labels;
pub(crate) use read::{ListQuery, Listed, Match};
pub(crate) use scale::selector_text;
pub(crate) use update::{Change, unsupported_media_type};
pub(crate) use watch::{Change as WatchChange, Watch, WatchQuery};
