//! StatefulSet: Pods with a name, an order and a claim of their own. Source: k/k pkg/controller/statefulset.
//!
//! [`pod`] makes Pods and claims, [`plan`] decides on the next step, both pure; [`sync`] does what they say.

mod claims;
mod plan;
mod pod;
mod start;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use start::start;
