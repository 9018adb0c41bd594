//! When Pods arrive: pure functions of a plan and a seed. Arrivals do not wait for what came of earlier ones (open loop),
//! except where a plan says how many may be on their way at a time (closed).

use std::time::Duration;

use podlab_clock::Rng;

/// A plan of arrivals. Rates are Pods per second and greater than zero.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// One after the other at the same distance.
    Constant {
        /// Pods per second.
        rate: f64,
    },
    /// A rate that changes evenly from one to another and stays there.
    Ramp {
        /// At the beginning.
        from: f64,
        /// At the end.
        to: f64,
        /// How long the change takes.
        over: Duration,
    },
    /// Several at once, again and again.
    Burst {
        /// How many at once; at least one.
        size: usize,
        /// From one burst to the next.
        every: Duration,
    },
    /// At random with this mean rate, each independent of the others.
    Poisson {
        /// Pods per second.
        rate: f64,
    },
    /// At these times after the beginning, in rising order.
    Trace(Vec<Duration>),
    /// Each as soon as one before it is through, so many at a time.
    Closed {
        /// How many are on their way at a time.
        concurrency: usize,
    },
}

impl Arrivals {
    /// Times of the first `count` arrivals after the beginning, in rising order. A trace has no more than it says.
    pub fn offsets(&self, count: usize, rng: &Rng) -> Vec<Duration> {
        let gap = |rate: f64| 1.0 / rate.max(1e-9);
        match self {
            Self::Constant { rate } => (0..count).map(|i| seconds(real(i) * gap(*rate))).collect(),
            Self::Ramp { from, to, over } => {
                (0..count).map(|i| seconds(ramp(real(i), *from, *to, over.as_secs_f64()))).collect()
            }
            Self::Burst { size, every } => (0..count)
                .map(|i| every.saturating_mul(u32::try_from(i / (*size).max(1)).unwrap_or(u32::MAX)))
                .collect(),
            Self::Poisson { rate } => {
                let rng = rng.fork("arrivals");
                let mut at = 0.0;
                (0..count)
                    .map(|_| {
                        at += -(1.0 - rng.unit()).max(1e-12).ln() * gap(*rate);
                        seconds(at)
                    })
                    .collect()
            }
            Self::Trace(all) => all.iter().copied().take(count).collect(),
            Self::Closed { .. } => vec![Duration::ZERO; count],
        }
    }

    /// How many may be on their way at a time, if the plan says.
    pub fn concurrency(&self) -> Option<usize> {
        match self {
            Self::Closed { concurrency } => Some((*concurrency).max(1)),
            _ => None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn real(i: usize) -> f64 {
    i as f64
}

/// The longest plan there is.
const LONGEST: f64 = 86_400.0;

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(if s.is_finite() { s.clamp(0.0, LONGEST) } else { LONGEST })
}

/// When `n` Pods have arrived, at a rate that goes from one to another over a time: the time whose integral is `n`.
fn ramp(n: f64, from: f64, to: f64, over: f64) -> f64 {
    let during = (from + to) / 2.0 * over;
    if n >= during || over <= 0.0 {
        return over.max(0.0) + (n - during.max(0.0)).max(0.0) / to.max(1e-9);
    }
    // n = from·t + (to − from)/(2·over)·t²
    let a = (to - from) / (2.0 * over);
    if a.abs() < 1e-12 {
        return n / from.max(1e-9);
    }
    (-from + (from * from + 4.0 * a * n).max(0.0).sqrt()) / (2.0 * a)
}

#[cfg(test)]
mod tests {
    use podlab_clock::Rng;
    use proptest::prelude::{Strategy, any as anything, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    fn any() -> impl Strategy<Value = Arrivals> {
        let rate = 0.5..500.0f64;
        prop_oneof![
            rate.clone().prop_map(|rate| Arrivals::Constant { rate }),
            (rate.clone(), rate.clone(), 0u64..20_000).prop_map(|(from, to, ms)| Arrivals::Ramp {
                from,
                to,
                over: Duration::from_millis(ms)
            }),
            (1usize..50, 1u64..5000).prop_map(|(size, ms)| Arrivals::Burst { size, every: Duration::from_millis(ms) }),
            rate.prop_map(|rate| Arrivals::Poisson { rate }),
            (1usize..50).prop_map(|concurrency| Arrivals::Closed { concurrency }),
        ]
    }

    proptest! {
        #[test]
        fn arrivals_never_go_back_in_time_and_a_seed_decides_them(plan in any(), count in 0usize..300, seed in anything::<u64>()) {
            let times = plan.offsets(count, &Rng::seeded(seed));
            prop_assert_eq!(times.len(), count);
            prop_assert!(times.is_sorted());
            prop_assert_eq!(times, plan.offsets(count, &Rng::seeded(seed)));
        }

        #[test]
        fn the_first_arrivals_do_not_depend_on_how_many_follow(plan in any(), seed in anything::<u64>()) {
            let (few, many) = (plan.offsets(20, &Rng::seeded(seed)), plan.offsets(90, &Rng::seeded(seed)));
            prop_assert_eq!(&few[..], &many[..20]);
        }

        #[test]
        fn a_ramp_has_as_many_as_the_area_under_its_rate(from in 1.0..100.0f64, to in 1.0..100.0f64, ms in 100u64..10_000) {
            let over = Duration::from_millis(ms);
            let times = Arrivals::Ramp { from, to, over }.offsets(3000, &Rng::seeded(1));
            let during = times.iter().filter(|t| **t < over).count();
            prop_assert!((real(during) - (from + to) / 2.0 * over.as_secs_f64()).abs() <= 1.01);
            // Afterwards the distance is that of the final rate.
            let after: Vec<_> = times.iter().skip_while(|t| **t < over).take(3).collect();
            if let [_, b, c] = after[..] {
                prop_assert!((c.as_secs_f64() - b.as_secs_f64() - 1.0 / to).abs() < 1e-6);
            }
        }

        #[test]
        fn poisson_arrivals_have_the_mean_rate(rate in 1.0..200.0f64, seed in anything::<u64>()) {
            let times = Arrivals::Poisson { rate }.offsets(4000, &Rng::seeded(seed));
            let mean = real(times.len()) / times.last().unwrap().as_secs_f64();
            prop_assert!((mean / rate - 1.0).abs() < 0.1, "{} instead of {}", mean, rate);
        }
    }

    #[test]
    fn constant_arrivals_and_bursts_keep_their_distance() {
        let rng = Rng::seeded(1);
        let ms = |d: Vec<Duration>| d.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(ms(Arrivals::Constant { rate: 20.0 }.offsets(4, &rng)), [0, 50, 100, 150]);
        let burst = Arrivals::Burst { size: 2, every: Duration::from_secs(1) };
        assert_eq!(ms(burst.offsets(5, &rng)), [0, 0, 1000, 1000, 2000]);
        let trace = Arrivals::Trace(vec![Duration::ZERO, Duration::from_secs(3)]);
        assert_eq!(ms(trace.offsets(5, &rng)), [0, 3000]);
    }

    #[test]
    fn another_seed_is_another_poisson_plan() {
        let plan = Arrivals::Poisson { rate: 10.0 };
        assert_ne!(plan.offsets(10, &Rng::seeded(1)), plan.offsets(10, &Rng::seeded(2)));
    }
}
