//! Order, thresholds and messages of node-pressure eviction.
use std::sync::Arc;

use podlab_api::{
    Object,
    core::{Pod, Volume},
};
use serde_json::json;

use super::*;

fn t(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn seen(signal: Signal, available: i64, capacity: i64) -> Observations {
    [(signal, Observation { available, capacity })].into()
}

fn pod(name: &str, priority: i32, request: &str) -> Arc<Pod> {
    let tree = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"memory": request}}}]}});
    Arc::new(Object(tree).to_typed().unwrap())
}

fn uses(memory: u64) -> PodUsage {
    let c = ContainerUsage { name: "c".into(), memory: Some(memory), ..ContainerUsage::default() };
    PodUsage { memory: Some(memory), containers: vec![c], ..PodUsage::default() }
}

#[test]
fn thresholds_are_read_as_upstream_reads_them() {
    let none = BTreeMap::new();
    let all = thresholds(&map(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]), &none, &[].into(), &none);
    let all = all.unwrap();
    assert_eq!(
        all.iter().map(|t| t.signal).collect::<Vec<_>>(),
        [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::AllocatableMemoryAvailable]
    );
    assert_eq!(all[1].value.of(1000), 100);
    for (hard, soft) in [
        (map(&[("memory.free", "1Mi")]), none.clone()),
        (map(&[("memory.available", "-1Mi")]), none.clone()),
        (map(&[("memory.available", "101%")]), none.clone()),
        (map(&[("memory.available", "x")]), none.clone()),
        (none.clone(), map(&[("memory.available", "1Mi")])),
    ] {
        assert!(thresholds(&hard, &soft, &[].into(), &none).is_err(), "{hard:?} {soft:?}");
    }
    assert_eq!(thresholds(&map(&[("memory.available", "0%")]), &none, &[].into(), &none), Ok(vec![]));
}

#[test]
fn a_hard_threshold_acts_at_once_and_its_condition_is_held_for_five_minutes() {
    let all = thresholds(&map(&[("memory.available", "100")]), &[].into(), &[].into(), &[].into()).unwrap();
    let (s, act) = step(&State::default(), &all, TRANSITION, &seen(Signal::MemoryAvailable, 99, 1000), t(0));
    assert_eq!(act.len(), 1);
    assert!(s.conditions().contains(&Pressure::Memory));
    let calm = seen(Signal::MemoryAvailable, 500, 1000);
    let (s, act) = step(&s, &all, TRANSITION, &calm, t(299));
    assert!(act.is_empty() && s.conditions().contains(&Pressure::Memory));
    let (s, _) = step(&s, &all, TRANSITION, &calm, t(300));
    assert!(s.conditions().is_empty());
}

#[test]
fn a_soft_threshold_waits_for_its_grace_period_and_starts_over_when_the_pressure_ends() {
    let soft = map(&[("nodefs.available", "10%")]);
    let grace = [("nodefs.available".to_owned(), Duration::from_secs(30))].into();
    let all = thresholds(&[].into(), &soft, &grace, &[].into()).unwrap();
    let low = seen(Signal::NodefsAvailable, 9, 100);
    let (s, act) = step(&State::default(), &all, TRANSITION, &low, t(0));
    assert!(act.is_empty() && s.conditions().contains(&Pressure::Disk));
    let (s, act) = step(&s, &all, TRANSITION, &low, t(29));
    assert!(act.is_empty());
    let (s, _) = step(&s, &all, TRANSITION, &seen(Signal::NodefsAvailable, 11, 100), t(30));
    let (s, act) = step(&s, &all, TRANSITION, &low, t(40));
    assert!(act.is_empty(), "the period began anew");
    let (_, act) = step(&s, &all, TRANSITION, &low, t(70));
    assert_eq!((act.len(), grace_of(&act[0])), (1, 60));
}

fn grace_of(t: &Threshold) -> i64 {
    grace(t, 60)
}

#[test]
fn a_threshold_counts_until_the_minimum_reclaim_is_reached() {
    let reclaim = map(&[("memory.available", "50")]);
    let all = thresholds(&map(&[("memory.available", "100")]), &[].into(), &[].into(), &reclaim).unwrap();
    let at = |n| seen(Signal::MemoryAvailable, n, 1000);
    let (s, _) = step(&State::default(), &all, TRANSITION, &at(90), t(0));
    let (s, act) = step(&s, &all, TRANSITION, &at(149), t(10));
    assert_eq!(act.len(), 1);
    let (s, act) = step(&s, &all, TRANSITION, &at(150), t(20));
    assert!(act.is_empty());
    let (_, act) = step(&s, &all, TRANSITION, &at(149), t(30));
    assert!(act.is_empty(), "resolved once, the bound itself counts again");
}

#[test]
fn memory_ranks_by_excess_then_priority_then_usage_over_request() {
    let mut pods = vec![pod("within", 0, "100Mi"), pod("dear", 9, "0"), pod("small", 0, "0"), pod("large", 0, "10Mi")];
    let usage: BTreeMap<&str, PodUsage> =
        [("within", uses(90 << 20)), ("dear", uses(80 << 20)), ("small", uses(20 << 20)), ("large", uses(60 << 20))]
            .into();
    rank(&mut pods, Signal::MemoryAvailable, false, &|p| usage.get(p.metadata.name.as_deref().unwrap()));
    let order: Vec<_> = pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect();
    assert_eq!(order, ["large", "small", "dear", "within"]);
}

#[test]
fn pids_rank_by_priority_then_processes_and_disk_by_what_lies_on_the_starved_file_system() {
    let mut pods = vec![pod("dear", 9, "0"), pod("few", 0, "0"), pod("many", 0, "0")];
    let p = |processes, rootfs, volume| PodUsage {
        processes,
        containers: vec![ContainerUsage {
            name: "c".into(),
            rootfs: Files { bytes: rootfs, inodes: 1 },
            ..ContainerUsage::default()
        }],
        volumes: vec![("v".into(), Files { bytes: volume, inodes: 1 })],
        ..PodUsage::default()
    };
    let usage: BTreeMap<&str, PodUsage> = [("dear", p(99, 0, 0)), ("few", p(1, 100, 0)), ("many", p(50, 0, 90))].into();
    let order = |pods: &[Arc<Pod>]| pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect::<Vec<_>>();
    let of = |p: &Pod| usage.get(p.metadata.name.as_deref().unwrap());
    rank(&mut pods, Signal::PidAvailable, false, &of);
    assert_eq!(order(&pods), ["many", "few", "dear"]);
    rank(&mut pods, Signal::NodefsAvailable, false, &of);
    assert_eq!(order(&pods)[0], "few");
    rank(&mut pods, Signal::NodefsAvailable, true, &of);
    assert_eq!(order(&pods)[0], "many");
}

#[test]
fn the_message_names_threshold_and_offenders_in_upstreams_words() {
    let all = thresholds(&map(&[("memory.available", "100Mi")]), &[].into(), &[].into(), &[].into()).unwrap();
    let o = seen(Signal::MemoryAvailable, 50 << 20, 1 << 32);
    let (text, notes) = message("memory", &pod("p", 0, "100Mi"), Some(&uses(200 << 20)), &all, &o);
    assert_eq!(
        text,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 200Mi, \
         request is 100Mi, has larger consumption of memory. "
    );
    assert_eq!(notes["offending_containers"], "c");
    assert_eq!(notes["offending_containers_usage"], "200Mi");
    assert_eq!(notes["starved_resource"], "memory");
}

#[test]
fn numbers_print_with_the_largest_suffix_that_leaves_them_whole() {
    for (n, text) in [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1536, "1536"), (3 << 30, "3Gi")] {
        assert_eq!(binary_si(n), text);
    }
}

#[test]
fn local_storage_is_judged_volume_first_then_pod_then_container() {
    let mut p = (*pod("p", 0, "0")).clone();
    let usage = |volume, rootfs| PodUsage {
        volumes: vec![("v".into(), Files { bytes: volume, inodes: 1 })],
        containers: vec![ContainerUsage {
            name: "c".into(),
            rootfs: Files { bytes: rootfs, inodes: 1 },
            ..ContainerUsage::default()
        }],
        ..PodUsage::default()
    };
    assert_eq!(local_storage(&p, &usage(9 << 30, 9 << 30), false), None);
    let spec = p.spec.as_mut().unwrap();
    spec.volumes =
        Some(vec![serde_json::from_value::<Volume>(json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}})).unwrap()]);
    let text = local_storage(&p, &usage((1 << 20) + 1, 0), false).unwrap();
    assert_eq!(text, "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
    assert_eq!(local_storage(&p, &usage(1 << 20, 0), false), None);
    let c = &mut p.spec.as_mut().unwrap().containers[0];
    c.resources = serde_json::from_value(json!({"limits": {"ephemeral-storage": "2Mi"}})).unwrap();
    let text = local_storage(&p, &usage(1 << 20, (1 << 20) + 1), false).unwrap();
    assert_eq!(text, "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ");
}
