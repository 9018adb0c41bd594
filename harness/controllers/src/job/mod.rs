//! Jobs: Pods are run until enough have succeeded or too many have failed. Source: k/k pkg/controller/job.
//!
//! Every Pod carries a finalizer until it has been counted: first its UID is written into `uncountedTerminatedPods`, then
//! the finalizer goes, then the counter takes it. A controller that dies in between counts nothing twice.

mod count;
mod policy;
mod start;
mod sync;

pub(crate) use start::start;
