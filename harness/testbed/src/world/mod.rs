//! The virtual world: a whole cluster on one thread under a paused clock. The API server, the scheduler, the controllers
//! and the node agents are the real ones; the machine under them is not: [`node`] simulates a runtime whose containers
//! run the test image's programs, a network and a CSI driver, all in memory.
//!
//! ```text
//! runner ──► API server ◄── tap ── scheduler, controllers
//!                ▲
//!                └── tap ── node agent ── tap ──► simulated runtime, driver
//! ```
//! A tap lets others run first, takes time, applies the fault plan and may kill the agent that calls; what it does
//! follows from the seed ([`Choices`]), so the same seed gives the same run to the byte.

mod api;
mod choices;
mod cluster;
mod network;
mod node;
mod program;
mod seam;

pub use choices::{Choice, Choices, Disturbance};
pub use cluster::{VirtualCluster, WorldError, WorldSpec, run};
