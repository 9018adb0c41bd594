//! The virtual world itself: the same seed is the same run to the byte, other seeds are other interleavings of the same
//! behaviour, and a search finds what was put in for it to find.

use std::{collections::BTreeSet, path::PathBuf};

use podlab_runner::{
    Outcome, Played, VirtualOptions,
    explore::Subject,
    play_virtual,
    suite::{self, Ready, World},
};
use podlab_testbed::world::{Choice, Mutant};

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

#[test]
fn ten_replays_of_a_seed_are_one_run_to_the_byte() {
    for name in [
        "volumes/claim-keeps-data-over-pods",
        "recovery/agent-restart-leaves-the-container-alone",
        "network/cni-add-fails-twice-then-heals",
        "scheduling/anti-affinity-spreads-over-two-nodes",
        "status/payment-service-starts",
    ] {
        let r = named(name);
        let first = suite::log_bytes(&played(&r, 11).entries);
        for _ in 1..10 {
            assert!(suite::log_bytes(&played(&r, 11).entries) == first, "{name}: a replay differs");
        }
    }
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
    let found = (1..=200).find_map(|seed| subject(Mutant::ForgetsWhatRuns).try_seed(seed)).expect("the fault is found");
    assert_eq!(found.step, "invariant", "{}", found.why);
    assert!(found.of > 20 && found.choices.len() <= 3, "{} of {}: {:?}", found.choices.len(), found.of, found.choices);
    assert!(found.choices.iter().any(|(_, c)| matches!(c, Choice::Crash { .. })), "{:?}", found.choices);
    // The few choices are the failure: with them the fault shows again, and without the fault they are harmless.
    let only: BTreeSet<String> = found.choices.iter().map(|(name, _)| name.clone()).collect();
    let again = subject(Mutant::ForgetsWhatRuns).play(found.seed, Some(only.clone()));
    assert_eq!(again.trial.outcome, found.played.trial.outcome);
    assert_eq!(subject(Mutant::Sound).play(found.seed, Some(only)).trial.outcome, Outcome::Passed);
}
