//! What follows from effects: slower only when that is sure beyond the minimum effect, and then where.
//!
//! B is slower when its total is, when one of its phases is and the total agrees, or when its tail is. Everything that is
//! looked at shares one error budget (Holm). A phase sees a change better than the total does, because the noise of all other
//! phases is not in it; that the total agrees keeps out work that has only moved from one phase to another.

use crate::{Comparison, Design, Effect};

/// One thing that became slower.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    /// `total`, `p90`, or a phase.
    pub of: String,
    /// By how much, as in [`Effect::change`].
    pub change: f64,
}

/// What a comparison says.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Nothing is slower by more than the minimum effect, as far as can be seen.
    NotSlower,
    /// It is; what moved, the largest phase first.
    Slower(Vec<Moved>),
}

impl Verdict {
    /// The phase that moved most, if it is slower.
    pub fn phase(&self) -> Option<&str> {
        match self {
            Self::NotSlower => None,
            Self::Slower(moved) => moved.iter().map(|m| m.of.as_str()).find(|of| !matches!(*of, "total" | "p90")),
        }
    }
}

/// The verdict of a comparison and of its repetition with another seed: only what both say holds.
pub fn confirmed(first: &Comparison, again: &Comparison) -> Verdict {
    let (Verdict::Slower(one), Verdict::Slower(two)) = (&first.verdict, &again.verdict) else {
        return Verdict::NotSlower;
    };
    let both: Vec<Moved> = one.iter().filter(|m| two.iter().any(|n| n.of == m.of)).cloned().collect();
    if both.is_empty() { Verdict::NotSlower } else { Verdict::Slower(both) }
}

/// Judges. Of the tails only the 90th percentile counts: the 99th rests on too few starts.
pub(crate) fn judge(total: &Effect, tails: &[Effect], phases: &[Effect], design: &Design) -> Verdict {
    let tail = tails.iter().filter(|t| t.of == "p90").map(|t| (t, design.min_tail));
    let agrees = total.change >= design.min_effect / 2.0;
    let phases = phases.iter().filter(|_| agrees).map(|p| (p, design.min_effect));
    let all: Vec<(&Effect, f64)> = std::iter::once((total, design.min_effect)).chain(tail).chain(phases).collect();
    let mut ranked: Vec<(f64, &Effect)> = all.iter().map(|(e, least)| (e.p_value(*least), *e)).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut moved = Vec::new();
    for (i, (p, effect)) in ranked.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let budget = design.alpha / (ranked.len() - i) as f64;
        if *p > budget {
            break;
        }
        moved.push(Moved { of: effect.of.clone(), change: effect.change });
    }
    if moved.is_empty() {
        return Verdict::NotSlower;
    }
    if !moved.iter().any(phases_named) && agrees {
        // The total is slower for sure and no single phase is: the one that adds most is still the best answer to "where".
        let most = all.iter().map(|(e, _)| *e).filter(|e| !matches!(e.of.as_str(), "total" | "p90"));
        if let Some(e) = most.max_by(|a, b| a.change.total_cmp(&b.change)).filter(|e| e.change > 0.0) {
            moved.push(Moved { of: e.of.clone(), change: e.change });
        }
    }
    moved.sort_by(|a, b| phases_named(b).cmp(&phases_named(a)).then(b.change.total_cmp(&a.change)));
    Verdict::Slower(moved)
}

fn phases_named(m: &Moved) -> bool {
    !matches!(m.of.as_str(), "total" | "p90")
}

/// Where a standard normal has the probability `p`, at most a half, above it. By halving; [`upper_tail`] falls evenly.
pub(crate) fn quantile(p: f64) -> f64 {
    let (mut lo, mut hi) = (0.0, 10.0);
    for _ in 0..60 {
        let middle = (lo + hi) / 2.0;
        if upper_tail(middle) > p {
            lo = middle;
        } else {
            hi = middle;
        }
    }
    hi
}

/// Probability of a standard normal above `z`. Source: Abramowitz and Stegun 7.1.26, error below 1.5e-7.
pub(crate) fn upper_tail(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly =
        t * (0.254_829_592 + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let beyond = 0.5 * poly * (-x * x).exp();
    if z >= 0.0 { beyond } else { 1.0 - beyond }
}
