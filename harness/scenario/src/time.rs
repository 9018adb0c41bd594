//! Durations as scenarios write them; a fault has some too.

pub use podlab_fault::Span;
