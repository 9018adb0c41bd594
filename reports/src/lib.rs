//! Reports: JUnit, JSON and self-contained HTML pages, rendered from what the run log folded to. Reads nothing live.
#![deny(missing_docs)]

mod compare;
mod export;
mod html;
mod json;
mod junit;
mod markdown;
mod model;
mod steps;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use json::{REPORT_VERSION, ReportFile, report_file, report_schema};
pub use model::{Began, LogTail, Run, Trial, Verdict};
pub use steps::{StepRun, StepState, steps};
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
    /// JSON.
    #[error("render JSON")]
    Json(#[source] serde_json::Error),
}

/// A form a run is reported in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `junit.xml`, as Jenkins and GitLab read it.
    Junit,
    /// `report.json`, version 1; its schema is `reports/schema/report.v1.json`.
    Json,
    /// `report.html`, a page that stands alone.
    Html,
    /// `summary.md`, for what a CI shows beside a run.
    Markdown,
    /// `trace.json`, for ui.perfetto.dev.
    Perfetto,
    /// `otlp.json`, the body of an OTLP request.
    Otlp,
}

impl Form {
    /// What every run leaves.
    pub const ALWAYS: [Self; 4] = [Self::Junit, Self::Json, Self::Html, Self::Markdown];

    /// Name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Junit => "junit.xml",
            Self::Json => "report.json",
            Self::Html => "report.html",
            Self::Markdown => "summary.md",
            Self::Perfetto => "trace.json",
            Self::Otlp => "otlp.json",
        }
    }

    /// The run in this form.
    ///
    /// # Errors
    /// [`ReportError`] when it cannot be rendered.
    pub fn render(self, run: &Run) -> Result<String, ReportError> {
        match self {
            Self::Junit => Ok(junit::render(run)),
            Self::Json => json::render(run).map_err(ReportError::Json),
            Self::Html => Ok(html::render(run)),
            Self::Markdown => Ok(markdown::render(run)),
            Self::Perfetto => export::perfetto(run).map_err(ReportError::Json),
            Self::Otlp => export::otlp(run).map_err(ReportError::Json),
        }
    }
}

/// The bodies of OTLP requests, one for each trial that has a log.
///
/// # Errors
/// [`ReportError`] when one cannot be rendered.
pub fn otlp_requests(run: &Run) -> Result<Vec<String>, ReportError> {
    export::otlp_requests(run).map_err(ReportError::Json)
}

/// Writes a run in some forms into a folder, made when absent.
///
/// # Errors
/// [`ReportError`].
pub fn write(run: &Run, forms: &[Form], dir: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(dir).map_err(|source| ReportError::Write { path: dir.to_owned(), source })?;
    for form in forms {
        let (path, text) = (dir.join(form.file()), form.render(run)?);
        fs::write(&path, text).map_err(|source| ReportError::Write { path, source })?;
    }
    Ok(())
}

/// Writes what every run leaves: [`Form::ALWAYS`].
///
/// # Errors
/// [`ReportError`].
pub fn write_all(run: &Run, dir: &Path) -> Result<(), ReportError> {
    write(run, &Form::ALWAYS, dir)
}

/// Writes `comparison.html`, a run against one of before, into a folder, made when absent; where it is.
///
/// # Errors
/// [`ReportError`].
pub fn write_comparison(before: &Run, after: &Run, dir: &Path) -> Result<PathBuf, ReportError> {
    let path = dir.join("comparison.html");
    let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, html::render_comparison(before, after)));
    match written {
        Ok(()) => Ok(path),
        Err(source) => Err(ReportError::Write { path, source }),
    }
}
