//! What a tape looks like.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::methods::Seam;

/// Version of the format; a reader refuses others.
pub const VERSION: u32 = 1;
/// Largest tape, bytes: a recorder stops there, a reader goes no further.
pub const MAX_TAPE: u64 = 64 << 20;
/// Longest line, bytes.
const MAX_LINE: u64 = 4 << 20;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`VERSION`].
    pub tape: u32,
    /// Where it was recorded.
    pub seam: Seam,
}

/// How a call was answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// With this message.
    Reply(Value),
    /// With an error.
    #[serde(rename_all = "camelCase")]
    Error {
        /// gRPC status code.
        code: i32,
        /// Message.
        message: String,
    },
}

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// Method name without its service.
    pub method: String,
    /// When it began, microseconds after the recording did.
    pub at_us: u64,
    /// How long it took, microseconds.
    pub took_us: u64,
    /// The request, as the protocol's field names have it.
    pub request: Value,
    /// The answer.
    pub answer: Answer,
}

/// A tape in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Tape {
    /// Where it was recorded.
    pub seam: Seam,
    /// The calls in the order of their ends.
    pub calls: Vec<Call>,
}

/// A tape that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The file cannot be read or written.
    #[error("use the tape {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line is not what it has to be.
    #[error("{path}, line {line}: {why}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

impl Tape {
    /// Reads a tape. A last line that was cut off midway, as by a killed recorder, is left out.
    ///
    /// # Errors
    /// [`TapeError`].
    pub fn read(path: &Path) -> Result<Self, TapeError> {
        let file = |source| TapeError::File { path: path.to_owned(), source };
        let open = fs::File::open(path).map_err(file)?;
        Self::parse(path, BufReader::new(open.take(MAX_TAPE)))
    }

    fn parse(path: &Path, mut from: impl BufRead) -> Result<Self, TapeError> {
        let file = |source| TapeError::File { path: path.to_owned(), source };
        let bad = |line, why: String| TapeError::Line { path: path.to_owned(), line, why };
        let (mut seam, mut calls) = (None, Vec::new());
        for line in 1.. {
            let mut text = Vec::new();
            let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut text).map_err(file)?;
            if read == 0 {
                break;
            }
            let whole = text.last() == Some(&b'\n');
            if !whole && u64::try_from(read).unwrap_or(u64::MAX) >= MAX_LINE {
                return Err(bad(line, format!("longer than {MAX_LINE} bytes")));
            }
            match seam {
                None => {
                    let head: Head = serde_json::from_slice(&text).map_err(|e| bad(line, format!("no head: {e}")))?;
                    if head.tape != VERSION {
                        return Err(bad(line, format!("version {} of the format; this reads {VERSION}", head.tape)));
                    }
                    seam = Some(head.seam);
                }
                Some(seam) => match serde_json::from_slice::<Call>(&text) {
                    Ok(call) if seam.knows(&call.method) => calls.push(call),
                    Ok(call) => return Err(bad(line, format!("{} has no method {:?}", seam.name(), call.method))),
                    Err(_) if !whole => break,
                    Err(e) => return Err(bad(line, e.to_string())),
                },
            }
        }
        let seam = seam.ok_or_else(|| bad(1, "no head: the file is empty".into()))?;
        Ok(Self { seam, calls })
    }
}

/// A head as a line.
pub(crate) fn head_line(seam: Seam) -> Vec<u8> {
    line(&Head { tape: VERSION, seam })
}

/// Anything of a tape as a line.
pub(crate) fn line(of: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and JSON values always have a JSON form.
    let mut out = serde_json::to_vec(of).unwrap_or_default();
    out.push(b'\n');
    out
}
