//! Figures of samples that count more than once, as they do when blocks are drawn again: one pass over samples sorted once.

/// Samples in rising order, each with the block it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Sorted(Vec<(f64, usize)>);

/// What is computed of the samples of one side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Figure {
    /// Mean of the lower half.
    LowerHalf,
    /// Nearest-rank percentile, from 0 to 1.
    Rank(f64),
}

impl Sorted {
    pub(crate) fn new(mut samples: Vec<(f64, usize)>) -> Self {
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(samples)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The figure when each sample counts as often as its block was drawn; 0 without samples.
    pub(crate) fn figure(&self, figure: Figure, times: &[u32]) -> f64 {
        let weight = |block: usize| times.get(block).map_or(0, |t| u64::from(*t));
        let all: u64 = self.0.iter().map(|(_, block)| weight(*block)).sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts are small"
        )]
        let wanted = match figure {
            Figure::LowerHalf => all.div_ceil(2),
            Figure::Rank(p) => ((p * all as f64).ceil() as u64).max(1),
        };
        let (mut taken, mut sum) = (0, 0.0);
        for (value, block) in &self.0 {
            let n = weight(*block).min(wanted - taken);
            if n == 0 {
                continue;
            }
            taken += n;
            #[expect(clippy::cast_precision_loss, reason = "counts are small")]
            {
                sum += value * n as f64;
            }
            if taken == wanted {
                #[expect(clippy::cast_precision_loss, reason = "counts are small")]
                let mean = sum / wanted as f64;
                return if matches!(figure, Figure::Rank(_)) { *value } else { mean };
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted() -> Sorted {
        Sorted::new([(4.0, 1), (1.0, 0), (2.0, 0), (3.0, 1)].to_vec())
    }

    #[test]
    fn a_block_drawn_twice_counts_twice() {
        let s = sorted();
        assert!((s.figure(Figure::LowerHalf, &[1, 1]) - 1.5).abs() < 1e-12);
        // 3 3 4 4: the lower half is 3 3.
        assert!((s.figure(Figure::LowerHalf, &[0, 2]) - 3.0).abs() < 1e-12);
        assert!((s.figure(Figure::Rank(1.0), &[2, 0]) - 2.0).abs() < 1e-12);
        assert!((s.figure(Figure::Rank(0.5), &[1, 1]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_drawn_is_nothing() {
        assert!(sorted().figure(Figure::LowerHalf, &[0, 0]).abs() < 1e-12);
    }
}
