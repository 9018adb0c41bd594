//! Why a process did not start, in the words runc and containerd use: they end up in Events that users read.

use std::io;

use super::child::Step;

/// A failed launch.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Anything before the process's own start: namespaces, mounts, users.
    #[error("{what}: {source}")]
    Setup {
        /// What was being done.
        what: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A request that cannot be met.
    #[error("{0}")]
    Invalid(String),
    /// The command is not in `$PATH`.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotInPath(String),
    /// The command could not be executed.
    #[error("exec: {command:?}: {reason}")]
    Exec {
        /// As given.
        command: String,
        /// Why.
        reason: String,
    },
    /// The working directory cannot be used.
    #[error("chdir to cwd ({cwd:?}) set in config.json failed: {reason}")]
    Cwd {
        /// As given.
        cwd: String,
        /// Why.
        reason: String,
    },
    /// The child died without a word.
    #[error("the process ended before it was started")]
    Vanished,
}

impl LaunchError {
    pub(crate) fn setup(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Setup { what, source }
    }

    /// What the child reported.
    pub(crate) fn of_child(step: Step, errno: i32, command: &str, cwd: &str) -> Self {
        let reason = nix::errno::Errno::from_raw(errno).desc().to_lowercase();
        match step {
            Step::Exec if errno == libc::ENOENT && !command.contains('/') => Self::NotInPath(command.to_owned()),
            Step::Exec if errno == libc::ENOENT || errno == libc::ENOTDIR => {
                Self::Exec { command: command.to_owned(), reason: format!("stat {command}: {reason}") }
            }
            Step::Exec => Self::Exec { command: command.to_owned(), reason },
            Step::Chdir => Self::Cwd { cwd: cwd.to_owned(), reason },
            other => Self::Setup { what: other.sentence().to_owned(), source: io::Error::from_raw_os_error(errno) },
        }
    }
}
