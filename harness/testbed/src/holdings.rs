//! What a node holds for Pods, read from its files and links: for whoever asks whether something was left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use crate::{
    cluster::ClusterError,
    inside::NodeInside,
    node::{agent::CRI_ROOT, rootfs::POD_NETWORK},
};

/// One thing a node holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Holding {
    /// What kind.
    pub kind: Held,
    /// Its name, as the node has it.
    pub what: String,
    /// UID of the Pod it is held for, where that can be seen.
    pub pod: Option<String>,
}

/// Kinds of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Held {
    /// A sandbox of the runtime.
    Sandbox,
    /// A container of the runtime; its name is `POD/CONTAINER`.
    Container,
    /// A container that runs.
    Running,
    /// An address of the Pod network.
    Ip,
    /// A network namespace.
    Netns,
    /// A link to a Pod.
    Link,
    /// A Pod's cgroup.
    Cgroup,
    /// A mount in a Pod's volumes.
    Mount,
}

impl NodeInside {
    /// Everything the node holds for Pods, sorted.
    ///
    /// # Errors
    /// [`ClusterError::Control`] when the node went away.
    pub fn holdings(&self) -> Result<Vec<Holding>, ClusterError> {
        let mut out = self.runtime();
        let plain = |kind, what: String| Holding { kind, what, pod: None };
        let is_ip = |n: &str| n.parse::<std::net::IpAddr>().is_ok();
        out.extend(names(&self.path(POD_NETWORK)).into_iter().filter(|n| is_ip(n)).map(|n| plain(Held::Ip, n)));
        out.extend(names(&self.path("/run/netns")).into_iter().map(|n| plain(Held::Netns, n)));
        out.extend(self.links()?.into_iter().filter(|l| l.starts_with("veth")).map(|n| plain(Held::Link, n)));
        let mut cgroups = BTreeSet::new();
        pod_cgroups(&self.path("/sys/fs/cgroup"), 4, &mut cgroups);
        out.extend(cgroups.into_iter().map(|name| {
            let uid = name.trim_start_matches("pod").trim_end_matches(".slice").replace('_', "-");
            Holding { kind: Held::Cgroup, what: name, pod: Some(uid) }
        }));
        out.extend(self.mounts());
        out.sort();
        Ok(out)
    }

    /// The runtime's own records: the last line of an id is its state, `null` means gone.
    fn runtime(&self) -> Vec<Holding> {
        let text = fs::read_to_string(self.path(CRI_ROOT).join("state.jsonl")).unwrap_or_default();
        let mut live: BTreeMap<(String, String), Value> = BTreeMap::new();
        for line in text.lines() {
            let Ok(tree) = serde_json::from_str::<Value>(line) else { continue };
            let word = |key: &str| tree[key].as_str().unwrap_or_default().to_owned();
            let key = (word("kind"), word("id"));
            match &tree["record"] {
                Value::Null => drop(live.remove(&key)),
                record => drop(live.insert(key, record.clone())),
            }
        }
        let text = |record: &Value, at: &str| record.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        let pod_of = |sandbox: &str| {
            let record = live.get(&("sandbox".to_owned(), sandbox.to_owned()))?;
            Some((text(record, "/config/metadata/uid"), text(record, "/config/metadata/name")))
        };
        let mut out = Vec::new();
        for ((kind, id), record) in &live {
            if kind == "sandbox" {
                let pod = pod_of(id).map(|(uid, _)| uid);
                out.push(Holding { kind: Held::Sandbox, what: id.clone(), pod });
                continue;
            }
            let (uid, name) = pod_of(&text(record, "/sandbox_id")).unwrap_or_default();
            let what = format!("{name}/{}", text(record, "/config/metadata/name"));
            let running = text(record, "/phase") == "Running";
            let pod = Some(uid).filter(|uid| !uid.is_empty());
            out.push(Holding { kind: Held::Container, what: what.clone(), pod: pod.clone() });
            out.extend(running.then_some(Holding { kind: Held::Running, what, pod }));
        }
        out
    }

    /// Mounts below `…/pods/UID/volumes`.
    fn mounts(&self) -> Vec<Holding> {
        let text = fs::read_to_string(self.path("/proc/1/mountinfo")).unwrap_or_default();
        let one = |line: &str| {
            let point = line.split(' ').nth(4)?;
            let (_, rest) = point.split_once("/kubelet/pods/")?;
            let uid = rest.split('/').next()?.to_owned();
            Some(Holding { kind: Held::Mount, what: point.to_owned(), pod: Some(uid) })
        };
        text.lines().filter_map(one).collect()
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Cgroups of Pods in any hierarchy and quality class.
fn pod_cgroups(dir: &Path, depth: usize, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("pod") && name.len() > 30 {
            found.insert(name);
        } else if depth > 0 {
            pod_cgroups(&entry.path(), depth - 1, found);
        }
    }
}
