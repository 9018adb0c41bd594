//! One cluster that is measured through its API: creates a Pod, sees it Ready by watch, deletes it and sees it gone.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, future::try_join_all};
use podlab_api::{ApiError, Object, ResourceRef, core::Pod};
use podlab_client::{
    Client, Collection, DeleteOptions, ListOptions, Target, WatchEvent, WatchOptions, WatchStream, WatchType,
};
use podlab_clock::{Clock, Mono};
use serde_json::{Value, json};

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The API.
    #[error("{doing}")]
    Api {
        /// What was being done.
        doing: String,
        /// Why not.
        #[source]
        source: ApiError,
    },
    /// A watch that ended.
    #[error("the watch of cluster {0} has ended")]
    WatchEnded(String),
    /// A Pod that did not arrive: it is lost, and with it the measurement.
    #[error("{pod} on {cluster} was not {wanted} within {within:?}")]
    Lost {
        /// Which.
        pod: String,
        /// Where.
        cluster: String,
        /// `Ready` or `gone`.
        wanted: &'static str,
        /// How long was waited.
        within: Duration,
    },
}

/// One Pod that started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Just before the create request was sent.
    pub asked: Mono,
    /// When the watch showed it Ready.
    pub seen: Mono,
}

impl Start {
    /// From the request until a watcher saw the Pod Ready.
    pub fn total(&self) -> Duration {
        self.seen.since(self.asked)
    }
}

/// A cluster under measurement. Holds one watch open for as long as it lives, so that no start pays for one.
pub struct Subject {
    name: String,
    client: Client,
    pods: Collection,
    watch: WatchStream,
    clock: Clock,
    within: Duration,
}

impl Subject {
    /// Opens a watch on the Pods of `namespace`. A Pod that takes longer than `within` to be Ready or gone is lost.
    ///
    /// # Errors
    /// [`MeasureError::Api`].
    pub async fn open(
        name: &str,
        client: Client,
        namespace: &str,
        clock: Clock,
        within: Duration,
    ) -> Result<Self, MeasureError> {
        let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some(namespace.to_owned()) };
        let api = |doing: &str| {
            let doing = format!("{doing} of cluster {name}");
            move |source| MeasureError::Api { doing, source }
        };
        let list = client.raw().list(&pods, &ListOptions::default()).await.map_err(api("list the Pods"))?;
        let options = WatchOptions { resource_version: Some(list.resource_version), ..WatchOptions::default() };
        let watch = client.raw().watch(&pods, &options).await.map_err(api("watch the Pods"))?;
        Ok(Self { name: name.to_owned(), client, pods, watch, clock, within })
    }

    async fn next(&mut self) -> Result<WatchEvent, MeasureError> {
        match self.watch.next().await {
            Some(Ok(event)) => Ok(event),
            Some(Err(source)) => Err(MeasureError::Api { doing: format!("watch the Pods of {}", self.name), source }),
            None => Err(MeasureError::WatchEnded(self.name.clone())),
        }
    }

    /// Creates a Pod and waits until a watch shows it Ready. Dropping it midway leaves the Pod.
    ///
    /// # Errors
    /// [`MeasureError`]; `Lost` when it is not Ready in time.
    pub async fn start(&mut self, name: &str, pod: Object) -> Result<Start, MeasureError> {
        let asked = self.clock.now();
        let (client, pods, clock, within) = (self.client.clone(), self.pods.clone(), self.clock, self.within);
        let ready = async {
            loop {
                let event = self.next().await?;
                if event.object.name() == name && is_ready(&event.object) {
                    return Ok((event.object.uid().to_owned(), clock.now()));
                }
            }
        };
        let ready = clock.timeout(within, ready);
        let create = client.raw().create(&pods, None, pod);
        let (created, ready) = futures::join!(create, ready);
        created.map_err(|source| MeasureError::Api { doing: format!("create Pod {name}"), source })?;
        let (uid, seen) = ready.unwrap_or_else(|| Err(self.lost(name, "Ready")))?;
        Ok(Start { name: name.to_owned(), uid, asked, seen })
    }

    fn lost(&self, pod: &str, wanted: &'static str) -> MeasureError {
        MeasureError::Lost { pod: pod.to_owned(), cluster: self.name.clone(), wanted, within: self.within }
    }

    /// Deletes Pods, in order of their kind, and waits until a watch shows all of them gone.
    ///
    /// # Errors
    /// [`MeasureError`].
    pub async fn remove(&mut self, names: &[String]) -> Result<(), MeasureError> {
        let (client, pods, clock, within) = (self.client.clone(), self.pods.clone(), self.clock, self.within);
        let options = DeleteOptions::default();
        let one = |name: &String| {
            let target = Target { collection: pods.clone(), name: name.clone(), subresource: None };
            let (client, options) = (&client, &options);
            async move { client.raw().delete(&target, options).await }
        };
        try_join_all(names.iter().map(one))
            .await
            .map_err(|source| MeasureError::Api { doing: "delete Pods".into(), source })?;
        let mut left: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let gone = async {
            while !left.is_empty() {
                let event = self.next().await?;
                if event.kind == WatchType::Deleted {
                    left.remove(event.object.name());
                }
            }
            Ok(())
        };
        let done = clock.timeout(within, gone).await;
        done.unwrap_or_else(|| Err(self.lost(&names.join(", "), "gone")))
    }
}

/// Whether the Ready condition is True.
fn is_ready(pod: &Object) -> bool {
    condition(pod, "Ready") == Some("True")
}

/// The status of a condition.
pub(crate) fn condition<'a>(pod: &'a Object, kind: &str) -> Option<&'a str> {
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    let one = conditions.into_iter().flatten().find(|c| c.get("type").and_then(Value::as_str) == Some(kind));
    one.and_then(|c| c.get("status")?.as_str())
}

/// A Pod of one small container whose image every node has, with limits and with requests of next to nothing.
pub fn small_pod(name: &str) -> Object {
    let resources = json!({"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    let container =
        json!({"name": "c", "image": "registry.test/testimage:1", "command": ["pause"], "resources": resources});
    Object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}))
}
