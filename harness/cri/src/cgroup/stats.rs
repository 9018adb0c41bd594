//! What a group has used.

use std::{fs, path::Path};

use super::{Group, Version};

/// A reading. `None`: the hierarchy does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// CPU time, nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Of which in user mode.
    pub cpu_user_ns: Option<u64>,
    /// Of which in the kernel.
    pub cpu_system_ns: Option<u64>,
    /// CFS periods, throttled periods, throttled nanoseconds.
    pub throttling: Option<(u64, u64, u64)>,
    /// Bytes charged.
    pub memory_usage: Option<u64>,
    /// Bytes charged without inactive file cache: what cannot be dropped easily.
    pub working_set: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// File cache.
    pub cache: Option<u64>,
    /// Mapped files.
    pub mapped_file: Option<u64>,
    /// Kernel memory.
    pub kernel: Option<u64>,
    /// Page faults, major ones.
    pub faults: Option<(u64, u64)>,
    /// Most bytes ever charged.
    pub memory_max_usage: Option<u64>,
    /// The limit, when there is one.
    pub memory_limit: Option<u64>,
    /// How often the limit was hit.
    pub memory_failcnt: Option<u64>,
    /// Swap, bytes.
    pub swap: Option<u64>,
    /// Tasks now, and the most allowed.
    pub pids: Option<u64>,
    /// The most tasks allowed.
    pub pids_max: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
}

/// v1 writes "no limit" as a page-aligned huge number.
const UNLIMITED: u64 = 1 << 60;

impl Group {
    /// Reads everything; what is missing stays `None`.
    pub fn stats(&self) -> Stats {
        let mut s = match self.all.version() {
            Version::V1 => self.stats_v1(),
            Version::V2 => self.stats_v2(),
        };
        s.memory_limit = s.memory_limit.filter(|l| *l < UNLIMITED);
        s.oom_kills = self.oom_kills();
        s
    }

    fn stats_v1(&self) -> Stats {
        let mut s = Stats::default();
        if let Some(dir) = self.dir("cpuacct") {
            s.cpu_ns = number(&dir, "cpuacct.usage");
            s.cpu_user_ns = number(&dir, "cpuacct.usage_user");
            s.cpu_system_ns = number(&dir, "cpuacct.usage_sys");
        }
        if let Some(dir) = self.dir("cpu") {
            let t = table(&dir, "cpu.stat");
            s.throttling =
                t("nr_periods").map(|p| (p, t("nr_throttled").unwrap_or(0), t("throttled_time").unwrap_or(0)));
        }
        if let Some(dir) = self.dir("memory") {
            let t = table(&dir, "memory.stat");
            s.memory_usage = number(&dir, "memory.usage_in_bytes");
            s.working_set = s.memory_usage.map(|u| u.saturating_sub(t("total_inactive_file").unwrap_or(0)));
            s.rss = t("total_rss");
            s.cache = t("total_cache");
            s.mapped_file = t("total_mapped_file");
            s.swap = t("total_swap");
            s.kernel = number(&dir, "memory.kmem.usage_in_bytes");
            s.faults = t("total_pgfault").map(|f| (f, t("total_pgmajfault").unwrap_or(0)));
            s.memory_max_usage = number(&dir, "memory.max_usage_in_bytes");
            s.memory_limit = number(&dir, "memory.limit_in_bytes");
            s.memory_failcnt = number(&dir, "memory.failcnt");
        }
        if let Some(dir) = self.dir("pids") {
            s.pids = number(&dir, "pids.current");
            s.pids_max = number(&dir, "pids.max");
        }
        s
    }

    fn stats_v2(&self) -> Stats {
        let Some(dir) = self.dirs().next() else { return Stats::default() };
        let cpu = table(&dir, "cpu.stat");
        let us = |name: &str| cpu(name).map(|n| n.saturating_mul(1000));
        let memory = table(&dir, "memory.stat");
        let events = table(&dir, "memory.events");
        let usage = number(&dir, "memory.current");
        Stats {
            cpu_ns: us("usage_usec"),
            cpu_user_ns: us("user_usec"),
            cpu_system_ns: us("system_usec"),
            throttling: cpu("nr_periods")
                .map(|p| (p, cpu("nr_throttled").unwrap_or(0), us("throttled_usec").unwrap_or(0))),
            memory_usage: usage,
            working_set: usage.map(|u| u.saturating_sub(memory("inactive_file").unwrap_or(0))),
            rss: memory("anon"),
            cache: memory("file"),
            mapped_file: memory("file_mapped"),
            kernel: memory("kernel"),
            faults: memory("pgfault").map(|f| (f, memory("pgmajfault").unwrap_or(0))),
            memory_max_usage: number(&dir, "memory.peak"),
            memory_limit: number(&dir, "memory.max"),
            memory_failcnt: events("max"),
            swap: number(&dir, "memory.swap.current"),
            pids: number(&dir, "pids.current"),
            pids_max: number(&dir, "pids.max"),
            oom_kills: 0,
        }
    }
}

fn number(dir: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
}

fn table(dir: &Path, file: &str) -> impl Fn(&str) -> Option<u64> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    move |name| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
