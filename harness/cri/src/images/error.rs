//! Why an image could not be had, in containerd's words.

use std::io;

use tonic::Code;

/// A failed image operation.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not an image reference.
    #[error("couldn't parse image name {0:?}: {1}")]
    Reference(String, &'static str),
    /// A step of a pull; wraps what happened.
    #[error("failed to pull and unpack image {image:?}: {source}")]
    Pull {
        /// Normalised reference.
        image: String,
        /// What happened.
        #[source]
        source: Box<ImageError>,
    },
    /// The manifest could not be found. In the words of containerd 2.4, as a real cluster said them.
    #[error("failed to resolve image: {source}")]
    Resolve {
        /// What happened.
        #[source]
        source: Box<ImageError>,
    },
    /// The registry has no such thing.
    #[error("{0}: not found")]
    NotFound(String),
    /// The registry wants (other) credentials.
    #[error("pull access denied, repository does not exist or may require authorization: {0}")]
    Denied(String),
    /// The registry answered something else.
    #[error("unexpected status from {method} request to {url}: {status}")]
    Status {
        /// HTTP method.
        method: &'static str,
        /// Without credentials.
        url: String,
        /// Code and words.
        status: String,
    },
    /// The registry could not be reached.
    #[error("failed to do request: {method} {url:?}: {reason}")]
    Request {
        /// HTTP method.
        method: &'static str,
        /// Without credentials.
        url: String,
        /// Why.
        reason: String,
    },
    /// Content is not what its digest says.
    #[error("unexpected commit digest {got}, expected {want}: failed precondition")]
    Digest {
        /// Computed.
        got: String,
        /// Promised.
        want: String,
    },
    /// Content that cannot be an image.
    #[error("{0}")]
    Malformed(String),
    /// No manifest for this machine.
    #[error("no match for platform in manifest: not found")]
    Platform,
    /// Larger than we take.
    #[error("{0} exceeds the limit of {1} bytes")]
    TooLarge(&'static str, u64),
    /// Disk.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }

    /// The gRPC code.
    pub fn code(&self) -> Code {
        match self {
            Self::Pull { source, .. } | Self::Resolve { source, .. } => source.code(),
            Self::NotFound(_) | Self::Platform => Code::NotFound,
            Self::Digest { .. } => Code::FailedPrecondition,
            Self::Reference(..) => Code::InvalidArgument,
            _ => Code::Unknown,
        }
    }
}
