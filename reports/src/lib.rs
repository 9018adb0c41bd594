//! Reports: JUnit, JSON and one self-contained HTML page, rendered from what the run log folded to. Reads nothing live.
#![deny(missing_docs)]

mod html;
mod json;
mod junit;
mod model;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use model::{Run, Trial, Verdict};
pub use text::{phase_table, summary_line, trial_line};

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The disk.
    #[error("write report {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// JUnit's XML.
    #[error("render JUnit")]
    Junit(#[source] quick_junit::SerializeError),
    /// JSON.
    #[error("render JSON")]
    Json(#[source] serde_json::Error),
}

/// Writes `junit.xml`, `report.json` and `report.html` into a folder, made when absent.
///
/// # Errors
/// [`ReportError`].
pub fn write_all(run: &Run, dir: &Path) -> Result<(), ReportError> {
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|source| ReportError::Write { path, source })
    };
    fs::create_dir_all(dir).map_err(|source| ReportError::Write { path: dir.to_owned(), source })?;
    put("junit.xml", junit::render(run).map_err(ReportError::Junit)?)?;
    put("report.json", json::render(run).map_err(ReportError::Json)?)?;
    put("report.html", html::render(run))
}
