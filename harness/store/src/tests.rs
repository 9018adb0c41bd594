//! The promises of the store, each as a rule.

use std::sync::Arc;

use podlab_api::Object;
use serde_json::json;

use crate::{Durable, EventKind, Store, StoreConfig, StoreError};

fn object(value: u64) -> Object {
    Object(json!({"metadata": {"name": "x"}, "value": value}))
}

fn value(object: &Object) -> u64 {
    object.0["value"].as_u64().unwrap()
}

fn memory(history: usize, watch_buffer: usize) -> Arc<Store> {
    Store::open(StoreConfig { durable: Durable::Off, history, watch_buffer, ..StoreConfig::default() }).unwrap()
}

fn on_disk(dir: &std::path::Path, durable: Durable, rotate_bytes: u64) -> Arc<Store> {
    Store::open(StoreConfig { dir: Some(dir.into()), durable, rotate_bytes, ..StoreConfig::default() }).unwrap()
}

#[tokio::test]
async fn a_write_needs_the_revision_it_was_made_from() {
    let store = memory(10, 10);
    let first = store.create("/g/p/ns/a", object(1)).await.unwrap();
    assert_eq!(first.object.resource_version(), first.revision);
    assert!(matches!(store.create("/g/p/ns/a", object(2)).await, Err(StoreError::Exists { .. })));
    let second = store.update("/g/p/ns/a", first.revision, object(2)).await.unwrap();
    assert!(matches!(store.update("/g/p/ns/a", first.revision, object(3)).await, Err(StoreError::Conflict { .. })));
    assert!(matches!(store.delete("/g/p/ns/a", Some(first.revision)).await, Err(StoreError::Conflict { .. })));
    let gone = store.delete("/g/p/ns/a", Some(second.revision)).await.unwrap();
    assert_eq!((value(&gone.object), gone.revision), (2, second.revision + 1));
    assert!(matches!(store.delete("/g/p/ns/a", None).await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_watch_gives_history_then_the_present_without_gap_or_repeat() {
    let store = memory(100, 100);
    let mut live = store.watch("/g/p/", None).unwrap();
    for n in 0..3 {
        store.create(&format!("/g/p/ns/{n}"), object(n)).await.unwrap();
    }
    let mut late = store.watch("/g/p/ns/", Some(1)).unwrap();
    store.create("/g/other/ns/x", object(9)).await.unwrap();
    store.delete("/g/p/ns/0", None).await.unwrap();
    late.request_progress();
    let mut seen = Vec::new();
    loop {
        let event = late.next().await.unwrap().unwrap();
        seen.push((event.revision, event.kind));
        if event.kind == EventKind::Progress {
            break;
        }
    }
    assert_eq!(seen, [(2, EventKind::Added), (3, EventKind::Added), (5, EventKind::Deleted), (5, EventKind::Progress)]);
    assert_eq!(live.next().await.unwrap().unwrap().revision, 1);
}

#[tokio::test]
async fn a_list_at_an_old_revision_is_the_state_of_then() {
    let store = memory(100, 10);
    for (key, n) in [("/g/p/ns/a", 1), ("/g/p/ns/b", 2)] {
        store.create(key, object(n)).await.unwrap();
    }
    store.update("/g/p/ns/a", 1, object(10)).await.unwrap();
    store.delete("/g/p/ns/b", None).await.unwrap();
    store.create("/g/p/ns/c", object(3)).await.unwrap();
    let at = |r| store.list("/g/p/", r).unwrap().items.iter().map(|(_, s)| value(&s.object)).collect::<Vec<_>>();
    assert_eq!(at(Some(2)), [1, 2]);
    assert_eq!(at(Some(3)), [10, 2]);
    assert_eq!(at(None), [10, 3]);
}

#[tokio::test]
async fn what_fell_out_of_history_is_expired_and_the_future_is_refused() {
    let store = memory(2, 10);
    for n in 0..5 {
        store.create(&format!("/g/p/ns/{n}"), object(n)).await.unwrap();
    }
    assert!(matches!(store.watch("/g/p/", Some(2)), Err(StoreError::Expired { oldest: 3, .. })));
    assert!(matches!(store.list("/g/p/", Some(1)), Err(StoreError::Expired { .. })));
    assert!(store.watch("/g/p/", Some(3)).is_ok());
    assert!(matches!(store.watch("/g/p/", Some(9)), Err(StoreError::Future { current: 5, .. })));
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_closed_with_an_error_and_stops_nobody() {
    let store = memory(100, 2);
    let mut slow = store.watch("/g/p/", None).unwrap();
    for n in 0..5 {
        store.create(&format!("/g/p/ns/{n}"), object(n)).await.unwrap();
    }
    assert!(slow.next().await.unwrap().is_ok());
    assert!(slow.next().await.unwrap().is_ok());
    assert!(matches!(slow.next().await, Some(Err(StoreError::Slow))));
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn acknowledged_writes_are_there_after_reopening_and_a_torn_tail_is_cut() {
    for durable in [Durable::Batch, Durable::Always] {
        let dir = tempfile::tempdir().unwrap();
        let store = on_disk(dir.path(), durable, 1 << 20);
        let a = store.create("/g/p/ns/a", object(1)).await.unwrap();
        store.update("/g/p/ns/a", a.revision, object(2)).await.unwrap();
        store.create("/g/p/ns/b", object(3)).await.unwrap();
        store.delete("/g/p/ns/b", None).await.unwrap();
        drop(store);
        let path = dir.path().join("store.wal");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[200, 0, 0, 0, 1, 2, 3]);
        std::fs::write(&path, &bytes).unwrap();
        let store = on_disk(dir.path(), durable, 1 << 20);
        assert_eq!(store.revision(), 4);
        assert_eq!(value(&store.get("/g/p/ns/a").unwrap().object), 2);
        assert!(store.get("/g/p/ns/b").is_none());
        let mut watch = store.watch("/g/p/", Some(2)).unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().kind, EventKind::Added);
        assert_eq!(watch.next().await.unwrap().unwrap().kind, EventKind::Deleted);
        store.create("/g/p/ns/c", object(4)).await.unwrap();
        drop(store);
        assert_eq!(on_disk(dir.path(), durable, 1 << 20).revision(), 5);
    }
}

#[tokio::test]
async fn a_grown_log_is_rewritten_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = on_disk(dir.path(), Durable::Batch, 2000);
    let mut at = store.create("/g/p/ns/a", object(0)).await.unwrap().revision;
    for n in 1..200 {
        at = store.update("/g/p/ns/a", at, object(n)).await.unwrap().revision;
    }
    drop(store);
    assert!(std::fs::metadata(dir.path().join("store.wal")).unwrap().len() < 3000);
    let store = on_disk(dir.path(), Durable::Batch, 2000);
    assert_eq!((store.revision(), value(&store.get("/g/p/ns/a").unwrap().object)), (200, 199));
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _store = on_disk(dir.path(), Durable::Batch, 1 << 20);
    let second = Store::open(StoreConfig { dir: Some(dir.path().into()), ..StoreConfig::default() });
    assert!(matches!(second, Err(StoreError::Open { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_compare_and_swap_loses_no_increment() {
    let dir = tempfile::tempdir().unwrap();
    let store = on_disk(dir.path(), Durable::Always, 1 << 20);
    store.create("/g/p/ns/n", object(0)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            for _ in 0..25 {
                loop {
                    let now = store.get("/g/p/ns/n").unwrap();
                    if store.update("/g/p/ns/n", now.revision, object(value(&now.object) + 1)).await.is_ok() {
                        break;
                    }
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    assert_eq!(value(&store.get("/g/p/ns/n").unwrap().object), 100);
}
