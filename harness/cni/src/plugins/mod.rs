//! The bundled plugins.

pub mod bridge;
pub mod host_local;
pub mod loopback;
pub mod portmap;

use crate::types::{CniError, CniResult, Invocation};

/// Names of the bundled plugins, as found in `CNI_PATH`.
pub const NAMES: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// Runs a bundled plugin on a checked invocation. Only ADD has a result.
pub(crate) fn run(plugin: &str, invocation: &Invocation) -> Result<Option<CniResult>, CniError> {
    match plugin {
        "bridge" => bridge::run(invocation),
        "host-local" => host_local::run(invocation),
        "loopback" => loopback::run(invocation),
        "portmap" => portmap::run(invocation),
        other => Err(CniError::other(format!("podlab has no CNI plugin {other:?}"))),
    }
}

/// A netlink failure, worded for the runtime.
fn netlink(what: &str) -> impl FnOnce(crate::netlink::NetlinkError) -> CniError {
    let what = what.to_owned();
    move |e| {
        let source = std::error::Error::source(&e).map(|s| format!(": {s}")).unwrap_or_default();
        CniError::other(format!("{what}: {e}{source}"))
    }
}
