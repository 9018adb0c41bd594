//! The host: what it lacks, and a fingerprint of what a run must not change.

use std::{collections::BTreeSet, fs, path::Path};

use podlab_cni::netlink::Netlink;

/// Something the host lacks, and how to get it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Lack {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether clusters cannot boot without it.
    pub fatal: bool,
}

/// Checks what clusters need; empty when nothing is missing.
pub fn diagnose() -> Vec<Lack> {
    let mut lacks = Vec::new();
    let mut need = |ok: bool, what: &str, remedy: &str, fatal: bool| {
        if !ok {
            lacks.push(Lack { what: what.to_owned(), remedy: remedy.to_owned(), fatal });
        }
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caps =
        status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|v| u64::from_str_radix(v.trim(), 16).ok());
    let has = |bit: u32| caps.unwrap_or(0) & (1 << bit) != 0;
    need(
        has(21),
        "the right to make namespaces and mounts (CAP_SYS_ADMIN)",
        "run podlab as root, e.g. with sudo",
        true,
    );
    need(has(12), "the right to make network links (CAP_NET_ADMIN)", "run podlab as root, e.g. with sudo", true);
    need(
        has(27),
        "the right to make device nodes (CAP_MKNOD)",
        "run podlab as root, or in a container with --cap-add MKNOD",
        true,
    );
    need(
        has(24),
        "CAP_SYS_RESOURCE: oom_score_adj cannot be lowered",
        "nothing breaks; OOM scores below the parent's are not set",
        false,
    );
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for name in ["overlay", "tmpfs", "mqueue"] {
        let there = filesystems.lines().any(|l| l.split_whitespace().last() == Some(name));
        need(
            there,
            &format!("the file system {name}"),
            &format!("load it with `modprobe {name}`, or use a kernel that has it"),
            true,
        );
    }
    match podlab_cri::cgroup::Cgroups::detect(None) {
        Ok(_) => {}
        Err(e) => need(
            false,
            &format!("cgroups with memory and cpu controllers ({e})"),
            "mount cgroup v2, or the v1 controllers, at /sys/fs/cgroup",
            true,
        ),
    }
    for ns in ["net", "mnt", "pid", "uts", "ipc", "cgroup"] {
        need(
            Path::new("/proc/self/ns").join(ns).exists(),
            &format!("{ns} namespaces"),
            "use a kernel that has them",
            true,
        );
    }
    lacks
}

/// What a run must leave as it was: interfaces, routes, mounts, processes, and the contents of `/etc` and `/var/lib`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Interface names.
    pub links: BTreeSet<String>,
    /// Number of routes in all tables.
    pub routes: usize,
    /// nftables' and iptables' view, as far as `/proc` shows it.
    pub rules: String,
    /// Mount points of this namespace.
    pub mounts: BTreeSet<String>,
    /// Command names and pids of processes that run this very program, or live below it.
    pub processes: BTreeSet<String>,
    /// Paths with size and modification time below `/etc` and `/var/lib`, two levels deep.
    pub files: BTreeSet<String>,
    /// Directories named `podlab-*` in the cgroup hierarchies.
    pub cgroups: BTreeSet<String>,
}

impl Fingerprint {
    /// Takes the fingerprint now.
    pub fn take() -> Self {
        let netlink = Netlink::open().ok();
        let links = netlink.as_ref().and_then(|n| n.links().ok()).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut files = BTreeSet::new();
        for root in ["/etc", "/var/lib"] {
            walk(Path::new(root), 2, &mut files);
        }
        let mut cgroups = BTreeSet::new();
        find_cgroups(Path::new("/sys/fs/cgroup"), 4, &mut cgroups);
        Self {
            links: links.into_iter().map(|l| l.name).collect(),
            routes: netlink.and_then(|n| n.route_count().ok()).unwrap_or(0),
            rules: fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default(),
            mounts: mounts.lines().filter_map(|l| l.split(' ').nth(4)).map(str::to_owned).collect(),
            processes: processes(),
            files,
            cgroups,
        }
    }

    /// What is different in `after`, one sentence each.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let mut out = Vec::new();
        let mut sets = |what: &str, a: &BTreeSet<String>, b: &BTreeSet<String>| {
            out.extend(b.difference(a).map(|x| format!("{what} appeared: {x}")));
            out.extend(a.difference(b).map(|x| format!("{what} went: {x}")));
        };
        sets("interface", &self.links, &after.links);
        sets("mount", &self.mounts, &after.mounts);
        sets("process", &self.processes, &after.processes);
        sets("file", &self.files, &after.files);
        sets("cgroup", &self.cgroups, &after.cgroups);
        if self.routes != after.routes {
            out.push(format!("routes: {} before, {} after", self.routes, after.routes));
        }
        if self.rules != after.rules {
            out.push(format!("firewall tables: {:?} before, {:?} after", self.rules, after.rules));
        }
        out
    }
}

fn walk(dir: &Path, depth: usize, out: &mut BTreeSet<String>) {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        out.insert(format!("{} {} {}.{}", entry.path().display(), meta.len(), meta.mtime(), meta.mtime_nsec()));
        if meta.is_dir() && depth > 1 {
            walk(&entry.path(), depth - 1, out);
        }
    }
}

fn find_cgroups(dir: &Path, depth: usize, out: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with("podlab-") {
            out.insert(entry.path().display().to_string());
        } else if depth > 1 {
            find_cgroups(&entry.path(), depth - 1, out);
        }
    }
}

/// Processes whose program is ours, except this one.
fn processes() -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/exe").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter(|p| *p != std::process::id());
    pids.filter(|pid| own.is_some() && fs::read_link(format!("/proc/{pid}/exe")).ok() == own)
        .map(|pid| format!("{pid} {}", fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim()))
        .collect()
}
