//! Pod and QoS cgroups on Linux, v1 and v2. Source: k/k pkg/kubelet/cm/cgroup_{manager,v1_manager,v2_manager}_linux.go.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use podlab_lifecycle::resources::{CPU_PERIOD, PodCgroupLimits, weight};

use super::CgroupStats;

/// Controllers used on v1: two carry limits, the others are measured. Each one more costs a directory per Pod on the
/// start path.
const V1: [&str; 4] = ["cpu", "memory", "pids", "cpuacct"];
const V2: [&str; 4] = ["cpu", "memory", "pids", "cpuset"];

/// The hierarchies in use.
#[derive(Debug)]
pub(super) enum Cgroups {
    /// One directory per controller.
    V1 { roots: Vec<(&'static str, PathBuf)> },
    /// One unified directory.
    V2 { root: PathBuf },
}

impl Cgroups {
    pub(super) fn detect(mount: &Path, root: &str) -> Self {
        let inside = root.trim_matches('/');
        if mount.join("cgroup.controllers").exists() {
            return Self::V2 { root: mount.join(inside) };
        }
        let mut roots: Vec<(&'static str, PathBuf)> = Vec::new();
        for c in V1 {
            let dir = mount.join(c);
            // Combined hierarchies (cpu,cpuacct) appear under both names; one directory is enough.
            let real = fs::canonicalize(&dir).unwrap_or(dir);
            if real.is_dir() && !roots.iter().any(|(_, r)| *r == real.join(inside)) {
                roots.push((c, real.join(inside)));
            }
        }
        Self::V1 { roots }
    }

    pub(super) fn apply(&self, path: &str, limits: &PodCgroupLimits) -> io::Result<()> {
        let inside = path.trim_matches('/');
        match self {
            Self::V1 { roots } => {
                for (_, root) in roots {
                    fs::create_dir_all(root.join(inside))?;
                }
                self.v1_write("cpu", inside, "cpu.shares", &limits.cpu_shares.to_string())?;
                if let Some(quota) = limits.cpu_quota {
                    self.v1_write("cpu", inside, "cpu.cfs_period_us", &CPU_PERIOD.to_string())?;
                    self.v1_write("cpu", inside, "cpu.cfs_quota_us", &quota.to_string())?;
                }
                if let Some(memory) = limits.memory {
                    self.v1_write("memory", inside, "memory.limit_in_bytes", &memory.to_string())?;
                }
                if let Some(pids) = limits.pids {
                    self.v1_write("pids", inside, "pids.max", &pids.to_string())?;
                }
                Ok(())
            }
            Self::V2 { root } => {
                make_v2(root, inside)?;
                let dir = root.join(inside);
                write_if_there(&dir, "cpu.weight", &weight(limits.cpu_shares).to_string())?;
                if let Some(quota) = limits.cpu_quota {
                    write_if_there(&dir, "cpu.max", &format!("{quota} {CPU_PERIOD}"))?;
                }
                if let Some(memory) = limits.memory {
                    write_if_there(&dir, "memory.max", &memory.to_string())?;
                }
                if let Some(pids) = limits.pids {
                    write_if_there(&dir, "pids.max", &pids.to_string())?;
                }
                Ok(())
            }
        }
    }

    fn v1_write(&self, controller: &str, inside: &str, file: &str, value: &str) -> io::Result<()> {
        let Self::V1 { roots } = self else { return Ok(()) };
        match roots.iter().find(|(c, _)| *c == controller) {
            Some((_, root)) => write_if_there(&root.join(inside), file, value),
            None => Ok(()),
        }
    }

    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let inside = path.trim_matches('/');
        let dirs: Vec<PathBuf> = match self {
            Self::V1 { roots } => roots.iter().map(|(_, r)| r.join(inside)).collect(),
            Self::V2 { root } => vec![root.join(inside)],
        };
        dirs.iter().try_for_each(|d| remove_tree(d))
    }

    pub(super) fn children(&self, path: &str) -> io::Result<Vec<String>> {
        let inside = path.trim_matches('/');
        let dir = match self {
            Self::V1 { roots } => match roots.iter().find(|(c, _)| *c == "memory").or_else(|| roots.first()) {
                Some((_, root)) => root.join(inside),
                None => return Ok(Vec::new()),
            },
            Self::V2 { root } => root.join(inside),
        };
        let entries = match fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut out: Vec<String> = entries
            .filter_map(Result::ok)
            .filter(|e| e.path().is_dir())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        out.sort();
        Ok(out)
    }

    pub(super) fn stats(&self, path: &str) -> io::Result<CgroupStats> {
        let inside = path.trim_matches('/');
        let number = |p: PathBuf| fs::read_to_string(p).ok().and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0);
        let field = |p: PathBuf, key: &str| {
            let text = fs::read_to_string(p).unwrap_or_default();
            text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        match self {
            Self::V1 { roots } => {
                let dir =
                    |c: &str| roots.iter().find(|(n, _)| *n == c).map(|(_, r)| r.join(inside)).unwrap_or_default();
                let usage = number(dir("memory").join("memory.usage_in_bytes"));
                let inactive = field(dir("memory").join("memory.stat"), "total_inactive_file ");
                Ok(CgroupStats {
                    cpu_ns: number(dir("cpuacct").join("cpuacct.usage")),
                    memory_usage: usage,
                    working_set: usage.saturating_sub(inactive),
                    pids: number(dir("pids").join("pids.current")),
                })
            }
            Self::V2 { root } => {
                let dir = root.join(inside);
                let usage = number(dir.join("memory.current"));
                let inactive = field(dir.join("memory.stat"), "inactive_file ");
                Ok(CgroupStats {
                    cpu_ns: field(dir.join("cpu.stat"), "usage_usec ") * 1000,
                    memory_usage: usage,
                    working_set: usage.saturating_sub(inactive),
                    pids: number(dir.join("pids.current")),
                })
            }
        }
    }
}

fn write_if_there(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    match fs::write(dir.join(file), value) {
        // The controller is not enabled here: the limit cannot be had, which the node's conditions report elsewhere.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(()),
        other => other,
    }
}

/// Makes the directories and enables the controllers on the way down.
fn make_v2(root: &Path, inside: &str) -> io::Result<()> {
    let mut dir = root.to_owned();
    fs::create_dir_all(&dir)?;
    for part in inside.split('/') {
        for c in V2 {
            // A cgroup that holds processes itself cannot enable controllers; its children then go without.
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{c}"));
        }
        dir.push(part);
        if !dir.is_dir() {
            fs::create_dir(&dir)?;
        }
    }
    // The Pod's own cgroup hands the controllers on to its containers.
    for c in V2 {
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{c}"));
    }
    Ok(())
}

/// Removes a cgroup and those below it, after killing what is left in them.
fn remove_tree(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for e in entries.filter_map(Result::ok).filter(|e| e.path().is_dir()) {
        remove_tree(&e.path())?;
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
            kill_all(dir);
            fs::remove_dir(dir)
        }
        other => other,
    }
}

fn kill_all(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in
        fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines().filter_map(|l| l.parse::<i32>().ok())
    {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}
