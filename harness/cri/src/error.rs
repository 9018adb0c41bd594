//! What can go wrong in an RPC, and the gRPC code it has. Texts are those of containerd where users see them; errors
//! without a code of their own are `Unknown`, as there.

use tonic::{Code, Status};

use crate::{images::ImageError, init::InitError, launch::LaunchError, network::NetworkError};

/// A failed RPC.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such sandbox, container or image.
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The name is taken.
    #[error("{0}")]
    Exists(String),
    /// Not in this state.
    #[error("{0}")]
    State(String),
    /// It took too long.
    #[error("{0}")]
    Deadline(String),
    /// Too many at once.
    #[error("{0}")]
    Exhausted(String),
    /// Not something we do.
    #[error("{0}")]
    Unimplemented(String),
    /// A process did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// An image could not be had.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The network could not be set up.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The node's init did not answer.
    #[error(transparent)]
    Init(#[from] InitError),
    /// A file or a system call.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: an I/O error and what was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}

impl From<Error> for Status {
    fn from(e: Error) -> Self {
        let code = match &e {
            Error::NotFound(_) => Code::NotFound,
            Error::Invalid(_) => Code::InvalidArgument,
            Error::Exists(_) => Code::AlreadyExists,
            Error::Deadline(_) => Code::DeadlineExceeded,
            Error::Exhausted(_) => Code::ResourceExhausted,
            Error::Unimplemented(_) => Code::Unimplemented,
            Error::Image(image) => image.code(),
            Error::State(_) | Error::Launch(_) | Error::Network(_) | Error::Init(_) | Error::Io { .. } => Code::Unknown,
        };
        Self::new(code, e.to_string())
    }
}
