//! Where a series of nightly figures changed its level. By ranks, so that one bad night moves nothing.
//!
//! Pettitt's test is held against windows of many lengths, because a level that rises and falls again looks like none from
//! afar; the most improbable window splits the series, and both parts are looked at again. Sources: A. N. Pettitt, A
//! Non-Parametric Approach to the Change-Point Problem, Applied Statistics 28 (1979); S. Kovács and others, Seeded binary
//! segmentation, Biometrika 110 (2023).

/// Fewest figures on each side of a change.
const SIDE: usize = 4;

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    /// The first figure of the new level, counted from 0.
    pub at: usize,
    /// Median of the level before, back to the last change.
    pub before: f64,
    /// Median of the level after, up to the next change.
    pub after: f64,
}

/// Changes of a series in its order that are as improbable as `alpha` without any, and by at least the share `least` of the
/// level before.
pub fn change_points(series: &[f64], alpha: f64, least: f64) -> Vec<ChangePoint> {
    let mut cuts = vec![0, series.len()];
    split(series, 0, alpha, &mut cuts);
    cuts.sort_unstable();
    let level = |i: usize| Some(median(series.get(*cuts.get(i)?..*cuts.get(i + 1)?)?));
    let one = |i: usize| {
        let (at, before, after) = (*cuts.get(i)?, level(i - 1)?, level(i)?);
        ((after - before).abs() >= least * before.abs()).then_some(ChangePoint { at, before, after })
    };
    (1..cuts.len().saturating_sub(1)).filter_map(one).collect()
}

fn split(part: &[f64], offset: usize, alpha: f64, cuts: &mut Vec<usize>) {
    let windows = windows(part.len());
    let found = windows.iter().filter_map(|(from, to)| {
        let (at, p) = most_probable(part.get(*from..*to)?)?;
        Some((from + at, p))
    });
    let Some((at, p)) = found.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let looks = windows.len() as f64;
    if p * looks > alpha {
        return;
    }
    let (left, right) = part.split_at(at);
    cuts.push(offset + at);
    split(left, offset, alpha, cuts);
    split(right, offset + at, alpha, cuts);
}

/// Windows of a part: the whole, then shorter and shorter ones, each half over the one before.
fn windows(n: usize) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut len = n;
    while len >= 2 * SIDE {
        let step = (len / 2).max(1);
        let mut from = 0;
        while from + len < n {
            out.push((from, from + len));
            from += step;
        }
        out.push((n - len, n));
        len = len * 2 / 3;
    }
    out
}

/// The most probable change of a part, and how improbable it is without one.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn most_probable(part: &[f64]) -> Option<(usize, f64)> {
    let n = part.len();
    // Twice the rank, so that ties, which share theirs, stay whole.
    let twice =
        |x: f64| part.iter().map(|y| if *y < x { 2 } else { i64::from((*y - x).abs() <= 0.0) }).sum::<i64>() + 1;
    let mean = i64::try_from(n).ok()? + 1;
    let mut sum = 0;
    let mut best: Option<(usize, i64)> = None;
    for (i, x) in part.iter().enumerate() {
        sum += twice(*x) - mean;
        let after = i + 1;
        let new = sum.abs();
        if after >= SIDE && n - after >= SIDE && best.is_none_or(|(_, old)| new > old) {
            best = Some((after, new));
        }
    }
    let (at, k) = best?;
    let (k, n) = (k as f64, n as f64);
    Some((at, 2.0 * (-6.0 * k * k / (n.powi(3) + n.powi(2))).exp()))
}

fn median(part: &[f64]) -> f64 {
    let mut sorted = part.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Stream;

    fn noisy(seed: u64, levels: &[(usize, f64)]) -> Vec<f64> {
        let mut s = Stream::new(seed * 977 + 5);
        levels.iter().flat_map(|(n, level)| vec![*level; *n]).map(|l| l * (1.0 + 0.04 * (s.unit() - 0.5))).collect()
    }

    #[test]
    fn a_level_that_rises_and_falls_again_is_found_at_its_nights() {
        for seed in 0..50 {
            let found = change_points(&noisy(seed, &[(20, 18.0), (15, 19.0), (20, 18.0)]), 0.05, 0.015);
            let at: Vec<usize> = found.iter().map(|c| c.at).collect();
            assert_eq!(at.len(), 2, "{seed}: {found:?}");
            assert!(at[0].abs_diff(20) <= 2 && at[1].abs_diff(35) <= 2, "{seed}: {at:?}");
            assert!(found[0].after > found[0].before && found[1].after < found[1].before);
        }
    }

    #[test]
    fn two_weeks_are_enough_after_a_month() {
        for seed in 0..50 {
            assert_eq!(change_points(&noisy(seed, &[(30, 18.0), (14, 18.8)]), 0.05, 0.015).len(), 1, "{seed}");
        }
    }

    #[test]
    fn noise_one_bad_night_and_small_changes_are_none() {
        let found = |series: &[f64]| change_points(series, 0.05, 0.015).len();
        let alarms: usize = (0..200).map(|seed| found(&noisy(seed, &[(40, 18.0)]))).sum();
        assert!(alarms <= 4, "{alarms}");
        let mut bad = noisy(1, &[(40, 18.0)]);
        bad[20] = 90.0;
        assert_eq!(found(&bad), found(&noisy(1, &[(40, 18.0)])));
        assert_eq!(found(&noisy(2, &[(40, 18.0), (40, 18.1)])), 0);
        assert_eq!(found(&[]), 0);
        assert_eq!(found(&[1.0; 50]), 0);
    }

    proptest! {
        #[test]
        fn only_the_order_of_figures_counts(series in prop::collection::vec(1.0..100.0f64, 0..60)) {
            let at = |s: &[f64]| change_points(s, 0.05, 0.0).iter().map(|c| c.at).collect::<Vec<_>>();
            let scaled: Vec<f64> = series.iter().map(|x| x * 3.0).collect();
            prop_assert_eq!(at(&series), at(&scaled));
            prop_assert!(at(&series).iter().all(|i| *i >= SIDE && *i + SIDE <= series.len()));
        }
    }
}
