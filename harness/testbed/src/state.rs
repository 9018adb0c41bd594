//! Where clusters live on disk: one directory per cluster under the state root, with a lock that its first process holds
//! for as long as it lives.
//!
//! ```text
//! <root>/<name>/  spec.json  lock  pid  kubeconfig  pki/  store/  registry/  logs/  run.jsonl  cgroup
//!                 capsule.sock  nodes/<node>/run/init.sock
//! ```

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::spec::ClusterSpec;

/// Why the state of a cluster could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory failed.
    #[error("{path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The name cannot be a directory name.
    #[error("cluster name {0:?} must be 1 to 40 characters of a-z, 0-9 and '-', starting with a letter or digit")]
    Name(String),
    /// A cluster of that name runs.
    #[error("cluster {0:?} is already up; use another --name, or `podlab down --name {0}`")]
    Live(String),
    /// No cluster of that name runs.
    #[error("there is no cluster {0:?}; `podlab ps` lists those there are, `podlab up --name {0}` starts it")]
    Unknown(String),
}

pub(crate) fn io_at(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { path, source }
}

/// A boot that has not made its first process by then never will.
const BOOT_TAKES_AT_MOST: std::time::Duration = std::time::Duration::from_secs(60);

/// The directory of all clusters of this user: `$PODLAB_STATE`, else `podlab-<uid>` in the temp directory.
pub fn root() -> PathBuf {
    match std::env::var_os("PODLAB_STATE") {
        Some(dir) => dir.into(),
        None => std::env::temp_dir().join(format!("podlab-{}", nix::unistd::getuid())),
    }
}

/// The unpacked image layers shared by all runs of this user, made when absent. Only ever added to, by digest.
pub(crate) fn image_cache() -> io::Result<PathBuf> {
    let dir = root().join("image-cache");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// The state of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    name: String,
    path: PathBuf,
}

impl StateDir {
    /// The state of the cluster `name`, which need not exist.
    ///
    /// # Errors
    /// [`StateError::Name`].
    pub fn of(name: &str) -> Result<Self, StateError> {
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 40 || name.starts_with('-') || !name.chars().all(word) {
            return Err(StateError::Name(name.to_owned()));
        }
        Ok(Self { name: name.to_owned(), path: root().join(name) })
    }

    /// All clusters that have a directory, alive or not, by name.
    pub fn all() -> Vec<Self> {
        let names =
            fs::read_dir(root()).into_iter().flatten().flatten().filter(|e| e.path().join("spec.json").exists());
        let mut all: Vec<Self> = names.filter_map(|e| Self::of(e.file_name().to_str()?).ok()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path inside the directory.
    pub fn join(&self, file: impl AsRef<Path>) -> PathBuf {
        self.path.join(file)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control socket of the capsule's init.
    pub fn control_socket(&self) -> PathBuf {
        self.join("capsule.sock")
    }

    /// The control socket of a node's init.
    pub fn node_socket(&self, node: &str) -> PathBuf {
        self.join("nodes").join(node).join("run/init.sock")
    }

    /// Name of the cluster's cgroup in each hierarchy, below the group of who booted it. Clusters of one name in
    /// different state roots have different ones.
    pub fn cgroup(&self) -> String {
        let root = fs::canonicalize(root()).unwrap_or_else(|_| root());
        let digest: [u8; 32] = Sha256::digest(root.as_os_str().as_encoded_bytes()).into();
        let [a, b, c, d, ..] = digest;
        format!("podlab-{}.{:08x}", self.name, u32::from_be_bytes([a, b, c, d]))
    }

    /// Makes the directory with all below it. 0700: keys are in it.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn create(&self, spec: &ClusterSpec) -> Result<(), StateError> {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&self.path).map_err(io_at(&self.path))?;
        for sub in ["logs", "pki", "store", "registry", "private-registry"] {
            builder.create(self.join(sub)).map_err(io_at(&self.path))?;
        }
        for node in spec.node_names() {
            let dir = self.join("nodes").join(node).join("run");
            builder.create(&dir).map_err(io_at(&dir))?;
        }
        // The pid of an earlier life under this name; without one the directory counts as being booted.
        let _ = fs::remove_file(self.join("pid"));
        let text = serde_json::to_vec_pretty(spec)
            .map_err(|e| StateError::Io { path: self.path.clone(), source: e.into() })?;
        fs::write(self.join("spec.json"), text).map_err(io_at(&self.path))
    }

    /// The specification the cluster was booted with.
    ///
    /// # Errors
    /// [`StateError::Unknown`] when there is none.
    pub fn spec(&self) -> Result<ClusterSpec, StateError> {
        let unknown = || StateError::Unknown(self.name.clone());
        let text = fs::read(self.join("spec.json")).map_err(|_| unknown())?;
        serde_json::from_slice(&text).map_err(|_| unknown())
    }

    /// Takes the lock that says the cluster lives; `None` when another process holds it.
    ///
    /// The lock is the open file's: a forked child holds it on after its parent has closed its own copy.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn lock(&self) -> Result<Option<File>, StateError> {
        let path = self.join("lock");
        let file = File::options().create(true).append(true).open(&path).map_err(io_at(&path))?;
        Ok(file.try_lock().is_ok().then_some(file))
    }

    /// Whether a cluster of this name lives.
    pub fn is_live(&self) -> bool {
        self.join("lock").exists() && matches!(self.lock(), Ok(None))
    }

    /// Whether the directory was made longer ago than any boot takes.
    fn is_stale(&self) -> bool {
        let made = fs::metadata(self.join("spec.json")).and_then(|m| m.modified()).ok();
        let now = std::time::SystemTime::from(podlab_clock::Clock::real().wall());
        made.and_then(|m| now.duration_since(m).ok()).is_some_and(|age| age > BOOT_TAKES_AT_MOST)
    }

    /// The pid of the capsule's first process, as seen from outside.
    pub fn pid(&self) -> Option<i32> {
        fs::read_to_string(self.join("pid")).ok()?.trim().parse().ok()
    }

    /// Removes what the kernel cannot: cgroups, loop devices' files, the directory (unless `keep`).
    pub fn sweep(&self, keep: bool) {
        // A process that ends lets go of its files one by one, and of its cgroup last: without the lock it may still hold
        // the rest. A pid that has come to mean somebody else is waited for no longer than this.
        if let Some(pidfd) = self.pid().and_then(|pid| crate::process::pidfd_open(pid).ok()) {
            let _ = crate::process::wait_gone(&pidfd, 1000);
        }
        crate::cgroup::sweep(&self.cgroup());
        if keep {
            let _ = fs::remove_file(self.control_socket());
            let _ = fs::remove_dir_all(self.join("nodes"));
        } else {
            let _ = fs::remove_dir_all(&self.path);
            // Only succeeds when this was the last cluster.
            let _ = fs::remove_dir(root());
        }
    }
}

/// Sweeps what dead clusters left behind, except those kept by `down --keep`; returns their names.
pub fn collect_garbage() -> Vec<String> {
    let mut gone = Vec::new();
    for state in StateDir::all() {
        if state.join("kept").exists() {
            continue;
        }
        // The pid is written once the first process holds the lock: with a pid and a free lock it has lived and died. One
        // without a pid is being booted by somebody else at this moment, unless it has been for far too long.
        if state.pid().is_none() && !state.is_stale() {
            continue;
        }
        // The lock is held while sweeping so that an `up` of the same name waits its turn.
        if let Ok(Some(_lock)) = state.lock() {
            state.sweep(false);
            gone.push(state.name().to_owned());
        }
    }
    crate::cgroup::clusters().iter().for_each(|group| crate::cgroup::sweep(group));
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_collection_leaves_alone_what_is_being_booted_and_takes_what_has_died() {
        // The state root is the process's; a name of its own keeps this test apart from running clusters.
        let state = StateDir::of(&format!("gc-test-{}", std::process::id())).unwrap();
        state.create(&ClusterSpec::named(state.name())).unwrap();
        collect_garbage();
        assert!(state.path().exists(), "no pid yet: it is being booted");
        fs::write(state.join("pid"), "1").unwrap();
        let lock = state.lock().unwrap();
        collect_garbage();
        assert!(state.path().exists(), "its lock is held: it lives");
        drop(lock);
        collect_garbage();
        assert!(!state.path().exists(), "it lived and its lock is free: it has died");
    }

    #[test]
    fn an_empty_group_is_swept_only_when_nobody_claims_it() {
        // A group of another state root: that is whose boot this process's garbage collection must not disturb.
        let name = format!("podlab-claim-test-{}.0", std::process::id());
        let claim = crate::cgroup::claim(&name).unwrap();
        let inner = format!("{name}/node-1");
        crate::cgroup::create(&inner).unwrap();
        collect_garbage();
        assert!(!crate::cgroup::dirs(&inner).unwrap().is_empty());
        drop(claim);
        // Another sweeper, in a test beside this one or on the machine, may be at it; then it is its work that is seen.
        let swept = (0..10_000).any(|_| {
            collect_garbage();
            std::thread::yield_now();
            crate::cgroup::dirs(&name).unwrap().is_empty()
        });
        assert!(swept);
    }
}
