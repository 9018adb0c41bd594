//! The two gRPC services over the runtime.

mod image;
mod runtime;

use std::pin::Pin;

pub(crate) use image::Images;
pub(crate) use runtime::Server;

use tonic::Status;

/// A boxed stream of answers.
pub(crate) type Answers<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;
