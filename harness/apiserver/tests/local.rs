//! The server without HTTP: what in-process callers may rely on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use podlab_api::{
    Object, Reason, ResourceRef, core,
    request::{DeleteOptions, ListOptions, PatchKind, WatchOptions, WatchType},
};
use podlab_apiserver::{ApiServer, ApiServerConfig, pki::Authority};
use podlab_clock::{Clock, Rng};
use podlab_store::{Durable, Store, StoreConfig};
use podlab_timeline::{Event, MemorySink, Recorder, Stage};
use serde_json::{Value, json};

struct World {
    server: Arc<ApiServer>,
    log: Arc<MemorySink>,
    pods: ResourceRef,
}

async fn world() -> World {
    let clock = Clock::real();
    let log = Arc::new(MemorySink::default());
    let store = Store::open(StoreConfig { durable: Durable::Off, history: 64, ..StoreConfig::default() }).unwrap();
    let config = ApiServerConfig::new(Arc::new(Authority::new().unwrap()));
    let recorder = Recorder::new(log.clone(), clock);
    let server = ApiServer::new(store, config, clock, Rng::seeded(1), recorder).await.unwrap();
    let accounts = ResourceRef::of::<core::ServiceAccount>();
    let account = Object(json!({"metadata": {"name": "default"}}));
    server.create(&accounts, Some("default"), None, account).await.unwrap();
    World { server, log, pods: ResourceRef::of::<core::Pod>() }
}

fn pod(name: &str) -> Object {
    Object(json!({"metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "x:1"}]}}))
}

impl World {
    async fn create(&self, object: Object) -> Arc<Object> {
        self.server.create(&self.pods, Some("default"), None, object).await.unwrap()
    }

    async fn bind(&self, name: &str, node: &str) {
        let binding = Object(json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}));
        self.server.create(&self.pods, Some("default"), Some((name, "binding")), binding).await.unwrap();
    }

    async fn set_ready(&self, name: &str) {
        let body = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = self.server.patch(&self.pods, Some("default"), name, Some("status"), PatchKind::Strategic, body);
        patch.await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_lives_and_goes_and_a_watcher_sees_each_step() {
    let w = world().await;
    let watch = w.server.watch(&w.pods, Some("default"), &WatchOptions::default()).unwrap();
    w.create(pod("a")).await;
    w.bind("a", "n").await;
    w.set_ready("a").await;
    let options = DeleteOptions::default();
    let marked = w.server.delete(&w.pods, Some("default"), "a", &options).await.unwrap();
    assert_eq!(marked.at(&["metadata", "deletionGracePeriodSeconds"]), Some(&json!(5)));
    assert_eq!(marked.at(&["metadata", "generation"]), Some(&json!(2)));
    let now = DeleteOptions { grace_period: Some(Duration::ZERO), uid: Some(marked.uid().into()), ..options };
    w.server.delete(&w.pods, Some("default"), "a", &now).await.unwrap();
    assert!(w.server.get(&w.pods, Some("default"), "a").unwrap_err().is_not_found());
    let seen: Vec<(WatchType, Value)> = watch
        .take(6)
        .map(|e| e.unwrap())
        .map(|e| (e.kind, e.object.at(&["metadata", "deletionGracePeriodSeconds"]).cloned().unwrap_or_default()))
        .collect()
        .await;
    let modified = WatchType::Modified;
    assert_eq!(
        seen,
        [
            (WatchType::Added, Value::Null),
            (modified, Value::Null),
            (modified, Value::Null),
            (modified, json!(5)),
            (modified, json!(0)),
            (WatchType::Deleted, json!(0)),
        ]
    );
    let stages: Vec<Stage> = w
        .log
        .entries()
        .into_iter()
        .filter_map(|e| match e.event {
            Event::Stage(stage) => Some(stage),
            _ => None,
        })
        .collect();
    assert_eq!(stages, [Stage::Accepted, Stage::Bound, Stage::StatusWritten]);
}

#[tokio::test]
async fn an_object_that_begins_or_ends_to_match_appears_and_disappears() {
    let w = world().await;
    let on_node = WatchOptions { field_selector: Some("spec.nodeName=n".into()), ..WatchOptions::default() };
    let mut watch = w.server.watch(&w.pods, None, &on_node).unwrap();
    let labelled = WatchOptions { label_selector: Some("app=a".into()), ..WatchOptions::default() };
    let mut by_label = w.server.watch(&w.pods, None, &labelled).unwrap();
    w.create(pod("a")).await;
    w.bind("a", "n").await;
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!((first.kind, first.object.name()), (WatchType::Added, "a"));
    let body = json!({"metadata": {"labels": {"app": "b"}}});
    w.server.patch(&w.pods, Some("default"), "a", None, PatchKind::Merge, body).await.unwrap();
    let kinds: Vec<WatchType> = by_label.by_ref().take(3).map(|e| e.unwrap().kind).collect().await;
    assert_eq!(kinds, [WatchType::Added, WatchType::Modified, WatchType::Deleted]);
}

#[tokio::test]
async fn a_stale_update_conflicts_and_an_old_watch_is_expired() {
    let w = world().await;
    let first = w.create(pod("a")).await;
    let mut newer = (*first).clone();
    newer.meta_mut().insert("labels".into(), json!({"x": "1"}));
    w.server.update(&w.pods, Some("default"), "a", None, newer.clone()).await.unwrap();
    let stale = w.server.update(&w.pods, Some("default"), "a", None, newer).await.unwrap_err();
    assert!(stale.is_conflict(), "{stale}");
    for n in 0..70 {
        let body = json!({"metadata": {"annotations": {"n": n.to_string()}}});
        w.server.patch(&w.pods, Some("default"), "a", None, PatchKind::Merge, body).await.unwrap();
    }
    let old = WatchOptions { resource_version: Some(first.resource_version()), ..WatchOptions::default() };
    assert!(w.server.watch(&w.pods, None, &old).err().unwrap().is_expired());
}

#[tokio::test]
async fn generated_names_are_unique_and_missing_or_closing_namespaces_refuse() {
    let w = world().await;
    let generated =
        Object(json!({"metadata": {"generateName": "web-"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}));
    let (a, b) = (w.create(generated.clone()).await, w.create(generated.clone()).await);
    assert!(a.name().starts_with("web-") && a.name() != b.name());
    let missing = w.server.create(&w.pods, Some("nope"), None, generated.clone()).await.unwrap_err();
    assert_eq!(missing.message, "namespaces \"nope\" not found");
    let namespaces = ResourceRef::of::<core::Namespace>();
    w.server.create(&namespaces, None, None, Object(json!({"metadata": {"name": "x"}}))).await.unwrap();
    w.server.delete(&namespaces, None, "x", &DeleteOptions::default()).await.unwrap();
    let closing = w.server.create(&w.pods, Some("x"), None, pod("a")).await.unwrap_err();
    assert_eq!(closing.reason, Reason::Forbidden);
    assert!(closing.message.contains("because it is being terminated"), "{closing}");
    let mut namespace = (*w.server.get(&namespaces, None, "x").unwrap()).clone();
    namespace.0["spec"] = json!({"finalizers": []});
    w.server.update(&namespaces, None, "x", Some("finalize"), namespace).await.unwrap();
    assert!(w.server.get(&namespaces, None, "x").unwrap_err().is_not_found());
}

#[tokio::test]
async fn services_get_distinct_addresses_and_keep_what_they_ask_for() {
    let w = world().await;
    let services = ResourceRef::of::<core::Service>();
    let service = |name: &str, ip: &str| {
        let mut o = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        if !ip.is_empty() {
            o["spec"]["clusterIP"] = ip.into();
        }
        Object(o)
    };
    let create = |o: Object| w.server.create(&services, Some("kube-system"), None, o);
    let dns = create(service("kube-dns", "10.96.0.10")).await.unwrap();
    assert_eq!(dns.str_at(&["spec", "clusterIP"]), Some("10.96.0.10"));
    let taken = create(service("other", "10.96.0.10")).await.unwrap_err();
    assert_eq!(taken.reason, Reason::Invalid);
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..50 {
        let made = create(service(&format!("s{n}"), "")).await.unwrap();
        assert!(seen.insert(made.str_at(&["spec", "clusterIP"]).unwrap().to_owned()));
    }
    w.server.delete(&services, Some("kube-system"), "kube-dns", &DeleteOptions::default()).await.unwrap();
    create(service("again", "10.96.0.10")).await.unwrap();
    let (all, _) = w.server.list(&services, Some("kube-system"), &ListOptions::default()).unwrap();
    assert_eq!(all.len(), 51);
}

#[tokio::test]
async fn replacing_all_tolerations_keeps_those_every_pod_has() {
    let w = world().await;
    w.create(pod("a")).await;
    let own = json!({"key": "mine", "operator": "Exists", "effect": "NoSchedule"});
    let body = json!({"spec": {"tolerations": [own]}});
    let patched = w.server.patch(&w.pods, Some("default"), "a", None, PatchKind::Merge, body).await.unwrap();
    let keys: Vec<&str> =
        patched.0["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["mine", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    assert_eq!(patched.0["metadata"]["generation"], 2);
}
