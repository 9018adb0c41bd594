//! Figures from samples: nearest-rank percentiles, the mean of the lower half, bootstrap intervals; and the comparison of two
//! sides measured in turn. Pure: a seed decides what is drawn.
#![deny(missing_docs)]

mod compare;
mod points;
mod random;
#[cfg(test)]
mod simulated;
mod verdict;
mod weighted;

pub use compare::{Comparison, Design, Effect, Pair, Sample, compare};
pub use points::{ChangePoint, change_points};
pub use verdict::{Moved, Verdict, confirmed, hints};

use std::time::Duration;

/// Samples, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Takes samples in any order.
    pub fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nearest-rank percentile, `p` in 0 to 100; `None` without samples.
    pub fn percentile(&self, p: f64) -> Option<Duration> {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "ranks are small"
        )]
        let rank = ((p / 100.0 * self.0.len() as f64).ceil() as usize).max(1) - 1;
        self.0.get(rank.min(self.0.len().saturating_sub(1))).copied()
    }

    /// A percentile that may be quoted: above the median only with enough samples (300 for the 99th).
    pub fn quotable(&self, p: f64) -> Option<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let enough = p <= 50.0 || self.0.len() as f64 * (100.0 - p) / 100.0 >= 3.0;
        self.percentile(p).filter(|_| enough)
    }

    /// Mean of the lower half: the figure that sees small changes on a noisy machine.
    pub fn lower_half_mean(&self) -> Option<Duration> {
        let half = &self.0[..self.0.len().div_ceil(2)];
        let n = u32::try_from(half.len()).ok().filter(|n| *n > 0)?;
        Some(half.iter().sum::<Duration>() / n)
    }

    /// Mean of all.
    pub fn mean(&self) -> Option<Duration> {
        let n = u32::try_from(self.0.len()).ok().filter(|n| *n > 0)?;
        Some(self.0.iter().sum::<Duration>() / n)
    }

    /// The smallest.
    pub fn min(&self) -> Option<Duration> {
        self.0.first().copied()
    }

    /// The largest.
    pub fn max(&self) -> Option<Duration> {
        self.0.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(n: u64) -> Samples {
        Samples::new((1..=n).rev().map(Duration::from_millis).collect())
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let s = samples(100);
        let at = |p| s.percentile(p).map(|d| d.as_millis());
        assert_eq!(
            [at(50.0), at(90.0), at(99.0), at(100.0), at(0.0)],
            [Some(50), Some(90), Some(99), Some(100), Some(1)]
        );
        assert_eq!(Samples::default().percentile(50.0), None);
    }

    #[test]
    fn a_tail_without_samples_is_not_quoted() {
        assert_eq!(samples(299).quotable(99.0), None);
        assert!(samples(300).quotable(99.0).is_some());
        assert!(samples(3).quotable(50.0).is_some());
    }

    #[test]
    fn the_lower_half_leaves_outliers_out() {
        let s = Samples::new([1, 2, 3, 1000].map(Duration::from_millis).to_vec());
        assert_eq!(s.lower_half_mean(), Some(Duration::from_micros(1500)));
    }
}
