//! What the API shows of Pods: every status the workers generate is written in order, as a patch against what the API
//! last showed; and the object of a deleted Pod is removed once nothing is left of it on the node.

mod manager;
mod patch;

pub(crate) use manager::{StatusManager, key_of};
