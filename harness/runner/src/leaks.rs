//! What deleted Pods left on the nodes.

use std::{collections::BTreeSet, fs, path::Path};

use podlab_scenario::Leak;
use podlab_testbed::{Cluster, ClusterError, NodeInside};

/// Everything of the wanted kinds that is on the nodes, one line a thing. Pods that live are not told apart: a scenario
/// asks once its Pods are gone.
pub(crate) fn find(cluster: &Cluster, kinds: &[Leak]) -> Result<Vec<String>, ClusterError> {
    let mut found = Vec::new();
    for node in cluster.spec().node_names() {
        let inside = cluster.inside(&node)?;
        for kind in kinds {
            let things = match kind {
                Leak::Ips => names(&inside.path("/run/cni/networks/podlab"), |n| n.parse::<std::net::IpAddr>().is_ok()),
                Leak::Netns => names(&inside.path("/run/netns"), |_| true),
                Leak::Sandboxes => names(&inside.path("/run/cri/sandboxes"), |_| true),
                Leak::Cgroups => pod_cgroups(&inside),
                Leak::Links => inside.links()?.into_iter().filter(|l| l.starts_with("veth")).collect(),
            };
            found.extend(things.into_iter().map(|t| format!("{node}: {kind:?} {t}")));
        }
    }
    Ok(found)
}

fn names(dir: &Path, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| wanted(n)).collect()
}

/// Cgroups of Pods in any hierarchy and quality class.
fn pod_cgroups(inside: &NodeInside) -> BTreeSet<String> {
    fn walk(dir: &Path, depth: usize, found: &mut BTreeSet<String>) {
        for entry in
            fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("pod") && name.len() > 30 {
                found.insert(name);
            } else if depth > 0 {
                walk(&entry.path(), depth - 1, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&inside.path("/sys/fs/cgroup"), 4, &mut found);
    found
}
