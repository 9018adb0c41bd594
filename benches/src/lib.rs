//! What the benches share: a cluster under the bench's own watch. Each bench is a file beside this folder, and
//! `podlab-stats` has the words criterion lacks.
#![allow(clippy::expect_used, reason = "a bench that cannot go on says where it stopped")]

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, future::try_join_all};
use podlab_api::{ApiError, Object, ResourceRef, core::Pod};
use podlab_client::{
    Client, Collection, DeleteOptions, ListOptions, Target, WatchEvent, WatchOptions, WatchStream, WatchType,
};
use podlab_clock::Clock;
use podlab_testbed::{Cluster, ClusterSpec, Zygote};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The image every case runs.
pub const IMAGE: &str = "registry.test/testimage:1";

/// A cluster, and one watch of its Pods that lives as long, so that no measured start pays for one.
pub struct Lab {
    /// The cluster; down when dropped.
    pub cluster: Cluster,
    /// Talks to its API.
    pub client: Client,
    /// Measures.
    pub clock: Clock,
    pods: Collection,
    watch: WatchStream,
}

/// Boots a cluster of one node.
///
/// # Panics
/// When it does not boot.
pub fn boot(zygote: &Zygote, runtime: &Runtime, name: &str) -> Cluster {
    let spec = ClusterSpec { tied_to_runner: true, ..ClusterSpec::named(&format!("{name}-{}", std::process::id())) };
    let cluster = Cluster::boot(zygote, spec).expect("a cluster boots");
    runtime.block_on(cluster.wait_ready(Clock::real(), LIMIT)).expect("the cluster becomes ready");
    cluster
}

impl Lab {
    /// Boots a cluster and opens the watch.
    ///
    /// # Panics
    /// When it does not boot, or its API does not answer.
    pub fn new(zygote: &Zygote, runtime: &Runtime, name: &str) -> Self {
        let cluster = boot(zygote, runtime, name);
        let client = cluster.client().expect("a kubeconfig was written");
        let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some("default".to_owned()) };
        let watch = runtime.block_on(async {
            let list = client.raw().list(&pods, &ListOptions::default()).await.expect("the API answers");
            let options = WatchOptions { resource_version: Some(list.resource_version), ..WatchOptions::default() };
            client.raw().watch(&pods, &options).await.expect("the API answers")
        });
        Self { cluster, client, clock: Clock::real(), pods, watch }
    }

    /// Creates Pods, all at once, and waits until the watch has shown each of them as `done` wants it; how long that took.
    ///
    /// # Panics
    /// When one is refused, or does not come to that in time.
    pub async fn create(&mut self, pods: Vec<Object>, done: impl Fn(&Object) -> bool) -> Duration {
        let names = pods.iter().map(|p| p.name().to_owned()).collect();
        let (client, collection, clock) = (self.client.clone(), self.pods.clone(), self.clock);
        let begin = clock.now();
        let all = pods.into_iter().map(|p| client.raw().create(&collection, None, p));
        let (created, ()) =
            futures::join!(try_join_all(all), self.until(names, |e| e.kind != WatchType::Deleted && done(&e.object)));
        created.expect("the Pods are accepted");
        clock.now().since(begin)
    }

    /// Deletes Pods, all at once, and waits until the watch has shown that they are gone; how long that took.
    ///
    /// # Panics
    /// When one cannot be deleted, or does not go in time.
    pub async fn delete(&mut self, names: &[String]) -> Duration {
        let (client, clock) = (self.client.clone(), self.clock);
        let begin = clock.now();
        let collection = self.pods.clone();
        let all = names.iter().map(|name| {
            let target = Target { collection: collection.clone(), name: name.clone(), subresource: None };
            let client = &client;
            async move { client.raw().delete(&target, &DeleteOptions::default()).await }
        });
        let left = names.iter().cloned().collect();
        let (deleted, ()) = futures::join!(try_join_all(all), self.until(left, |e| e.kind == WatchType::Deleted));
        deleted.expect("the Pods can be deleted");
        clock.now().since(begin)
    }

    async fn until(&mut self, mut left: BTreeSet<String>, done: impl Fn(&WatchEvent) -> bool) {
        let clock = self.clock;
        let all = async {
            while !left.is_empty() {
                let event = self.watch.next().await.expect("the watch goes on").expect("the watch goes on");
                if left.contains(event.object.name()) && done(&event) {
                    left.remove(event.object.name());
                }
            }
        };
        assert!(clock.timeout(LIMIT, all).await.is_some(), "not within {LIMIT:?}");
    }

    /// Creates a claim of 16 MiB.
    ///
    /// # Errors
    /// The API's.
    pub async fn claim(&self, name: &str) -> Result<(), ApiError> {
        let claim = Object(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard",
                "resources": {"requests": {"storage": "16Mi"}}}}));
        let resource = ResourceRef::of::<podlab_api::core::PersistentVolumeClaim>();
        let claims = Collection { resource, namespace: Some("default".to_owned()) };
        self.client.raw().create(&claims, None, claim).await.map(drop)
    }
}

/// A small Pod; `more` is set over its spec.
pub fn pod(name: &str, more: Value) -> Object {
    let mut spec = json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": IMAGE, "command": ["pause"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}}]});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    Object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
}

/// Whether the Ready condition is True.
pub fn is_ready(pod: &Object) -> bool {
    let all = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    let is = |c: &Value, key: &str, text: &str| c.get(key).and_then(Value::as_str) == Some(text);
    all.into_iter().flatten().any(|c| is(c, "type", "Ready") && is(c, "status", "True"))
}
