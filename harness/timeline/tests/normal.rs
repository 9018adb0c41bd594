//! The properties of `NORMAL-FORM.md`, section 5, over logs made at random.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use podlab_clock::Mono;
use podlab_timeline::{
    Entry, Event, Lane, Outcome, PodKey, SCHEMA_VERSION,
    fold::{NORMAL_FORM_VERSION, fold},
};
use proptest::prelude::*;

/// What differs from run to run.
#[derive(Debug, Clone, Copy)]
struct Ids {
    uid: &'static str,
    ip: &'static str,
    dur: &'static str,
}

const A: Ids = Ids { uid: "514b4074-1e89-4c19-a805-7f09272087d8", ip: "10.244.1.2:8080", dur: "98ms" };
const B: Ids = Ids { uid: "00000000-0000-4000-8000-00000000000f", ip: "10.0.0.254:1", dur: "1.250s" };

/// One entry: in which lane, and what it says, out of few so that repeats happen.
type Word = (usize, usize);

/// Three fields, two sources of events, the CNI calls.
const LANES: usize = 6;

fn event((lane, what): Word, ids: Ids) -> (Lane, Event) {
    match lane {
        0..=2 => {
            let (name, value) = (["phase", "container/c/state", "condition/Ready"][lane], ["a", "b", "c"][what]);
            (Lane::Watch, Event::Field { name: name.into(), value: value.into() })
        }
        3 | 4 => {
            let message =
                [format!("dial {} refused", ids.ip), format!("took {}.", ids.dur), "exit code 137".to_owned()];
            let event = Event::KubeEvent {
                kind: "Normal".into(),
                reason: "Reason".into(),
                message: message[what].clone(),
                source: ["kubelet", "default-scheduler"][lane - 3].into(),
                count: 1,
                field_path: String::new(),
            };
            (Lane::Watch, event)
        }
        _ => {
            let outcome = if what == 2 { Outcome::Error(format!("no address at {}", ids.ip)) } else { Outcome::Ok };
            let method = ["ADD", "DEL", "ADD"][what].to_owned();
            (Lane::Cni, Event::Call { method, start: Mono(0), outcome, subject: String::new() })
        }
    }
}

fn text(words: &[Word], ids: Ids) -> String {
    let pod = PodKey { namespace: "default".into(), name: "web".into(), uid: ids.uid.into() };
    let entry = |(i, word): (usize, &Word)| {
        let (lane, event) = event(*word, ids);
        let t = Mono(1000 * u64::try_from(i).unwrap());
        Entry { v: SCHEMA_VERSION, t, lane, pod: Some(pod.clone()), node: None, event }
    };
    let entries: Vec<Entry> = words.iter().enumerate().map(entry).collect();
    fold(&entries).values().next().map(|t| t.normal_form(&[])).unwrap_or_default()
}

/// Merges the lanes of a log in the order that `picks` says, keeping each lane's own.
fn interleave(words: &[Word], picks: &[usize]) -> Vec<Word> {
    let mut lanes: Vec<std::collections::VecDeque<Word>> = vec![Default::default(); LANES];
    words.iter().for_each(|w| lanes[w.0].push_back(*w));
    let mut out = Vec::new();
    for i in 0..words.len() {
        let full: Vec<usize> = (0..LANES).filter(|l| !lanes[*l].is_empty()).collect();
        out.extend(lanes[full[picks[i % picks.len()] % full.len()]].pop_front());
    }
    out
}

/// What a lane says, with what the specification lets go left out: values reported again, events counted up, and repeats of a
/// call, which are a count.
fn lane(words: &[Word], which: usize) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::new();
    for what in words.iter().filter(|w| w.0 == which).map(|w| w.1) {
        match which {
            0..=2 if out.last() == Some(&what) => {}
            3 | 4 if out.contains(&what) => {}
            _ => out.push(what),
        }
    }
    out
}

fn words() -> impl Strategy<Value = Vec<Word>> {
    prop::collection::vec((0..LANES, 0..3usize), 0..24)
}

proptest! {
    #[test]
    fn legal_any_interleaving_of_the_lanes_has_the_same_text(log in words(), picks in prop::collection::vec(0..6usize, 1..24)) {
        prop_assert_eq!(text(&log, A), text(&interleave(&log, &picks), A));
    }

    #[test]
    fn illegal_neighbours_of_a_lane_exchanged_or_one_left_out_or_doubled_have_another_text(log in words(), which in 0..24usize) {
        prop_assume!(!log.is_empty());
        let i = which % log.len();
        let mut without = log.clone();
        without.remove(i);
        let mut twice = log.clone();
        twice.insert(i, log[i]);
        let mut exchanged = log.clone();
        if let Some(j) = (i + 1..log.len()).find(|j| log[*j].0 == log[i].0) {
            exchanged.swap(i, j);
        }
        for other in [without, twice, exchanged] {
            let says_the_same = (0..LANES).all(|l| lane(&log, l) == lane(&other, l));
            prop_assert_eq!(text(&log, A) == text(&other, A), says_the_same, "{:?} against {:?}", log, other);
        }
    }

    #[test]
    fn illegal_two_logs_have_one_text_only_when_each_lane_says_the_same(a in words(), b in words()) {
        let says_the_same = (0..LANES).all(|l| lane(&a, l) == lane(&b, l));
        prop_assert_eq!(text(&a, A) == text(&b, A), says_the_same);
    }

    #[test]
    fn ids_addresses_and_durations_do_not_show(log in words()) {
        prop_assert_eq!(text(&log, A), text(&log, B));
    }
}

/// The version stands in the specification and in the code, and they are one.
#[test]
fn the_specification_is_of_the_version_that_is_written() {
    let said = include_str!("../NORMAL-FORM.md").lines().next().unwrap();
    assert_eq!(said, format!("# The normal form of a timeline, version {NORMAL_FORM_VERSION}"));
}
