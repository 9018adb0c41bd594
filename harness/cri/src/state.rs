//! What the bridge knows of sandboxes and containers, in memory and on disk. A record is written before the thing it
//! describes is done, so that a successor finds at least what there may be.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    log::LogHandle,
    sys::{proc::ProcessId, userdb::Identity},
    v1::{ContainerConfig, Mount, PodSandboxConfig},
};

/// A sandbox's stage of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum SandboxPhase {
    /// Being made; a successor of the bridge undoes it.
    #[default]
    Creating,
    /// Usable.
    Ready,
    /// Stopped, or its process is gone.
    NotReady,
}

/// A sandbox on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// 64 hex digits.
    pub id: String,
    /// As it was asked for.
    pub config: PodSandboxConfig,
    /// Runtime handler.
    pub handler: String,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Stage.
    pub phase: SandboxPhase,
    /// Its pause process.
    pub process: Option<ProcessId>,
    /// Its kept network namespace; `None`: the node's network.
    pub netns: Option<PathBuf>,
    /// Whether the network may be attached (it was begun and not yet undone).
    pub attached: bool,
    /// Addresses, the preferred one first.
    pub ips: Vec<String>,
    /// The CNI result.
    pub network: serde_json::Value,
    /// Exit seen.
    #[serde(default)]
    pub stopped: bool,
}

/// A container's stage of life, as CRI names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum ContainerPhase {
    /// Made, not started.
    #[default]
    Created,
    /// Started, not ended.
    Running,
    /// Ended, or failed to start.
    Exited,
}

/// A container on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// 64 hex digits.
    pub id: String,
    /// Its sandbox.
    pub sandbox_id: String,
    /// As it was asked for; resources as last updated.
    pub config: ContainerConfig,
    /// Image id.
    pub image_id: String,
    /// A digest reference of the image, or its id.
    pub image_ref: String,
    /// Command with arguments, as they will run.
    pub argv: Vec<String>,
    /// Environment, image first.
    pub env: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// `user[:group]`.
    pub user: String,
    /// Name of the signal that asks it to end; empty: SIGTERM.
    pub stop_signal: String,
    /// Mounts as status reports them.
    pub mounts: Vec<Mount>,
    /// The log's absolute path; empty: no log.
    pub log_path: String,
    /// Cgroup path below the base.
    pub cgroup: String,
    /// Stage.
    pub phase: ContainerPhase,
    /// Its first process.
    pub process: Option<ProcessId>,
    /// Who it runs as, once started.
    pub identity: Option<Identity>,
    /// Nanoseconds since the epoch; 0: not yet.
    pub created_at: i64,
    /// See above.
    pub started_at: i64,
    /// See above.
    pub finished_at: i64,
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// Why it ended, when that is not plain from the code.
    pub reason: String,
    /// More about that.
    pub message: String,
}

/// A sandbox in memory.
#[derive(Debug)]
pub struct Sandbox {
    /// Same as in the record.
    pub id: String,
    /// The record.
    pub record: Mutex<SandboxRecord>,
    /// One operation at a time.
    pub op: tokio::sync::Mutex<()>,
    /// Held while the record is written, so that an older state never replaces a newer one on disk.
    pub saving: Mutex<()>,
    /// Last CPU reading, for rates: (when ns, cpu ns).
    pub last_cpu: Mutex<Option<(i64, u64)>>,
}

/// A container in memory.
#[derive(Debug)]
pub struct Container {
    /// Same as in the record.
    pub id: String,
    /// The record.
    pub record: Mutex<ContainerRecord>,
    /// Held while it is being started or removed.
    pub op: tokio::sync::Mutex<()>,
    /// As for a sandbox.
    pub saving: Mutex<()>,
    /// Moves when the phase does.
    pub changed: watch::Sender<ContainerPhase>,
    /// Its output, while it runs.
    pub log: Mutex<Option<LogHandle>>,
    /// Signals the end of its output.
    pub drained: watch::Sender<bool>,
    /// Its stop signal was sent.
    pub stop_signalled: AtomicBool,
    /// Being removed: nothing may start it any more.
    pub removing: AtomicBool,
    /// Last CPU reading, for rates: (when ns, cpu ns).
    pub last_cpu: Mutex<Option<(i64, u64)>>,
}

impl Sandbox {
    /// Around a record.
    pub fn new(record: SandboxRecord) -> Arc<Self> {
        Arc::new(Self {
            id: record.id.clone(),
            record: Mutex::new(record),
            op: tokio::sync::Mutex::default(),
            saving: Mutex::default(),
            last_cpu: Mutex::default(),
        })
    }

    /// Whether containers may be made in it.
    pub fn is_ready(&self) -> bool {
        self.record.lock().phase == SandboxPhase::Ready
    }
}

impl Container {
    /// Around a record.
    pub fn new(record: ContainerRecord) -> Arc<Self> {
        let phase = record.phase;
        Arc::new(Self {
            id: record.id.clone(),
            record: Mutex::new(record),
            op: tokio::sync::Mutex::default(),
            saving: Mutex::default(),
            changed: watch::Sender::new(phase),
            log: Mutex::default(),
            drained: watch::Sender::new(phase != ContainerPhase::Running),
            stop_signalled: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            last_cpu: Mutex::default(),
        })
    }

    /// The stage now.
    pub fn phase(&self) -> ContainerPhase {
        self.record.lock().phase
    }

    /// Waits until it has exited. Cancel safe.
    pub async fn exited(&self) {
        let mut changes = self.changed.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = changes.wait_for(|p| *p == ContainerPhase::Exited).await;
    }
}

/// Where a sandbox keeps its files.
pub fn sandbox_dir(run: &Path, id: &str) -> PathBuf {
    run.join("rw/pods").join(id)
}

/// Where a container's writable layer is.
pub fn upper_dir(run: &Path, id: &str) -> PathBuf {
    run.join("rw/containers").join(id)
}

/// Where a container's output passes through.
pub fn spool_dir(run: &Path, id: &str) -> PathBuf {
    run.join("rw/io").join(id)
}
