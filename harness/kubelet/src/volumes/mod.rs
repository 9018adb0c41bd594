//! Volumes of Pods: set up before containers start, kept up to date while they run, taken down after they ended.
//!
//! Source: k/k pkg/kubelet/volumemanager, pkg/volume.

mod atomic;
mod claim;
mod csi;
mod manager;
mod ownership;
mod payload;
mod simple;
mod token;

pub(crate) use manager::{Parts, VolumeManager};
use podlab_api::ApiError;

use crate::csi::CsiError;

/// Why a volume is not there.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum VolumeError {
    /// A ConfigMap, Secret, claim or volume object could not be had.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// A key asked for is not there.
    #[error("{}references non-existent {kind} key: {key}", if *kind == "config" { "configmap " } else { "" })]
    Key { kind: &'static str, key: String },
    /// A file operation failed.
    #[error("{what}: {error}")]
    File { what: String, error: String },
    /// The driver refused.
    #[error("{0}")]
    Csi(#[from] CsiError),
    /// Anything else, in upstream's words.
    #[error("{0}")]
    Text(String),
}

impl VolumeError {
    pub(crate) fn file(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |e| Self::File { what, error: e.to_string() }
    }
}

/// What a failed step is called in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountStep {
    SetUp,
    MountDevice,
    WaitForAttach,
    MapVolume,
}

impl MountStep {
    /// As the message of a FailedMount event names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SetUp => "MountVolume.SetUp",
            Self::MountDevice => "MountVolume.MountDevice",
            Self::WaitForAttach => "MountVolume.WaitForAttach",
            Self::MapVolume => "MapVolume.SetUpDevice",
        }
    }
}

/// A step of one volume that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MountFailure {
    pub(crate) step: MountStep,
    pub(crate) volume: String,
    pub(crate) error: VolumeError,
}
