//! What a group may use, and how that is written in both versions.

use std::{collections::BTreeMap, fs, io, path::Path};

use super::{Group, Version};

/// Limits; what is `None` is left as it is. The meaning of the numbers is that of CRI's `LinuxContainerResources`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Relative weight in the units of v1 (2…262144).
    pub cpu_shares: Option<u64>,
    /// Weight in the units of v2 (1…10000), in place of the one computed from the shares.
    pub cpu_weight: Option<u64>,
    /// Microseconds of CPU a period; 0 and below: unlimited.
    pub cpu_quota: Option<i64>,
    /// Length of the period, microseconds.
    pub cpu_period: Option<u64>,
    /// Bytes; 0 and below: unlimited.
    pub memory: Option<i64>,
    /// Memory and swap together, bytes.
    pub memory_swap: Option<i64>,
    /// Tasks; 0 and below: unlimited.
    pub pids: Option<i64>,
    /// CPUs, as a list.
    pub cpuset_cpus: Option<String>,
    /// Memory nodes, as a list.
    pub cpuset_mems: Option<String>,
    /// v2: kill the whole group when one of its processes must die.
    pub oom_group: Option<bool>,
    /// v2 files by name. Names with a slash are refused.
    pub unified: BTreeMap<String, String>,
}

/// The weight that runtimes give for shares: 1024 shares are weight 100. Source: opencontainers/cgroups utils.go.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the result lies in 1…10000"
)]
pub fn weight_of_shares(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1..=2 => 1,
        262_144.. => 10_000,
        _ => {
            let l = (shares as f64).log2();
            10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0).ceil() as u64
        }
    }
}

impl Group {
    /// Writes the limits. The group must exist.
    ///
    /// # Errors
    /// The file and what the kernel said to the first value it refused. A limit of a controller that this machine does
    /// not offer is passed over.
    pub fn apply(&self, limits: &Limits) -> io::Result<()> {
        match self.all.version() {
            Version::V1 => self.apply_v1(limits),
            Version::V2 => self.apply_v2(limits),
        }
    }

    fn apply_v1(&self, l: &Limits) -> io::Result<()> {
        if let Some(dir) = self.dir("cpu") {
            put(&dir, "cpu.shares", l.cpu_shares.filter(|s| *s > 0))?;
            put_cfs(&dir, l)?;
        }
        if let Some(dir) = self.dir("memory") {
            let unlimited = |n: i64| if n <= 0 { -1 } else { n };
            let (memory, swap) = (l.memory.map(unlimited), l.memory_swap.filter(|s| *s != 0));
            let has_swap = swap.is_some() && dir.join("memory.memsw.limit_in_bytes").exists();
            // Memory alone may never exceed memory and swap, so the order depends on the direction.
            if has_swap && put(&dir, "memory.limit_in_bytes", memory).is_err() {
                put(&dir, "memory.memsw.limit_in_bytes", swap)?;
            }
            put(&dir, "memory.limit_in_bytes", memory)?;
            if has_swap {
                put(&dir, "memory.memsw.limit_in_bytes", swap)?;
            }
        }
        if let Some(dir) = self.dir("pids") {
            put(&dir, "pids.max", l.pids.map(or_max))?;
        }
        if (l.cpuset_cpus.is_some() || l.cpuset_mems.is_some())
            && let Some(h) = self.all.hierarchy("cpuset")
        {
            let mut dir = h.base.clone();
            for step in self.path.split('/').filter(|s| !s.is_empty()) {
                let parent = dir.clone();
                dir.push(step);
                if fs::create_dir(&dir).is_ok() {
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        put(&dir, file, Some(fs::read_to_string(parent.join(file))?.trim()))?;
                    }
                }
            }
            put(&dir, "cpuset.cpus", l.cpuset_cpus.as_ref())?;
            put(&dir, "cpuset.mems", l.cpuset_mems.as_ref())?;
        }
        Ok(())
    }

    fn apply_v2(&self, l: &Limits) -> io::Result<()> {
        let Some(dir) = self.dirs().next() else { return Ok(()) };
        put(&dir, "cpu.weight", l.cpu_weight.or(l.cpu_shares.map(weight_of_shares)).filter(|w| *w > 0))?;
        if l.cpu_quota.is_some() || l.cpu_period.is_some() {
            let quota = l.cpu_quota.filter(|q| *q > 0).map_or("max".into(), |q| q.to_string());
            put(&dir, "cpu.max", Some(format!("{quota} {}", l.cpu_period.filter(|p| *p > 0).unwrap_or(100_000))))?;
        }
        put(&dir, "memory.max", l.memory.map(or_max))?;
        if let (Some(swap), Some(memory)) = (l.memory_swap.filter(|s| *s > 0), l.memory.filter(|m| *m > 0)) {
            put(&dir, "memory.swap.max", Some((swap - memory).max(0)))?;
        }
        put(&dir, "memory.oom.group", l.oom_group.map(u8::from))?;
        put(&dir, "pids.max", l.pids.map(or_max))?;
        put(&dir, "cpuset.cpus", l.cpuset_cpus.as_ref())?;
        put(&dir, "cpuset.mems", l.cpuset_mems.as_ref())?;
        for (file, value) in &l.unified {
            if file.contains('/') {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("unified resource {file:?} is not a file name"),
                ));
            }
            put(&dir, file, Some(value))?;
        }
        Ok(())
    }
}

fn or_max(n: i64) -> String {
    if n <= 0 { "max".into() } else { n.to_string() }
}

/// Quota and period, in an order in which neither is refused for the other's old value.
fn put_cfs(dir: &Path, l: &Limits) -> io::Result<()> {
    let quota = l.cpu_quota.map(|q| if q <= 0 { -1 } else { q });
    let period = l.cpu_period.filter(|p| *p > 0);
    if put(dir, "cpu.cfs_period_us", period).is_err() {
        put(dir, "cpu.cfs_quota_us", quota)?;
        put(dir, "cpu.cfs_period_us", period)?;
    }
    put(dir, "cpu.cfs_quota_us", quota)
}

fn put(dir: &Path, file: &str, value: Option<impl ToString>) -> io::Result<()> {
    let Some(value) = value else { return Ok(()) };
    let value = value.to_string();
    let opened = match fs::File::options().write(true).open(dir.join(file)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && dir.exists() => {
            tracing::debug!(file, value, "a limit has no controller here");
            return Ok(());
        }
        other => other,
    };
    let write = opened.and_then(|mut f| io::Write::write_all(&mut f, value.as_bytes()));
    write.map_err(|e| io::Error::new(e.kind(), format!("failed to write {value:?} to {file}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_map_to_the_weights_of_current_runtimes() {
        for (shares, weight) in [(2, 1), (1024, 100), (262_144, 10_000), (102, 17), (1, 1)] {
            assert_eq!(weight_of_shares(shares), weight, "{shares}");
        }
    }
}
