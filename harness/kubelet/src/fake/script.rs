//! What simulated containers and images do.

use std::{collections::BTreeMap, time::Duration};

use crate::runtime::ExecOutput;

/// The life of a container's main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Ends by itself after this long; never when `None`.
    pub runs_for: Option<Duration>,
    /// With this code.
    pub exit_code: i32,
    /// And this reason; `Completed` or `Error` by the code when `None`.
    pub reason: Option<String>,
    /// Ends on TERM with this code after this long; ignores TERM when `None`.
    pub on_term: Option<(Duration, i32)>,
    /// Starting it fails with this message.
    pub start_error: Option<String>,
}

impl Script {
    /// Runs until it is told to end, and then ends at once with 0.
    pub fn forever() -> Self {
        Self { runs_for: None, exit_code: 0, reason: None, on_term: Some((Duration::ZERO, 0)), start_error: None }
    }

    /// Runs for a while, then ends with a code.
    pub fn exits(after: Duration, code: i32) -> Self {
        Self { runs_for: Some(after), exit_code: code, ..Self::forever() }
    }

    /// Ignores TERM.
    #[must_use]
    pub fn stubborn(self) -> Self {
        Self { on_term: None, ..self }
    }
}

/// What commands run inside containers give, by the command's words joined with spaces. A function of the container's
/// age, so that a readiness file may appear.
#[derive(Debug, Clone, Default)]
pub struct ExecScript {
    /// Command → (succeeds from this age on, output before).
    pub succeeds_after: BTreeMap<String, Duration>,
    /// Command → fixed answer.
    pub answers: BTreeMap<String, ExecOutput>,
}

/// What a container uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Working set, bytes.
    pub memory: u64,
    /// Bytes of its writable layer.
    pub layer: u64,
}

/// What pulling an image does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageScript {
    /// It is on the node already.
    pub present: bool,
    /// A pull takes this long.
    pub takes: Duration,
    /// And fails with this message.
    pub error: Option<String>,
}
