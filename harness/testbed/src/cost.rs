//! What the parts of a cluster cost the machine, read from `/proc`: time on a CPU, resident memory, descriptors, threads.

use std::{collections::BTreeMap, fs, time::Duration};

use podlab_cri::init::InitClient;

use crate::Cluster;

/// What one process has used, and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time on a CPU since it began, in user space and in the kernel. Counted in clock ticks of 10 ms.
    pub cpu: Duration,
    /// Resident memory, bytes.
    pub resident: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

/// A process as its status says.
struct Process {
    pid: i32,
    parent: i32,
    /// Its pid in each namespace it is in, outermost first.
    pids: Vec<i32>,
}

impl Cluster {
    /// What `plane` and the agent of each node have used. A part that is down is left out; so is everything of a cluster that
    /// has ended.
    pub fn costs(&self) -> BTreeMap<String, Cost> {
        let Some(capsule) = self.state().pid() else { return BTreeMap::new() };
        let all = processes();
        let mut out = BTreeMap::new();
        for (part, pid) in Self::info(self.state()).processes {
            // By its pid inside the capsule, the second of those it has.
            let outside = all.iter().find(|p| p.parent == capsule && p.pids.get(1) == Some(&pid)).map(|p| p.pid);
            let Some(outside) = outside else { continue };
            if part == "plane" {
                out.extend(cost(outside).map(|c| (part, c)));
                continue;
            }
            let status = InitClient::connect(&self.state().node_socket(&part)).and_then(|c| c.status());
            let Some(agent) = status.ok().and_then(|s| s.agent) else { continue };
            let agent = all.iter().find(|p| p.parent == outside && p.pids.last() == Some(&agent));
            out.extend(agent.and_then(|p| cost(p.pid)).map(|c| (format!("{part} agent"), c)));
        }
        out
    }
}

/// Every process of this machine that can be seen.
fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let pid = e.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(e.path().join("status")).ok()?;
            parse(pid, &status)
        })
        .collect()
}

fn parse(pid: i32, status: &str) -> Option<Process> {
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let parent = field("PPid:")?.parse().ok()?;
    let pids = field("NSpid:")?.split_whitespace().filter_map(|p| p.parse().ok()).collect();
    Some(Process { pid, parent, pids })
}

fn cost(pid: i32) -> Option<Cost> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    Some(Cost { descriptors: u64::try_from(descriptors).unwrap_or(0), ..used(&stat, &status)? })
}

/// From the text of `stat` and `status`.
fn used(stat: &str, status: &str) -> Option<Cost> {
    // The name stands in brackets and may have any character in it. After it the state is the first field.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let cpu = Duration::from_millis((ticks()? + ticks()?) * 10);
    let number = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let resident = number("VmRSS:").unwrap_or(0) * 1024;
    Some(Cost { cpu, resident, descriptors: 0, threads: number("Threads:").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 25 15 0 0 20 0 3 0 100 1000 200";
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\nThreads:\t3\n";
        let cost = used(stat, status).unwrap();
        assert_eq!((cost.cpu, cost.resident, cost.threads), (Duration::from_millis(400), 2 << 20, 3));
    }

    #[test]
    fn pids_of_all_namespaces_are_read() {
        let p = parse(70, "Name:\tx\nPid:\t70\nPPid:\t60\nNSpid:\t70\t12\t3\n").unwrap();
        assert_eq!((p.parent, p.pids), (60, vec![70, 12, 3]));
    }
}
