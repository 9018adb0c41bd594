//! The virtual world itself: the same seed is the same run to the byte, other seeds are other interleavings of the same
//! behaviour, and a search finds what was put in for it to find.

mod clockwork;
mod counts;
mod loads;
mod table;

use std::{collections::BTreeSet, path::PathBuf, sync::Mutex};

use podlab_mutant::Mutant;
use podlab_runner::{
    Outcome, Played, VirtualOptions,
    explore::Subject,
    play_virtual,
    suite::{self, Ready, World},
};
use podlab_testbed::world::Choice;

fn scenarios() -> Vec<Ready> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let all = suite::read(&root, "").unwrap_or_else(|errors| panic!("{errors:?}"));
    all.into_iter().filter(|r| r.worlds(Some(World::Virtual)) == [World::Virtual]).collect()
}

fn named(name: &str) -> Ready {
    scenarios().into_iter().find(|r| r.name == name).unwrap_or_else(|| panic!("there is no scenario {name}"))
}

fn played(r: &Ready, seed: u64) -> Played {
    let played = play_virtual(&r.name, &r.path, &r.scenario, &VirtualOptions { seed, ..VirtualOptions::default() });
    assert_eq!(played.trial.outcome, Outcome::Passed, "{} with seed {seed}", r.name);
    played
}

/// The normal forms of all Pods.
fn normal(p: &Played) -> Vec<String> {
    let names = [("node-1".to_owned(), "<node>".to_owned()), ("node-2".to_owned(), "<node>".to_owned())];
    p.trial.timelines.iter().map(|(k, t)| format!("{}\n{}", k.name, t.normal_form(&names))).collect()
}

/// How often each scenario is played with one seed: twice, or as often as `PODLAB_REPLAYS` says. Nightly says ten.
fn replays() -> usize {
    std::env::var("PODLAB_REPLAYS").ok().and_then(|n| n.parse().ok()).unwrap_or(2).max(2)
}

/// The first line in which two logs differ.
fn difference(a: &[u8], b: &[u8]) -> String {
    let (a, b) = (String::from_utf8_lossy(a), String::from_utf8_lossy(b));
    let (mut a, mut b) = (a.lines(), b.lines());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return "nothing".into(),
            (x, y) if x != y => return format!("{} against {}", x.unwrap_or("the end"), y.unwrap_or("the end")),
            _ => {}
        }
    }
}

#[test]
fn every_replay_of_a_seed_is_one_run_to_the_byte() {
    let (next, wrong) = (Mutex::new(scenarios().into_iter()), Mutex::new(Vec::new()));
    let judge = || {
        loop {
            let Some(r) = next.lock().unwrap().next() else { return };
            // Whether a run passes is not asked here: one that fails has to fail the same way each time.
            let how = VirtualOptions { seed: 11, ..VirtualOptions::default() };
            let run = || suite::log_bytes(&play_virtual(&r.name, &r.path, &r.scenario, &how).entries);
            let first = run();
            for n in 1..replays() {
                let again = run();
                if again != first {
                    wrong.lock().unwrap().push(format!("{}, replay {n}: {}", r.name, difference(&first, &again)));
                    break;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(judge);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_scenario_of_both_worlds_keeps_a_timeline_to_compare_them_by() {
    let both = scenarios().into_iter().filter(|r| r.worlds(None).len() == 2);
    // A load is many Pods that get in each other's way: it is judged by its figures.
    let kept = |r: &Ready| r.scenario.snapshot.is_some() || r.scenario.load.is_some();
    let loose: Vec<String> = both.filter(|r| !kept(r)).map(|r| r.name).collect();
    assert!(loose.is_empty(), "{loose:?}");
}

#[test]
fn twenty_five_scenarios_run_on_real_containers() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let all = suite::read(&root, "").unwrap();
    let real = all.iter().filter(|r| !r.worlds(Some(World::Real)).is_empty()).count();
    assert!(real >= 25, "{real}");
}

#[test]
fn another_seed_is_another_interleaving_of_the_same_timeline() {
    for name in ["virtual/a-pod-comes-and-goes", "init-containers/init-containers-run-in-order"] {
        let r = named(name);
        let (a, b) = (played(&r, 1), played(&r, 2));
        assert_ne!(a.choices, b.choices, "{name}");
        assert!(suite::log_bytes(&a.entries) != suite::log_bytes(&b.entries), "{name}");
        assert_eq!(normal(&a), normal(&b), "{name}");
    }
}

#[test]
fn an_agent_that_forgets_what_runs_is_found_and_shrunk_to_its_crash() {
    let r = named("virtual/explore/a-running-pod-survives-its-agent");
    let subject = |mutant| Subject { name: &r.name, path: &r.path, scenario: &r.scenario, mutant };
    let found =
        (1..=200).find_map(|seed| subject(Some(Mutant::ForgetsWhatRuns)).try_seed(seed)).expect("the fault is found");
    // Whoever looks first: the node writes down what must not be, and both its monitor and the invariants read that.
    assert!(["invariant", "monitor node"].contains(&found.step.as_str()), "{}: {}", found.step, found.why);
    assert!(found.of > 20 && found.choices.len() <= 3, "{} of {}: {:?}", found.choices.len(), found.of, found.choices);
    assert!(found.choices.iter().any(|(_, c)| matches!(c, Choice::Crash { .. })), "{:?}", found.choices);
    // The few choices are the failure: with them the fault shows again, and without the fault they are harmless.
    let only: BTreeSet<String> = found.choices.iter().map(|(name, _)| name.clone()).collect();
    let again = subject(Some(Mutant::ForgetsWhatRuns)).play(found.seed, Some(only.clone()));
    assert_eq!(again.trial.outcome, found.played.trial.outcome);
    assert_eq!(subject(None).play(found.seed, Some(only)).trial.outcome, Outcome::Passed);
}
