//! The run log and its folds: one typed, append-only record of what happened, and everything that is derived from it.
//!
//! Components receive a [`Recorder`] and write [`Entry`] values; they never read the log. Readers ([`fold`], the
//! reporters) never look at live state. All stamps are on one monotonic clock shared by the processes of a run.
#![deny(missing_docs)]

pub mod diff;
mod entry;
pub mod fold;
mod recorder;

pub use entry::{Entry, Event, Lane, Outcome, PodKey, SCHEMA_VERSION, Stage};
pub use fold::PodTimeline;
pub use recorder::{MemorySink, Recorder, RecorderError, Sink};
