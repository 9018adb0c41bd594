//! Programs of ours in containers of a Docker engine: the running program packed into an image on the spot, started with
//! the capabilities it needs and no others, reached over a port of loopback, and removed after any end.
//!
//! Nothing is pulled. `testcontainers` starts and removes containers; `bollard` does what it has no words for: importing the
//! image, sweeping what killed runs left behind, and commands whose future may move between threads.
#![deny(missing_docs)]

mod engine;
mod image;
mod running;

pub use engine::{Engine, Owner};
pub use image::{PROGRAM, Parts};
pub use running::{Executed, Request, Running};

/// Why a container could not be had or used.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The engine is somewhere else.
    #[error(
        "DOCKER_HOST is {0}: the engine must be on this machine, because files are shared with it and ports are on loopback"
    )]
    Remote(String),
    /// The engine does not answer.
    #[error("the Docker engine at {at} does not answer ({why}); start it, or name another by DOCKER_HOST")]
    Engine {
        /// Its address.
        at: String,
        /// What was said instead.
        why: String,
    },
    /// The image could not be made.
    #[error("make an image of this program: {0}")]
    Image(String),
    /// A container did not come up.
    #[error("the container ended or was not ready in time: {why}\n{log}")]
    Start {
        /// What the engine or the wait said.
        why: String,
        /// The end of its log.
        log: String,
    },
    /// A command in it could not be run, or its log not be read.
    #[error("{what} in the container: {why}")]
    Inside {
        /// What was tried.
        what: String,
        /// Why not.
        why: String,
    },
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        // Some errors repeat their cause in their own words.
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}
