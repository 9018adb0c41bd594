//! A node without a machine: a runtime and a host in memory, on the clock they are given. Same traits, same order of
//! effects; what containers do is scripted.

mod host;
mod images;
mod runtime;
mod script;

pub use host::{Dialer, MemoryHost};
pub use runtime::MemoryRuntime;
pub use script::{ExecScript, ImageScript, Script, Usage};
