//! Loads, measures and gates that could show nothing are refused.

use std::path::Path;

use super::error;
use crate::{Rate, parse};

const LOADED: &str = "apiVersion: podlab/v1
kind: Scenario
intent: A hundred Pods one after the other are Ready soon.
load:
  arrivals: {constant: {rate: 20/s}}
  count: 110
  warmup: 10
  lifetime: 0s
  template: |
    apiVersion: v1
    kind: Pod
    spec: {containers: [{name: c, image: 'registry.test/testimage:1'}]}
measure:
- {id: ready, of: {startup: {}}}
- {id: parts, of: {phases: {}}}
gate:
- {of: ready.p90, atMost: 1s}
- {of: ready.lost, countAtMost: 0}
";

#[test]
fn a_load_with_gates_needs_no_other_demand() {
    let scenario = parse(LOADED, Path::new("x.yaml")).unwrap();
    assert_eq!((scenario.gate.len(), scenario.then.len()), (2, 0));
    let without = LOADED.split("gate:").next().unwrap();
    assert!(error(without).contains("then must demand something"));
}

#[test]
fn every_way_to_measure_nothing_is_refused_at_its_place() {
    for (from, to, words) in [
        ("count: 110", "count: 10", "load.count: it must be more than the warm-up"),
        ("rate: 20/s", "rate: 0/s", "\"0/s\" is not a rate"),
        ("rate: 20/s", "rate: 20", "\"20\" is not a rate"),
        ("kind: Pod", "kind: Job", "load.template: it must be a Pod"),
        ("[{name: c, image: 'registry.test/testimage:1'}]", "[]", "the Pod has no containers"),
        ("{constant: {rate: 20/s}}", "{closed: {concurrency: 0}}", "concurrency must be 1 or more"),
        ("{constant: {rate: 20/s}}", "{burst: {size: 0, every: 1s}}", "size must be 1 or more"),
        ("{constant: {rate: 20/s}}", "{trace: {offsets: [1s, 0s]}}", "offsets must not go back in time"),
        ("{constant: {rate: 20/s}}", "{trace: {offsets: [0s, 1s]}}", "fewer offsets than the load has Pods"),
        ("{constant: {rate: 20/s}}", "{search: {lo: 9/s, hi: 5/s, hold: 1s}}", "lo below hi"),
        ("{constant: {rate: 20/s}}", "{constnt: {rate: 20/s}}", "did you mean \"constant\""),
        ("ready.p90", "redy.p90", "there is no measure \"redy\"; did you mean \"ready\"?"),
        ("ready.p90", "ready.p91", "there is no \"p91\" here"),
        ("ready.p90", "ready", "is not <measure>.<statistic>"),
        ("ready.p90", "ready.p99", "a 99th percentile needs 300 measured Pods, and there are 100"),
        ("ready.p90, atMost: 1s", "ready.p90", "exactly one of atMost"),
        ("ready.p90, atMost: 1s", "ready.lost, atMost: 1s", "there is no \"lost\" here"),
        ("ready.p90, atMost: 1s", "capacity.rate, rateAtLeast: 5/s", "capacity is measured by a search"),
        ("id: parts", "id: ready", "there are two measures \"ready\""),
        ("phases: {}", "deletion: {}, phases: {}", "one of them is enough"),
        ("phases: {}", "phases: {unattributedAtMost: 200}", "a share in percent"),
        ("lifetime: 0s\n", "lifetim: 0s\n", "did you mean \"lifetime\""),
    ] {
        let text = error(&LOADED.replacen(from, to, 1));
        assert!(text.contains(words), "{to}: {text}");
    }
    let stays = LOADED.replace("  lifetime: 0s\n", "").replace("phases: {}", "deletion: {}");
    assert!(error(&stays).contains("the Pods of the load stay"));
    let (head, tail) = (LOADED.split("load:").next().unwrap(), LOADED.split("measure:").nth(1).unwrap());
    assert!(error(&format!("{head}measure:{tail}")).contains("need a load"));
}

#[test]
fn rates_are_per_second() {
    assert_eq!(("90/m".parse(), "2.5/s".parse()), (Ok(Rate(1.5)), Ok(Rate(2.5))));
    for bad in ["", "/s", "5/h", "-1/s", "nan/s", "inf/s", "1e9/s", "5"] {
        assert!(bad.parse::<Rate>().is_err(), "{bad}");
    }
}
