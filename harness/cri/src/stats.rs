//! What containers and sandboxes use, and changing what they may use.

use std::{fs, sync::Arc};

use parking_lot::Mutex;

use crate::{
    cgroup::Stats,
    error::Error,
    images::disk_usage,
    runtime::Runtime,
    spec,
    state::{Container, ContainerPhase, Sandbox, upper_dir},
    v1::{self, LinuxContainerResources, UInt64Value},
};

fn value(n: u64) -> UInt64Value {
    UInt64Value { value: n }
}

/// CPU with a rate since the last reading; readings less than this apart keep the old base.
const RATE_WINDOW_NS: i64 = 100_000_000;

fn cpu_of(now: i64, stats: &Stats, last: &Mutex<Option<(i64, u64)>>) -> Option<v1::CpuUsage> {
    let used = stats.cpu_ns?;
    let mut last = last.lock();
    let rate = last.and_then(|(then, before)| {
        let elapsed = u64::try_from(now - then).ok().filter(|e| *e > 0)?;
        u64::try_from(u128::from(used.saturating_sub(before)) * 1_000_000_000 / u128::from(elapsed)).ok()
    });
    if last.is_none_or(|(then, _)| now - then > RATE_WINDOW_NS) {
        *last = Some((now, used));
    }
    Some(v1::CpuUsage {
        timestamp: now,
        usage_core_nano_seconds: Some(value(used)),
        usage_nano_cores: Some(value(rate.unwrap_or(0))),
        psi: None,
    })
}

fn memory_of(now: i64, stats: &Stats) -> Option<v1::MemoryUsage> {
    let usage = stats.memory_usage?;
    let working_set = stats.working_set.unwrap_or(usage);
    Some(v1::MemoryUsage {
        timestamp: now,
        working_set_bytes: Some(value(working_set)),
        available_bytes: Some(value(stats.memory_limit.map_or(0, |l| l.saturating_sub(working_set)))),
        usage_bytes: Some(value(usage)),
        rss_bytes: stats.rss.map(value),
        page_faults: stats.faults.map(|f| value(f.0)),
        major_page_faults: stats.faults.map(|f| value(f.1)),
        psi: None,
    })
}

/// Counters of one interface: (name, rx bytes, rx errors, rx dropped, rx packets, tx …).
#[derive(Debug, Clone, Default)]
pub(crate) struct Interface {
    pub name: String,
    pub rx: [u64; 4],
    pub tx: [u64; 4],
}

impl Runtime {
    pub(crate) fn stats_of_container(self: &Arc<Self>, container: &Container) -> v1::ContainerStats {
        let record = container.record.lock().clone();
        let now = self.now_ns();
        let stats = if record.phase == ContainerPhase::Running {
            self.cgroups.group(&record.cgroup).stats()
        } else {
            Stats::default()
        };
        let (bytes, inodes) = disk_usage(&upper_dir(&self.config.run, &record.id).join("u"));
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: record.id.clone(),
                metadata: record.config.metadata.clone(),
                labels: record.config.labels.clone(),
                annotations: record.config.annotations.clone(),
            }),
            cpu: cpu_of(now, &stats, &container.last_cpu),
            memory: memory_of(now, &stats),
            writable_layer: Some(v1::FilesystemUsage {
                timestamp: now,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: self.config.run.join("rw").display().to_string() }),
                used_bytes: Some(value(bytes)),
                inodes_used: Some(value(inodes)),
            }),
            swap: stats.swap.map(|s| v1::SwapUsage {
                timestamp: now,
                swap_available_bytes: None,
                swap_usage_bytes: Some(value(s)),
            }),
            io: None,
        }
    }

    pub(crate) fn list_container_stats(self: &Arc<Self>, f: v1::ContainerStatsFilter) -> Vec<v1::ContainerStats> {
        let filter = v1::ContainerFilter {
            id: f.id,
            state: None,
            pod_sandbox_id: f.pod_sandbox_id,
            label_selector: f.label_selector,
        };
        let running = self.choose_containers(filter).into_iter().filter(|c| c.phase() == ContainerPhase::Running);
        running.map(|c| self.stats_of_container(&c)).collect()
    }

    /// The group of a whole Pod.
    pub(crate) fn pod_group(&self, sandbox: &Sandbox) -> Option<crate::cgroup::Group> {
        let record = sandbox.record.lock();
        let parent = record.config.linux.as_ref().map(|l| l.cgroup_parent.clone()).filter(|p| !p.is_empty())?;
        Some(self.cgroups.group(&parent))
    }

    pub(crate) fn stats_of_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> v1::PodSandboxStats {
        let now = self.now_ns();
        let stats = self.pod_group(sandbox).map(|g| g.stats()).unwrap_or_default();
        let filter = v1::ContainerStatsFilter { pod_sandbox_id: sandbox.id.clone(), ..Default::default() };
        let containers = self.list_container_stats(filter);
        let interfaces = self.interfaces(sandbox);
        let usage = |i: &Interface| v1::NetworkInterfaceUsage {
            name: i.name.clone(),
            rx_bytes: Some(value(i.rx[0])),
            rx_errors: Some(value(i.rx[1])),
            tx_bytes: Some(value(i.tx[0])),
            tx_errors: Some(value(i.tx[1])),
        };
        let all: Vec<v1::NetworkInterfaceUsage> = interfaces.iter().filter(|i| i.name != "lo").map(usage).collect();
        let record = sandbox.record.lock();
        v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: record.id.clone(),
                metadata: record.config.metadata.clone(),
                labels: record.config.labels.clone(),
                annotations: record.config.annotations.clone(),
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                cpu: cpu_of(now, &stats, &sandbox.last_cpu),
                memory: memory_of(now, &stats),
                network: Some(v1::NetworkUsage {
                    timestamp: now,
                    default_interface: all.iter().find(|i| i.name == "eth0").cloned(),
                    interfaces: all.into_iter().filter(|i| i.name != "eth0").collect(),
                }),
                process: Some(v1::ProcessUsage { timestamp: now, process_count: Some(value(stats.pids.unwrap_or(0))) }),
                containers,
                io: None,
            }),
            windows: None,
        }
    }

    pub(crate) fn list_sandbox_stats(self: &Arc<Self>, f: v1::PodSandboxStatsFilter) -> Vec<v1::PodSandboxStats> {
        let filter = v1::PodSandboxFilter { id: f.id, state: None, label_selector: f.label_selector };
        let ids: Vec<String> = self.list_pod_sandbox(Some(filter)).into_iter().map(|s| s.id).collect();
        ids.iter()
            .filter_map(|id| self.sandbox(id).ok())
            .filter(|s| s.is_ready())
            .map(|s| self.stats_of_sandbox(&s))
            .collect()
    }

    /// Interfaces in a sandbox's network namespace.
    pub(crate) fn interfaces(&self, sandbox: &Sandbox) -> Vec<Interface> {
        let Some(process) = sandbox.record.lock().process else { return Vec::new() };
        let text = fs::read_to_string(format!("/proc/{}/net/dev", process.pid)).unwrap_or_default();
        if process.alive() { parse_net_dev(&text) } else { Vec::new() }
    }

    /// Changes what a container may use; what is 0 stays.
    pub(crate) async fn update_container_resources(
        self: &Arc<Self>,
        id: &str,
        new: LinuxContainerResources,
    ) -> Result<(), Error> {
        let container = self.container(id)?;
        let _op = container.op.lock().await;
        if container.phase() == ContainerPhase::Exited {
            return Err(Error::State("container is in CONTAINER_EXITED state".into()));
        }
        let c = Arc::clone(&container);
        self.blocking(move |this| {
            let mut record = c.record.lock().clone();
            let old = spec::resources(&record.config);
            let merged = merge(old.clone(), new);
            if record.phase == ContainerPhase::Running {
                let group = this.cgroups.group(&record.cgroup);
                if let Err(e) = group.apply(&spec::limits_of(&merged)) {
                    // All or nothing: what was written is taken back.
                    let _ = group.apply(&spec::limits_of(&old));
                    return Err(Error::io("failed to update resources")(e));
                }
            }
            record.config.linux.get_or_insert_default().resources = Some(merged);
            *c.record.lock() = record;
            this.save_container(&c)
        })
        .await
    }
}

fn merge(mut old: LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources {
    let set = |to: &mut i64, from: i64| {
        if from != 0 {
            *to = from;
        }
    };
    set(&mut old.cpu_period, new.cpu_period);
    set(&mut old.cpu_quota, new.cpu_quota);
    set(&mut old.cpu_shares, new.cpu_shares);
    set(&mut old.memory_limit_in_bytes, new.memory_limit_in_bytes);
    set(&mut old.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes);
    for (to, from) in [(&mut old.cpuset_cpus, new.cpuset_cpus), (&mut old.cpuset_mems, new.cpuset_mems)] {
        if !from.is_empty() {
            *to = from;
        }
    }
    old.unified.extend(new.unified);
    old
}

fn parse_net_dev(text: &str) -> Vec<Interface> {
    let lines = text.lines().skip(2).filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let n: Vec<u64> = rest.split_ascii_whitespace().filter_map(|w| w.parse().ok()).collect();
        // bytes packets errs drop fifo frame compressed multicast, then the same of the other direction.
        let four = |at: usize| Some([*n.get(at)?, *n.get(at + 2)?, *n.get(at + 3)?, *n.get(at + 1)?]);
        Some(Interface { name: name.trim().to_owned(), rx: four(0)?, tx: four(8)? })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_counters_are_bytes_errors_dropped_packets() {
        let text = "Inter-|\n face |\n    lo: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n  eth0:10 20 30 40 0 0 0 0 50 60 70 80 0 0 0 0\n";
        let got = parse_net_dev(text);
        assert_eq!((got[1].name.as_str(), got[1].rx, got[1].tx), ("eth0", [10, 30, 40, 20], [50, 70, 80, 60]));
    }

    #[test]
    fn an_update_keeps_what_it_does_not_mention() {
        let old = LinuxContainerResources { cpu_shares: 100, memory_limit_in_bytes: 7, ..Default::default() };
        let new = merge(old, LinuxContainerResources { cpu_shares: 200, ..Default::default() });
        assert_eq!((new.cpu_shares, new.memory_limit_in_bytes), (200, 7));
    }

    #[test]
    fn the_cpu_rate_is_what_was_used_since_the_last_reading() {
        let last = Mutex::new(None);
        let reading = |now, used| {
            let stats = Stats { cpu_ns: Some(used), ..Stats::default() };
            cpu_of(now, &stats, &last).and_then(|c| c.usage_nano_cores).map(|v| v.value)
        };
        assert_eq!(reading(1_000_000_000, 0), Some(0));
        assert_eq!(reading(2_000_000_000, 500_000_000), Some(500_000_000));
    }
}
