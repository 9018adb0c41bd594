//! Playing scenarios: boots a cluster, does the steps, watches, judges, and writes everything into the run log.
//!
//! [`play`] plays one scenario; [`suite`] plays a folder of them with live progress. Outcomes are kept apart: passed,
//! failed (the system under test), broken (the harness), skipped, invalid (a fault did not do its work).
#![deny(missing_docs)]

mod acts;
mod apply;
mod backend;
mod elapsed;
mod events;
mod exec;
pub mod explore;
mod invariants;
mod judge;
mod kept;
mod leaks;
#[cfg(feature = "libtest")]
pub mod library;
mod load;
mod monitors;
pub mod mutants;
mod overcommit;
mod owed;
pub mod parity;
mod perform;
pub mod place;
mod play;
mod player;
mod proof;
pub mod quarantine;
mod recorded;
mod scope;
pub mod select;
pub mod session;
mod steps;
pub mod suite;
mod summary;
mod tape;
mod temporal;
mod watch;

pub use play::{Failure, Outcome, PlayOptions, Played, Trial, VirtualOptions, play, play_virtual};
