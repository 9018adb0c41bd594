//! A load counts everything that was to arrive: what is Ready, what is lost, what was missed.

use std::time::Duration;

use podlab_clock::Rng;
use podlab_measure::{Arrivals, Load, LoadReport, Progress, StopWhen, deletion, drive, indicator, small_pod, split};
use podlab_testbed::{
    ClusterSpec,
    world::{self, Disturbance, VirtualCluster, WorldSpec},
};
use podlab_timeline::Entry;
use serde_json::Value;

const WITHIN: Duration = Duration::from_secs(60);

fn load(arrivals: Arrivals, count: usize) -> Load {
    Load {
        arrivals,
        count,
        warmup: 0,
        template: small_pod("").0,
        prefix: "load".into(),
        within: Duration::from_secs(30),
        at_most: 1000,
        lifetime: None,
        stop_when: StopWhen::default(),
    }
}

fn missing_image(mut load: Load) -> Load {
    load.template["spec"]["containers"][0]["image"] = "registry.test/nowhere:1".into();
    load
}

fn played(load: &Load) -> (LoadReport, Vec<Entry>, usize) {
    let run = || async {
        let cluster = ClusterSpec { seed: 1, ..ClusterSpec::named("virtual") };
        let spec = WorldSpec { cluster, disturbance: Disturbance::default() };
        let cluster = VirtualCluster::boot(spec).await.expect("it boots");
        cluster.wait_ready(WITHIN).await.expect("it becomes ready");
        let mut most = 0;
        let mut look = |p: Progress| most = most.max(p.waiting);
        let (client, clock) = (cluster.client(), cluster.clock());
        let report = drive(client, "default", load, clock, &Rng::seeded(1), &mut look).await.expect("it is driven");
        let entries = cluster.entries();
        cluster.end().await;
        (report, entries, most)
    };
    world::run(run).expect("a runtime")
}

#[test]
fn pods_that_never_become_ready_are_lost_and_counted() {
    let (report, ..) = played(&missing_image(load(Arrivals::Constant { rate: 1.0 }, 5)));
    assert_eq!((report.pods.len(), report.lost(), report.missed), (5, 5, 0));
    let figures = podlab_measure::startup(&report, |p| p.asked, |p| p.ready);
    assert_eq!((figures.times.len(), figures.lost), (0, 5));
}

#[test]
fn arrivals_beyond_what_may_be_on_its_way_are_missed_and_counted() {
    let all = Load { at_most: 2, ..load(Arrivals::Burst { size: 6, every: Duration::from_secs(60) }, 12) };
    let (report, _, most) = played(&all);
    assert_eq!((report.pods.len(), report.missed, report.lost(), most), (4, 8, 0, 2));
}

#[test]
fn a_load_stops_when_too_many_are_lost() {
    let stop_when = StopWhen { lost: Some(3), missed: None };
    let all = Load { stop_when, ..missing_image(load(Arrivals::Constant { rate: 0.1 }, 50)) };
    let (report, ..) = played(&all);
    assert_eq!(report.stopped.as_deref(), Some("3 Pods were lost"));
    assert!(report.pods.len() < 10, "{}", report.pods.len());
}

#[test]
fn a_closed_load_never_has_more_on_their_way_than_it_says() {
    let (report, _, most) = played(&load(Arrivals::Closed { concurrency: 3 }, 20));
    assert_eq!((report.pods.len(), report.lost(), most), (20, 0, 3));
}

#[test]
fn a_load_that_churns_leaves_nothing_and_measures_every_end() {
    let all = Load { lifetime: Some(Duration::from_secs(1)), ..load(Arrivals::Poisson { rate: 2.0 }, 30) };
    let (report, entries, _) = played(&all);
    assert_eq!(report.pods.iter().filter(|p| p.gone.is_some()).count(), 30);
    let gone = deletion(&report);
    assert_eq!((gone.times.len(), gone.lost), (30, 0));
    let split = split(&report, &entries, "default");
    assert_eq!((split.total.len(), split.lost, split.off_by), (30, 0, Duration::ZERO));
    assert!(split.unattributed < 1e-9);
    let sli = indicator(&report, &entries, &all.template);
    assert_eq!((sli.times.len(), sli.lost, sli.excluded), (30, 0, 0));
}

#[test]
fn pods_that_keep_state_do_not_count_for_the_indicator() {
    let mut all = load(Arrivals::Constant { rate: 1.0 }, 3);
    let volume: Value = serde_json::json!([{"name": "v", "hostPath": {"path": "/tmp"}}]);
    all.template["spec"]["volumes"] = volume;
    let (report, entries, _) = played(&all);
    let sli = indicator(&report, &entries, &all.template);
    assert_eq!((sli.times.len(), sli.excluded), (0, 3));
}
