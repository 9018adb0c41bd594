//! Tapes: the calls at a gRPC seam (CRI, CSI), written down as they pass, played against a plugin alone, or served in its
//! place.
//!
//! ```text
//! caller ──► recorder ──► plugin          tape ──► replay ──► plugin          caller ──► serve
//!                └─► tape                            └─► differences                       └─ tape
//! ```
//! A tape is JSON lines: a head, then one line for each call in the order of their ends. What a secret could be is not
//! written down. Streams pass a recorder and are not on the tape.
#![deny(missing_docs)]

mod diff;
mod format;
mod methods;
mod record;
mod redact;
mod replay;
mod serve;
mod wire;

#[cfg(test)]
mod tests;

pub use format::{Answer, Call, Head, MAX_TAPE, Tape, TapeError, VERSION};
pub use methods::Seam;
pub use record::{Recorder, record};
pub use replay::{Difference, Patience, Refused, Replayed, SocketTarget, Target, replay};
pub use serve::serve;
pub use wire::WireError;
