//! What is left on the nodes and in the API when all Pods are gone.

use std::{fs, path::Path, time::Duration};

use libtest_mimic::Failed;
use podlab_api::{
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::VolumeAttachment,
};
use podlab_client::{Client, DeleteOptions, ListOptions};
use podlab_clock::Clock;
use podlab_testbed::Cluster;

use crate::pods;

/// Directories of a node that are empty when there is no Pod.
const EMPTY: [&str; 7] = [
    "/run/cri/rw/pods",
    "/run/cri/rw/containers",
    "/run/netns",
    "/run/cni/results",
    "/var/lib/kubelet/pods",
    "/var/log/pods",
    "/var/log/containers",
];

/// The search itself: while a Pod with a volume runs, each place shows something. What looks into the wrong place finds
/// nothing for ever.
pub(super) async fn sees(cluster: &Cluster, client: &Client) -> Result<(), Failed> {
    let claim = serde_json::from_value(serde_json::json!({"metadata": {"name": "seen"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}))?;
    client.namespaced::<PersistentVolumeClaim>("default").create(&claim).await?;
    let mut pod = pods::make("seen", "Always", serde_json::json!(["sleep", "1000"]))?;
    if let Some(spec) = &mut pod.spec {
        spec.volumes =
            serde_json::from_value(serde_json::json!([{"name": "v", "persistentVolumeClaim": {"claimName": "seen"}}]))?;
        spec.containers[0].volume_mounts =
            serde_json::from_value(serde_json::json!([{"name": "v", "mountPath": "/v"}]))?;
    }
    client.namespaced("default").create(&pod).await?;
    pods::wait(client, "seen", "Ready", pods::PATIENCE, pods::is_ready).await?;
    let found = find(cluster, client).await?;
    let kinds = EMPTY.iter().copied().chain(["ip", "link", "cgroup", "mount"]).map(|k| format!(": {k} "));
    let kinds = kinds.chain(["Pod ", "claim ", "volume "].map(str::to_owned));
    let blind: Vec<String> = kinds.filter(|k| !found.iter().any(|f| f.contains(k.as_str()))).collect();
    if !blind.is_empty() {
        return Err(format!("a running Pod shows nothing in {blind:?}: {found:?}").into());
    }
    client.namespaced::<Pod>("default").delete("seen", &DeleteOptions::default()).await?;
    pods::gone(client, "seen", pods::PATIENCE).await?;
    Ok(client.namespaced::<PersistentVolumeClaim>("default").delete("seen", &DeleteOptions::default()).await?)
}

/// Waits until nothing is left; else what is.
pub(super) async fn settle(
    cluster: &Cluster,
    client: &Client,
    clock: Clock,
    within: Duration,
) -> Result<Vec<String>, Failed> {
    let end = clock.now().after(within);
    loop {
        let left = find(cluster, client).await?;
        if left.is_empty() || clock.now() > end {
            return Ok(left);
        }
        // Nobody announces that a node has tidied up.
        clock.sleep(Duration::from_millis(500)).await;
    }
}

/// Everything that is left, one line a thing.
pub(super) async fn find(cluster: &Cluster, client: &Client) -> Result<Vec<String>, Failed> {
    let mut found = Vec::new();
    for node in cluster.spec().node_names() {
        let inside = cluster.inside(&node)?;
        let mut add = |what: &str, names: Vec<String>| {
            found.extend(names.into_iter().map(|n| format!("{node}: {what} {n}")));
        };
        for dir in EMPTY {
            add(dir, names(&inside.path(dir)));
        }
        let ips = names(&inside.path("/run/cni/networks/podlab"));
        add("ip", ips.into_iter().filter(|n| n.parse::<std::net::IpAddr>().is_ok()).collect());
        add("link", inside.links()?.into_iter().filter(|l| l.starts_with("veth")).collect());
        let mut groups = Vec::new();
        cgroups(&inside.path("/sys/fs/cgroup"), 4, &mut groups);
        add("cgroup", groups);
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", cluster.pid_of(&node)?))?;
        let points = mounts.lines().filter_map(|l| l.split(' ').nth(4));
        let of_pods = |p: &&str| {
            ["/var/lib/kubelet/", "/run/cri/", "/run/netns/", "/var/lib/podlab/csi"].iter().any(|d| p.starts_with(d))
        };
        add("mount", points.filter(of_pods).map(str::to_owned).collect());
    }
    let all = ListOptions::default();
    let (pods, _) = client.all::<Pod>().list(&all).await?;
    found.extend(pods.iter().filter_map(|p| Some(format!("Pod {}", p.metadata.name.as_ref()?))));
    let (claims, _) = client.all::<PersistentVolumeClaim>().list(&all).await?;
    found.extend(claims.iter().filter_map(|c| Some(format!("claim {}", c.metadata.name.as_ref()?))));
    let (volumes, _) = client.all::<PersistentVolume>().list(&all).await?;
    found.extend(volumes.iter().filter_map(|v| Some(format!("volume {}", v.metadata.name.as_ref()?))));
    let (attachments, _) = client.all::<VolumeAttachment>().list(&all).await?;
    found.extend(attachments.iter().filter_map(|a| Some(format!("attachment {}", a.metadata.name.as_ref()?))));
    Ok(found)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Cgroups of Pods in any hierarchy and quality class.
fn cgroups(dir: &Path, depth: usize, found: &mut Vec<String>) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("pod") && name.len() > 30 {
            found.push(entry.path().display().to_string());
        } else if depth > 0 {
            cgroups(&entry.path(), depth - 1, found);
        }
    }
}
