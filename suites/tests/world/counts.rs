//! Counts of one Pod's life that do not wobble, held exactly against what was recorded: calls at each seam, writes to the API,
//! watch events and their bytes. Most regressions of a component show here first, without any noise. A change that is meant
//! is recorded with `PODLAB_BLESS=1 cargo test -p podlab-suites --test world counts`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use futures::StreamExt;
use podlab_api::{Object, ResourceRef, core::Pod};
use podlab_client::{Client, Collection, ListOptions, WatchOptions};
use podlab_clock::Clock;
use podlab_measure::{Subject, small_pod};
use podlab_testbed::{
    ClusterSpec,
    world::{self, Disturbance, VirtualCluster, WorldSpec},
};
use podlab_timeline::{Entry, Event};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);
/// What comes after the last thing that is waited for, such as events, is over by then.
const SETTLE: Duration = Duration::from_secs(1);

type Counts = BTreeMap<String, u64>;

fn kinds() -> BTreeMap<&'static str, Object> {
    let mut with_init = small_pod("counted");
    with_init.0["spec"]["initContainers"] =
        json!([{"name": "i", "image": "registry.test/testimage:1", "command": ["exit", "0"]}]);
    let mut with_volume = small_pod("counted");
    with_volume.0["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    with_volume.0["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    BTreeMap::from([("plain", small_pod("counted")), ("with-init", with_init), ("with-empty-dir", with_volume)])
}

async fn revision(client: &Client, pods: &Collection) -> u64 {
    client.raw().list(pods, &ListOptions::default()).await.expect("the API answers").resource_version
}

fn calls(entries: &[Entry], out: &mut Counts) {
    for entry in entries {
        if let Event::Call { method, .. } = &entry.event {
            let lane = serde_json::to_value(entry.lane).expect("a lane is a word");
            *out.entry(format!("calls/{}.{method}", lane.as_str().unwrap_or_default())).or_default() += 1;
        }
    }
}

/// The life of one Pod on a node that has had one before.
async fn life(pod: Object) -> Counts {
    let cluster = ClusterSpec { seed: 1, ..ClusterSpec::named("virtual") };
    let spec = WorldSpec { cluster, disturbance: Disturbance::default() };
    let cluster = VirtualCluster::boot(spec).await.expect("it boots");
    cluster.wait_ready(WITHIN).await.expect("it becomes ready");
    let (client, clock): (Client, Clock) = (cluster.client(), cluster.clock());
    let mut subject = Subject::open("virtual", client.clone(), "default", clock, WITHIN).await.expect("a watch");
    subject.start("warm-up", small_pod("warm-up")).await.expect("it starts");
    subject.remove(&["warm-up".to_owned()]).await.expect("it goes");
    clock.sleep(SETTLE).await;

    let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some("default".into()) };
    let before = revision(&client, &pods).await;
    let known = cluster.entries().len();
    let options = WatchOptions { resource_version: Some(before), ..WatchOptions::default() };
    let mut watch = client.raw().watch(&pods, &options).await.expect("a watch");
    subject.start("counted", pod).await.expect("it starts");
    clock.sleep(SETTLE).await;
    let ready = revision(&client, &pods).await;
    subject.remove(&["counted".to_owned()]).await.expect("it goes");
    clock.sleep(SETTLE).await;
    let gone = revision(&client, &pods).await;

    let mut out = Counts::new();
    out.insert("writes/until-ready".into(), ready - before);
    out.insert("writes/until-gone".into(), gone - ready);
    let (mut events, mut bytes) = (0, 0);
    while let Some(Some(Ok(event))) = clock.timeout(SETTLE, watch.next()).await {
        events += 1;
        bytes += serde_json::to_vec(&event.object.0).map_or(0, |b| b.len() as u64);
    }
    out.insert("watch/events".into(), events);
    out.insert("watch/bytes".into(), bytes);
    calls(&cluster.entries()[known..], &mut out);
    cluster.end().await;
    out
}

#[test]
fn counts_of_one_pods_life_are_those_on_record() {
    let all: BTreeMap<&str, Counts> =
        kinds().into_iter().map(|(kind, pod)| (kind, world::run(|| life(pod)).expect("a runtime"))).collect();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../reports/baselines/counts.json");
    let now = serde_json::to_value(&all).expect("numbers");
    if std::env::var_os("PODLAB_BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&now).expect("numbers") + "\n")
            .expect("the record is written");
    }
    let record: Value = serde_json::from_slice(&std::fs::read(&path).expect("there is a record")).expect("JSON");
    let differences = differences(&record, &now);
    assert!(differences.is_empty(), "counts are not those on record:\n{}", differences.join("\n"));
}

#[test]
fn counts_do_not_wobble() {
    let two = || world::run(|| life(small_pod("counted"))).expect("a runtime");
    assert_eq!(two(), two());
}

fn differences(record: &Value, now: &Value) -> Vec<String> {
    let kinds = |v: &Value| v.as_object().cloned().unwrap_or_default();
    let mut out = Vec::new();
    let (old, new) = (kinds(record), kinds(now));
    for kind in old.keys().chain(new.keys()).collect::<std::collections::BTreeSet<_>>() {
        let (a, b) = (kinds(&record[kind]), kinds(&now[kind]));
        for name in a.keys().chain(b.keys()).collect::<std::collections::BTreeSet<_>>() {
            let n = |v: &serde_json::Map<String, Value>| v.get(name).and_then(Value::as_u64).unwrap_or(0);
            if n(&a) != n(&b) {
                out.push(format!("{kind} {name}: {} on record, {} now", n(&a), n(&b)));
            }
        }
    }
    out
}

#[test]
fn one_call_more_than_on_record_is_told_by_name() {
    let record = json!({"plain": {"calls/cri.StartContainer": 1, "writes/until-ready": 4}});
    let now = json!({"plain": {"calls/cri.StartContainer": 2, "writes/until-ready": 4, "calls/cni.ADD": 1}});
    assert_eq!(
        differences(&record, &now),
        ["plain calls/cni.ADD: 0 on record, 1 now", "plain calls/cri.StartContainer: 1 on record, 2 now"]
    );
}
