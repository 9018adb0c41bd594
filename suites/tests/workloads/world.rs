//! A virtual cluster to write workloads to. Waiting costs nothing here: time moves only when nothing is left to do.

use std::time::Duration;

use podlab_api::{KubeType, core::Pod};
use podlab_client::{Client, ListOptions, PatchKind};
use podlab_testbed::{
    ClusterSpec,
    world::{Disturbance, VirtualCluster, WorldSpec, run},
};
use serde_json::Value;

/// How often a state is looked at.
const LOOK: Duration = Duration::from_millis(50);

pub struct World {
    pub cluster: VirtualCluster,
    pub client: Client,
}

/// Runs a test in a world of so many nodes.
pub fn in_world<F: Future<Output = ()>>(nodes: u8, test: impl FnOnce(World) -> F) {
    let done = run(|| async move {
        let cluster = ClusterSpec { nodes, seed: 7, ..ClusterSpec::named("workloads") };
        let spec = WorldSpec { cluster, disturbance: Disturbance::default() };
        let cluster = VirtualCluster::boot(spec).await.unwrap();
        cluster.wait_ready(Duration::from_secs(60)).await.unwrap();
        let client = cluster.client();
        test(World { cluster, client }).await;
    });
    done.unwrap();
}

pub fn name<K: KubeType>(object: &K) -> String {
    object.metadata().name.clone().unwrap_or_default()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl World {
    pub async fn create<K: KubeType>(&self, object: &K) {
        self.client.namespaced::<K>("default").create(object).await.unwrap();
    }

    pub async fn patch<K: KubeType>(&self, name: &str, body: &Value) {
        self.client.namespaced::<K>("default").patch(name, &PatchKind::Merge, body).await.unwrap();
    }

    /// All objects of a kind, by name.
    pub async fn list<K: KubeType>(&self) -> Vec<K> {
        let (mut all, _) = self.client.namespaced::<K>("default").list(&ListOptions::default()).await.unwrap();
        all.sort_by_key(name);
        all
    }

    pub async fn pass(&self, time: Duration) {
        self.cluster.clock().sleep(time).await;
    }

    /// Waits until all objects of a kind together are so.
    pub async fn until<K: KubeType>(&self, what: &str, within: Duration, ok: impl Fn(&[K]) -> bool) -> Vec<K> {
        let clock = self.cluster.clock();
        let end = clock.now().after(within);
        loop {
            let all = self.list::<K>().await;
            if ok(&all) {
                return all;
            }
            let shown = || all.iter().map(|o| serde_json::to_string(o).unwrap()).collect::<Vec<_>>().join("\n");
            assert!(clock.now() < end, "{what}: not within {within:?}\n{}", shown());
            clock.sleep(LOOK).await;
        }
    }

    /// Waits until one object is so.
    pub async fn until_one<K: KubeType>(
        &self,
        named: &str,
        what: &str,
        within: Duration,
        ok: impl Fn(&K) -> bool,
    ) -> K {
        let found = |all: &[K]| all.iter().any(|o| name(o) == named && ok(o));
        let all = self.until::<K>(what, within, found).await;
        all.into_iter().find(|o| name(o) == named).unwrap()
    }

    /// A Pod's log.
    pub async fn log(&self, pod: &str) -> String {
        self.cluster.logs("default", pod, None, false).await.unwrap()
    }
}
