//! Metrics under cAdvisor's names, one table: name, help, labels, and where the value comes from.

use std::{fs, sync::Arc};

use crate::{
    cgroup::Stats,
    runtime::Runtime,
    state::{Container, ContainerPhase, Sandbox, upper_dir},
    stats::Interface,
    v1::{self, MetricType, UInt64Value},
};

/// Labels every metric has, in this order.
const BASE: [&str; 6] = ["id", "name", "image", "container", "pod", "namespace"];

enum Source {
    /// One number of the group.
    Stat(fn(&Stats) -> Option<u64>),
    /// A number of the container's processes or of the bridge's view of it.
    View(fn(&View) -> Option<u64>),
    /// One series an interface.
    Network(fn(&Interface) -> u64),
    /// Page faults by kind and scope.
    Failures,
    /// Declared; this kernel or runtime has no numbers.
    Absent,
}

/// What is read beside the cgroup.
#[derive(Default)]
struct View {
    now: i64,
    started: i64,
    processes: u64,
    threads: u64,
    descriptors: u64,
    sockets: u64,
    fs_used: u64,
    fs_inodes_total: u64,
    fs_inodes_free: u64,
    fs_limit: u64,
    cpu_shares: Option<u64>,
    cpu_period: Option<u64>,
    memory_limit: Option<u64>,
}

struct Row {
    name: &'static str,
    help: &'static str,
    extra: &'static [&'static str],
    kind: MetricType,
    source: Source,
}

const fn row(
    name: &'static str,
    help: &'static str,
    extra: &'static [&'static str],
    kind: MetricType,
    source: Source,
) -> Row {
    Row { name, help, extra, kind, source }
}

use MetricType::{Counter, Gauge};
use Source::{Absent, Failures, Network, Stat, View as Of};

const SECOND: u64 = 1_000_000_000;

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("container_blkio_device_usage_total", "Bytes moved by block devices.", &["device", "major", "minor", "operation"], Counter, Absent),
    row("container_cpu_cfs_periods_total", "CFS periods elapsed.", &[], Counter, Stat(|s| s.throttling.map(|t| t.0))),
    row("container_cpu_cfs_throttled_periods_total", "CFS periods in which it was throttled.", &[], Counter, Stat(|s| s.throttling.map(|t| t.1))),
    row("container_cpu_cfs_throttled_seconds_total", "Seconds it was throttled.", &[], Counter, Stat(|s| s.throttling.map(|t| t.2 / SECOND))),
    row("container_cpu_system_seconds_total", "CPU seconds in the kernel.", &[], Counter, Stat(|s| s.cpu_system_ns.map(|n| n / SECOND))),
    row("container_cpu_usage_seconds_total", "CPU seconds.", &["cpu"], Counter, Stat(|s| s.cpu_ns.map(|n| n / SECOND))),
    row("container_cpu_user_seconds_total", "CPU seconds in user mode.", &[], Counter, Stat(|s| s.cpu_user_ns.map(|n| n / SECOND))),
    row("container_file_descriptors", "Open files.", &[], Gauge, Of(|v| Some(v.descriptors))),
    row("container_fs_inodes_free", "Free inodes of its writable layer's file system.", &["device"], Gauge, Of(|v| Some(v.fs_inodes_free))),
    row("container_fs_inodes_total", "Inodes of its writable layer's file system.", &["device"], Gauge, Of(|v| Some(v.fs_inodes_total))),
    row("container_fs_limit_bytes", "Size of its writable layer's file system.", &["device"], Gauge, Of(|v| Some(v.fs_limit))),
    row("container_fs_reads_bytes_total", "Bytes read.", &["device"], Counter, Absent),
    row("container_fs_reads_total", "Reads.", &["device"], Counter, Absent),
    row("container_fs_usage_bytes", "Bytes of its writable layer.", &["device"], Gauge, Of(|v| Some(v.fs_used))),
    row("container_fs_writes_bytes_total", "Bytes written.", &["device"], Counter, Absent),
    row("container_fs_writes_total", "Writes.", &["device"], Counter, Absent),
    row("container_last_seen", "When it was last seen.", &[], Gauge, Of(|v| u64::try_from(v.now).ok().map(|n| n / SECOND))),
    row("container_memory_cache", "Page cache.", &[], Gauge, Stat(|s| s.cache)),
    row("container_memory_failcnt", "How often the limit was hit.", &[], Counter, Stat(|s| s.memory_failcnt)),
    row("container_memory_failures_total", "Page faults.", &["failure_type", "scope"], Counter, Failures),
    row("container_memory_kernel_usage", "Kernel memory.", &[], Gauge, Stat(|s| s.kernel)),
    row("container_memory_mapped_file", "Mapped files.", &[], Gauge, Stat(|s| s.mapped_file)),
    row("container_memory_max_usage_bytes", "Most memory ever used.", &[], Gauge, Stat(|s| s.memory_max_usage)),
    row("container_memory_rss", "Anonymous memory.", &[], Gauge, Stat(|s| s.rss)),
    row("container_memory_swap", "Swap.", &[], Gauge, Stat(|s| s.swap.or(Some(0)))),
    row("container_memory_usage_bytes", "Memory, with all caches.", &[], Gauge, Stat(|s| s.memory_usage)),
    row("container_memory_working_set_bytes", "Memory that cannot be dropped easily.", &[], Gauge, Stat(|s| s.working_set)),
    row("container_network_receive_bytes_total", "Bytes received.", &["interface"], Counter, Network(|i| i.rx[0])),
    row("container_network_receive_errors_total", "Errors while receiving.", &["interface"], Counter, Network(|i| i.rx[1])),
    row("container_network_receive_packets_dropped_total", "Received packets dropped.", &["interface"], Counter, Network(|i| i.rx[2])),
    row("container_network_receive_packets_total", "Packets received.", &["interface"], Counter, Network(|i| i.rx[3])),
    row("container_network_transmit_bytes_total", "Bytes sent.", &["interface"], Counter, Network(|i| i.tx[0])),
    row("container_network_transmit_errors_total", "Errors while sending.", &["interface"], Counter, Network(|i| i.tx[1])),
    row("container_network_transmit_packets_dropped_total", "Packets dropped while sending.", &["interface"], Counter, Network(|i| i.tx[2])),
    row("container_network_transmit_packets_total", "Packets sent.", &["interface"], Counter, Network(|i| i.tx[3])),
    row("container_oom_events_total", "Processes killed for want of memory.", &[], Counter, Stat(|s| Some(s.oom_kills))),
    row("container_processes", "Processes.", &[], Gauge, Of(|v| Some(v.processes))),
    row("container_sockets", "Open sockets.", &[], Gauge, Of(|v| Some(v.sockets))),
    row("container_spec_cpu_period", "CPU period.", &[], Gauge, Of(|v| v.cpu_period.or(Some(100_000)))),
    row("container_spec_cpu_shares", "CPU shares.", &[], Gauge, Of(|v| v.cpu_shares.or(Some(2)))),
    row("container_spec_memory_limit_bytes", "Memory limit; 0: none.", &[], Gauge, Of(|v| v.memory_limit.or(Some(0)))),
    row("container_spec_memory_swap_limit_bytes", "Swap limit; 0: none.", &[], Gauge, Of(|_| Some(0))),
    row("container_start_time_seconds", "When it was started.", &[], Gauge, Of(|v| u64::try_from(v.started).ok().map(|n| n / SECOND))),
    row("container_threads", "Threads.", &[], Gauge, Of(|v| Some(v.threads))),
    row("container_threads_max", "Most threads allowed; 0: no limit.", &[], Gauge, Stat(|s| s.pids_max.or(Some(0)))),
];

/// All metrics that may be reported.
pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let own = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    ROWS.iter()
        .map(|r| v1::MetricDescriptor {
            name: r.name.into(),
            help: r.help.into(),
            label_keys: [own(&BASE), own(r.extra)].concat(),
        })
        .collect()
}

impl Runtime {
    /// The metrics of all sandboxes that are ready.
    pub(crate) fn sandbox_metrics(self: &Arc<Self>) -> Vec<v1::PodSandboxMetrics> {
        let all: Vec<Arc<Sandbox>> = self.sandboxes.lock().values().filter(|s| s.is_ready()).cloned().collect();
        all.iter().map(|s| self.metrics_of(s)).collect()
    }

    fn metrics_of(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> v1::PodSandboxMetrics {
        let interfaces = self.interfaces(sandbox);
        let (metadata, now) = (sandbox.record.lock().config.metadata.clone().unwrap_or_default(), self.now_ns());
        let of_pod = |name: &str, image: &str, container: &str| {
            [sandbox.id.as_str(), name, image, container, metadata.name.as_str(), metadata.namespace.as_str()]
                .map(ToOwned::to_owned)
                .to_vec()
        };
        let stats = self.pod_group(sandbox).map(|g| g.stats()).unwrap_or_default();
        let view = View { now, started: sandbox.record.lock().created_at, processes: 1, threads: 1, ..View::default() };
        let containers = self.containers_of(&sandbox.id);
        let running = containers.iter().filter(|c| c.phase() == ContainerPhase::Running);
        v1::PodSandboxMetrics {
            pod_sandbox_id: sandbox.id.clone(),
            metrics: series(now, &of_pod(&sandbox.id, "", "POD"), &stats, &view, &interfaces),
            container_metrics: running
                .map(|c| {
                    let record = c.record.lock().clone();
                    let name = record.config.metadata.clone().unwrap_or_default().name;
                    let labels = of_pod(&record.id, &record.image_ref, &name);
                    let stats = self.cgroups.group(&record.cgroup).stats();
                    v1::ContainerMetrics {
                        container_id: record.id.clone(),
                        metrics: series(now, &labels, &stats, &self.view_of(c, now), &[]),
                    }
                })
                .collect(),
        }
    }

    fn view_of(&self, container: &Container, now: i64) -> View {
        let record = container.record.lock().clone();
        let rw = self.config.run.join("rw");
        let resources = crate::spec::resources(&record.config);
        let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
        let mut view = View {
            now,
            started: record.started_at,
            fs_used: crate::images::disk_usage(&upper_dir(&self.config.run, &record.id).join("u")).0,
            cpu_shares: positive(resources.cpu_shares),
            cpu_period: positive(resources.cpu_period),
            memory_limit: positive(resources.memory_limit_in_bytes),
            ..View::default()
        };
        if let Ok(fs) = nix::sys::statvfs::statvfs(&rw) {
            view.fs_inodes_total = fs.files();
            view.fs_inodes_free = fs.files_free();
            view.fs_limit = fs.blocks() * fs.fragment_size();
        }
        for pid in self.cgroups.group(&record.cgroup).procs() {
            view.processes += 1;
            view.threads += fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |d| d.count() as u64);
            for fd in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                view.descriptors += 1;
                view.sockets +=
                    u64::from(fs::read_link(fd.path()).is_ok_and(|l| l.to_string_lossy().starts_with("socket:")));
            }
        }
        view
    }
}

fn series(now: i64, labels: &[String], stats: &Stats, view: &View, interfaces: &[Interface]) -> Vec<v1::Metric> {
    let mut all = Vec::with_capacity(ROWS.len());
    for row in ROWS {
        let mut push = |extra: &[&str], value: u64| {
            let label_values = labels.iter().cloned().chain(extra.iter().map(ToString::to_string)).collect();
            all.push(v1::Metric {
                name: row.name.into(),
                timestamp: now,
                metric_type: row.kind.into(),
                label_values,
                value: Some(UInt64Value { value }),
            });
        };
        // A label that only names what there is one of: the total, the one device.
        let single: &[&str] = match row.extra {
            ["cpu"] => &["total"],
            ["device"] => &[""],
            _ => &[],
        };
        match &row.source {
            Stat(get) => drop(get(stats).map(|v| push(single, v))),
            Of(get) => drop(get(view).map(|v| push(single, v))),
            Network(get) => interfaces.iter().for_each(|i| push(&[&i.name], get(i))),
            Failures => {
                if let Some((minor, major)) = stats.faults {
                    for scope in ["container", "hierarchy"] {
                        push(&["pgfault", scope], minor);
                        push(&["pgmajfault", scope], major);
                    }
                }
            }
            Absent => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_as_many_values_as_its_descriptor_has_labels() {
        let stats = Stats { cpu_ns: Some(1), faults: Some((1, 2)), throttling: Some((1, 2, 3)), ..Stats::default() };
        let labels = vec![String::new(); BASE.len()];
        let all =
            series(1, &labels, &stats, &View::default(), &[Interface { name: "eth0".into(), ..Interface::default() }]);
        let descriptors = descriptors();
        for metric in all {
            let d = descriptors.iter().find(|d| d.name == metric.name).unwrap();
            assert_eq!(d.label_keys.len(), metric.label_values.len(), "{}", metric.name);
        }
    }
}
