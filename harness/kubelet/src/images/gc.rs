//! Images nobody uses: removed when their file system fills up, the longest unused first, or when they are too old.
//! Source: k/k pkg/kubelet/images/image_gc_manager.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use podlab_clock::Mono;
use podlab_cri::v1;

use crate::{agent::Agent, usage};

/// How often the file system is looked at.
const PERIOD: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
struct Seen {
    first: Mono,
    used: Option<Mono>,
}

/// When each image was first seen and last used, by id.
#[derive(Debug, Default)]
pub(crate) struct ImageAges(Mutex<BTreeMap<String, Seen>>);

/// How much was freed, and of how much that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Freed {
    bytes: u64,
    images: u64,
}

/// Collects until the agent stops.
pub(crate) async fn run(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            let began = agent.clock.now();
            detect(&agent).await;
            loop {
                agent.clock.sleep(PERIOD).await;
                collect(&agent, began).await;
            }
        })
        .await;
}

/// Removes every image no container uses, but for those that have just come.
pub(crate) async fn remove_unused(agent: &Agent) {
    let all = detect(agent).await;
    free(agent, all, u64::MAX).await;
}

/// Reads images and containers, and notes who is in use. Returns the images that may go, the longest unused first.
async fn detect(agent: &Agent) -> Vec<v1::Image> {
    let (images, containers) =
        tokio::join!(agent.image_service.list_images(), agent.runtime.list_containers(v1::ContainerFilter::default()));
    let (Ok(images), Ok(containers)) = (images, containers) else { return Vec::new() };
    let mut in_use: BTreeSet<&str> = BTreeSet::new();
    for c in &containers {
        in_use.extend([c.image_ref.as_str(), c.image_id.as_str()]);
        in_use.extend(c.image.iter().flat_map(|i| [i.image.as_str(), i.user_specified_image.as_str()]));
    }
    let volumes: Vec<String> = agent
        .workers
        .active()
        .iter()
        .flat_map(|p| podlab_lifecycle::spec::pod_spec(p).volumes.clone().unwrap_or_default())
        .filter_map(|v| v.image?.reference)
        .collect();
    in_use.extend(volumes.iter().map(String::as_str));
    let used = |i: &v1::Image| {
        std::iter::once(&i.id).chain(&i.repo_tags).chain(&i.repo_digests).any(|n| in_use.contains(n.as_str()))
    };
    let now = agent.clock.now();
    let mut ages = agent.image_ages.0.lock();
    ages.retain(|id, _| images.iter().any(|i| i.id == *id));
    let mut idle = Vec::new();
    for i in images {
        let seen = ages.entry(i.id.clone()).or_insert(Seen { first: now, used: None });
        if used(&i) {
            seen.used = Some(now);
        } else if !i.pinned {
            idle.push((seen.used, seen.first, i));
        }
    }
    idle.sort_by(|a, b| (a.0, a.1, &a.2.id).cmp(&(b.0, b.1, &b.2.id)));
    idle.into_iter().map(|(_, _, i)| i).collect()
}

/// Removes images in order until `wanted` bytes are free.
async fn free(agent: &Agent, images: Vec<v1::Image>, wanted: u64) -> Freed {
    let mut freed = Freed::default();
    let now = agent.clock.now();
    for i in images {
        if freed.bytes >= wanted {
            break;
        }
        let first = agent.image_ages.0.lock().get(&i.id).map_or(now, |s| s.first);
        if now.since(first) < agent.config.image_gc.min_age {
            continue;
        }
        let spec = v1::ImageSpec { image: i.id.clone(), ..Default::default() };
        match agent.image_service.remove_image(spec).await {
            Ok(()) => {
                agent.image_ages.0.lock().remove(&i.id);
                agent.metrics.image_removed("space");
                freed = Freed { bytes: freed.bytes.saturating_add(i.size), images: freed.images + 1 };
            }
            Err(error) => tracing::warn!(image = i.id, %error, "image not removed"),
        }
    }
    freed
}

async fn collect(agent: &Agent, began: Mono) {
    let gc = agent.config.image_gc;
    let mut idle = detect(agent).await;
    let now = agent.clock.now();
    if !gc.max_age.is_zero() && now.since(began) > gc.max_age {
        let last = |i: &v1::Image| agent.image_ages.0.lock().get(&i.id).map_or(now, |s| s.used.unwrap_or(s.first));
        let (old, young): (Vec<_>, Vec<_>) = idle.into_iter().partition(|i| now.since(last(i)) > gc.max_age);
        free(agent, old, u64::MAX).await;
        idle = young;
    }
    let disk = usage::of_node(agent).await.imagefs;
    if disk.capacity == 0 {
        agent.say.node_warn("InvalidDiskCapacity", "invalid capacity 0 on image filesystem");
        return;
    }
    let available = disk.available.min(disk.capacity);
    let percent = 100 - available * 100 / disk.capacity;
    if percent < u64::from(gc.high) {
        return;
    }
    let wanted = (disk.capacity * u64::from(100 - gc.low) / 100).saturating_sub(available);
    let freed = free(agent, idle, wanted).await;
    if freed.bytes < wanted {
        let message = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {} bytes eligible to free.",
            freed.bytes
        );
        agent.say.node_warn("FreeDiskSpaceFailed", message.clone());
        agent.say.node_warn("ImageGCFailed", message);
    }
}
