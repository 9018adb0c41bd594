//! The comparison held against made-up machines: calm, noisy, bursty and drifting, with and without a change in them.

use proptest::prelude::*;

use crate::{Comparison, Design, Pair, Sample, Verdict, compare, confirmed, hints, random::Stream};

const NAMES: [&str; 5] = ["request", "schedule", "sandbox", "start", "status"];
const BASE: [f64; 5] = [1.0, 1.0, 5.0, 4.0, 2.0];

/// How a machine disturbs what is measured on it.
#[derive(Debug, Clone, Copy)]
enum Machine {
    /// Each phase varies by a few percent.
    Calm,
    /// Each phase varies by half.
    Noisy,
    /// Now and then everything takes three times as long for a while.
    Bursty,
    /// It becomes slower and slower.
    Drifting,
}

struct Made {
    seed: u64,
    machine: Machine,
    pairs: usize,
    /// What B's phase takes longer.
    planted: Vec<(usize, f64)>,
    /// Share of B's starts that take twice as long.
    slow_tail: f64,
}

impl Made {
    fn new(machine: Machine, seed: u64) -> Self {
        Self { seed, machine, pairs: 400, planted: Vec::new(), slow_tail: 0.0 }
    }

    fn rounds(&self) -> Vec<Vec<Vec<Pair>>> {
        let mut s = Stream::new(self.seed.wrapping_mul(7919));
        let mut n = 0;
        (0..4)
            .map(|_| {
                let mut burst = 0;
                (0..self.pairs / 40)
                    .map(|_| {
                        (0..10)
                            .map(|_| {
                                n += 1;
                                if burst == 0 && s.unit() < 0.01 {
                                    burst = 12;
                                }
                                burst = usize::saturating_sub(burst, 1);
                                self.pair(&mut s, n, burst > 0)
                            })
                            .collect()
                    })
                    .collect()
            })
            .collect()
    }

    fn pair(&self, s: &mut Stream, n: u32, burst: bool) -> Pair {
        let (spread, common) = match self.machine {
            Machine::Calm => (0.05, 1.0),
            Machine::Noisy => (0.5, 1.0),
            Machine::Bursty => (0.1, if burst { 3.0 } else { 1.0 }),
            Machine::Drifting => (0.05, 1.0 + f64::from(n) / 4000.0),
        };
        let mut one = |planted: &[(usize, f64)], slow: f64| {
            let mut phases: Vec<f64> =
                BASE.iter().map(|b| b * common * (1.0 - spread * s.unit().max(1e-9).ln())).collect();
            for (i, extra) in planted {
                phases[*i] += extra;
            }
            if s.unit() < slow {
                phases.iter_mut().for_each(|p| *p *= 2.5);
            }
            Sample { total: phases.iter().sum(), phases }
        };
        Pair { a: one(&[], 0.0), b: one(&self.planted, self.slow_tail) }
    }

    fn compare(&self) -> Comparison {
        let design = Design { seed: self.seed, resamples: 150, ..Design::default() };
        compare(&NAMES, &self.rounds(), &design).expect("there are pairs")
    }
}

fn alarms(machine: Machine, pairs: usize, runs: u64) -> usize {
    let made = (0..runs).map(|seed| Made { pairs, ..Made::new(machine, seed) });
    made.filter(|m| m.compare().verdict != Verdict::NotSlower).count()
}

#[test]
fn one_build_against_itself_raises_no_alarm_on_any_machine() {
    for machine in [Machine::Calm, Machine::Noisy, Machine::Bursty, Machine::Drifting] {
        assert!(alarms(machine, 400, 60) <= 1, "{machine:?}");
    }
}

#[test]
fn few_pairs_raise_no_alarm_either() {
    assert!(alarms(Machine::Noisy, 80, 100) <= 2);
}

#[test]
fn a_phase_slower_by_three_percent_of_the_total_is_found_and_named() {
    for (machine, pairs) in [(Machine::Calm, 400), (Machine::Bursty, 800), (Machine::Drifting, 800)] {
        for seed in 0..20 {
            let phase = usize::try_from(seed).unwrap() % NAMES.len();
            let made = Made { planted: vec![(phase, 0.39 * 1.05)], pairs, ..Made::new(machine, seed) };
            let found = made.compare();
            assert_eq!(found.verdict.phase(), Some(NAMES[phase]), "{machine:?} {seed}: {found:?}");
        }
    }
}

#[test]
fn half_the_minimum_effect_is_no_alarm() {
    let found = (0..40).filter(|seed| {
        let made = Made { planted: vec![(2, 0.1)], ..Made::new(Machine::Calm, *seed) };
        made.compare().verdict != Verdict::NotSlower
    });
    assert!(found.count() <= 1);
}

#[test]
fn work_that_moves_from_one_phase_to_another_makes_nothing_slower() {
    for seed in 0..20 {
        let made = Made { planted: vec![(2, 0.5), (3, -0.5)], ..Made::new(Machine::Calm, seed) };
        assert_eq!(made.compare().verdict, Verdict::NotSlower, "{seed}");
    }
}

#[test]
fn a_tail_alone_is_found() {
    for seed in 0..20 {
        let made = Made { slow_tail: 0.2, ..Made::new(Machine::Calm, seed) };
        let verdict = made.compare().verdict;
        let Verdict::Slower(moved) = &verdict else { panic!("{seed}: {verdict:?}") };
        assert!(moved.iter().any(|m| m.of == "p90"), "{moved:?}");
    }
}

#[test]
fn what_is_faster_is_not_slower() {
    let made = Made { planted: vec![(2, -0.6)], ..Made::new(Machine::Calm, 3) };
    let found = made.compare();
    assert_eq!(found.verdict, Verdict::NotSlower);
    assert!(found.total.high < 0.0, "{:?}", found.total);
}

#[test]
fn what_the_second_look_does_not_hint_at_is_not_confirmed() {
    let design = Design { resamples: 150, ..Design::default() };
    let slower = |phase| Made { planted: vec![(phase, 0.6)], ..Made::new(Machine::Calm, 1) }.compare();
    let (quiet, sandbox, start) = (Made::new(Machine::Calm, 5).compare(), slower(2), slower(3));
    assert_eq!(confirmed(&quiet, &sandbox, &design), Verdict::NotSlower);
    assert_eq!(confirmed(&start, &sandbox, &design).phase(), None, "{:?}", confirmed(&start, &sandbox, &design));
    assert_eq!(confirmed(&sandbox, &sandbox, &design).phase(), Some("sandbox"));
    assert_eq!(confirmed(&sandbox, &quiet, &design), Verdict::NotSlower);
    assert_eq!(hints(&quiet, &design), Vec::<String>::new());
    assert!(hints(&sandbox, &design).contains(&"sandbox".to_owned()));
}

#[test]
fn what_differs_from_boot_to_boot_is_not_taken_for_a_change() {
    // Each pair of clusters has a difference of its own, the same in all its blocks; on average there is none.
    let found = (0..60).filter(|seed| {
        let mut s = Stream::new(seed * 31 + 7);
        let mut rounds = Made::new(Machine::Calm, *seed).rounds();
        rounds.extend(Made::new(Machine::Calm, seed + 1000).rounds());
        for round in &mut rounds {
            let off = (s.unit() + s.unit() + s.unit() - 1.5) * 1.2;
            for pair in round.iter_mut().flatten() {
                pair.b.phases[2] += off;
                pair.b.total += off;
            }
        }
        let design = Design { seed: *seed, resamples: 150, ..Design::default() };
        compare(&NAMES, &rounds, &design).unwrap().verdict != Verdict::NotSlower
    });
    assert!(found.count() <= 3);
}

#[test]
fn nothing_measured_is_nothing_compared() {
    assert_eq!(compare(&NAMES, &[vec![vec![]]], &Design::default()), None);
}

proptest! {
    #[test]
    fn a_constant_added_to_a_phase_is_seen_as_that_constant(extra in 0.0..2.0f64, phase in 0usize..5, seed in 0u64..1000) {
        let mut rounds = Made { pairs: 40, ..Made::new(Machine::Noisy, seed) }.rounds();
        for pair in rounds.iter_mut().flatten().flatten() {
            pair.b = pair.a.clone();
            pair.b.phases[phase] += extra;
            pair.b.total += extra;
        }
        let found = compare(&NAMES, &rounds, &Design { resamples: 20, ..Design::default() }).unwrap();
        let effect = &found.phases[phase];
        prop_assert!((effect.b - effect.a - extra).abs() < 1e-9);
        prop_assert!((found.total.b - found.total.a - extra).abs() < 1e-9);
        prop_assert!(found.total.low <= found.total.change + 1e-12 && found.total.change <= found.total.high + 1e-12);
    }

    #[test]
    fn the_sides_changed_round_change_the_sign(seed in 0u64..1000) {
        let rounds = Made { pairs: 40, ..Made::new(Machine::Noisy, seed) }.rounds();
        let swapped: Vec<Vec<Vec<Pair>>> = rounds.iter().map(|r| r.iter().map(|b| b.iter().map(|p| Pair { a: p.b.clone(), b: p.a.clone() }).collect()).collect()).collect();
        let design = Design { resamples: 20, ..Design::default() };
        let (one, other) = (compare(&NAMES, &rounds, &design).unwrap(), compare(&NAMES, &swapped, &design).unwrap());
        prop_assert!((one.total.b - one.total.a + other.total.b - other.total.a).abs() < 1e-9);
        prop_assert!(one.verdict == Verdict::NotSlower || other.verdict == Verdict::NotSlower);
    }

    #[test]
    fn the_same_seed_says_the_same(seed in 0u64..1000) {
        let made = Made { pairs: 40, ..Made::new(Machine::Bursty, seed) };
        prop_assert_eq!(made.compare(), made.compare());
    }
}

#[test]
fn a_change_as_large_as_what_is_said_to_be_found_is_found_nearly_always() {
    let design = Design { resamples: 150, ..Design::default() };
    let finds = Made::new(Machine::Noisy, 1).compare().total.finds(design.min_effect, 6, &design);
    let base: f64 = Made::new(Machine::Noisy, 1).compare().total.a;
    let planted = vec![(2, finds * base)];
    let found = (0..40).filter(|seed| {
        let made = Made { planted: planted.clone(), ..Made::new(Machine::Noisy, 100 + seed) };
        made.compare().verdict != Verdict::NotSlower
    });
    assert!(found.count() >= 34);
}
