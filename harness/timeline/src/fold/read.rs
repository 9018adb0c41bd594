//! Reading a log file. A line cut by a crash at the end is left out; any other bad line is an error.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Entry, SCHEMA_VERSION};

/// Why a log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error("read run log {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line.
    #[error("run log {path} line {line}: {why}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// Reads all entries of a log.
///
/// # Errors
/// [`ReadError`].
pub fn read_log(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let bytes = fs::read(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
    let complete = bytes.last().is_none_or(|b| *b == b'\n');
    let lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect();
    let mut entries = Vec::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate() {
        let bad = |why: String| ReadError::Line { path: path.to_owned(), line: i + 1, why };
        match serde_json::from_slice::<Entry>(line) {
            Ok(entry) if entry.v <= SCHEMA_VERSION => entries.push(entry),
            Ok(entry) => return Err(bad(format!("schema version {} is newer than {SCHEMA_VERSION}", entry.v))),
            Err(_) if !complete && i + 1 == lines.len() => {}
            Err(e) => return Err(bad(e.to_string())),
        }
    }
    Ok(entries)
}
