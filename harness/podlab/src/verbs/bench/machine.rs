//! What a figure depends on besides the build, printed with each of them.

use std::collections::BTreeMap;

/// Facts about this machine, by name.
pub(crate) fn facts() -> BTreeMap<String, String> {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default().trim().to_owned();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map_or("", |(_, m)| m.trim());
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let cgroup = if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" };
    let expedited = read("/sys/kernel/rcu_expedited");
    let all = [
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("cpu", model.to_owned()),
        ("cores", cores.to_string()),
        ("cgroup", cgroup.to_owned()),
        ("rcuExpedited", if expedited.is_empty() { "unknown".to_owned() } else { expedited }),
        ("modes", "overlay upper on tmpfs, no netns pool, durable batch".to_owned()),
    ];
    all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

/// The class of this machine, under which its baselines are kept: what changes a figure more than a build does.
pub(crate) fn class() -> String {
    let facts = facts();
    let word = |key: &str| facts.get(key).cloned().unwrap_or_default();
    let kernel = word("kernel").split('.').take(2).collect::<Vec<_>>().join(".");
    let text = format!("{}x {} linux-{kernel} cgroup-{}", word("cores"), word("cpu"), word("cgroup"));
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let text: String = text.chars().map(keep).collect();
    text.split('-').filter(|w| !w.is_empty()).collect::<Vec<_>>().join("-")
}

/// Average load of the last minute, and time stolen by other machines since the start, in ticks.
pub(crate) fn load() -> (String, u64) {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let average = read("/proc/loadavg").split_whitespace().next().unwrap_or("?").to_owned();
    let steal = read("/proc/stat").lines().next().and_then(|l| l.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0);
    (average, steal)
}
