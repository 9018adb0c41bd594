//! CronJob: Jobs by the calendar. Source: k/k pkg/controller/cronjob.
//!
//! [`due`] finds the moment a Job is owed for, pure; [`sync`] makes it.

mod due;
mod start;
mod sync;

pub(crate) use start::start;
