//! What follows from effects: slower only when that is sure and large enough to matter, and then where.
//!
//! B is slower when its total is, when one of its phases is and the total agrees, or when its tail is. Two things are asked
//! of each: that it differs from nothing, at a budget of error all that is looked at shares (Holm), and that what was seen is
//! at least the minimum effect. So one build against itself is taken for slower as rarely as the budget says however noisy
//! the machine, and a change twice the minimum effect is found wherever its error is below a quarter of it. A phase sees a
//! change better than the total does, because the noise of all other phases is not in it; work that has only moved from one
//! phase to another is kept out by what surely became faster, and by a total that surely did not become slower.
//!
//! It is measured in two looks. The first ends it when nothing looks like a change; what does is measured again, as long and
//! on fresh clusters, and the verdict rests on both looks together: stopping early can only lose an alarm, never make one.

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

/// Share of the minimum effect from which on something looks like a change.
const HINT: f64 = 0.75;
/// Share of the minimum effect that must be left of a slower phase when phases that surely became faster are set against it.
const LEFT: f64 = 0.25;

/// What looks like a change, however unsure: it is worth a second look.
pub fn hints(c: &Comparison, design: &Design) -> Vec<String> {
    let phases = c.phases.iter().map(|p| (p, design.min_effect));
    let all = whole(c, design).chain(phases);
    all.filter(|(e, least)| e.change >= HINT * least).map(|(e, _)| e.of.clone()).collect()
}

/// The verdict after a second look: what both looks together say, as far as the second by itself hints at it too.
pub fn confirmed(again: &Comparison, both: &Comparison, design: &Design) -> Verdict {
    let Verdict::Slower(moved) = &both.verdict else { return Verdict::NotSlower };
    let hints = hints(again, design);
    let held: Vec<Moved> = moved.iter().filter(|m| hints.contains(&m.of)).cloned().collect();
    if held.is_empty() { Verdict::NotSlower } else { Verdict::Slower(held) }
}

/// The total and its tail, each with the least change that matters. Of the tails only the 90th percentile counts: the 99th
/// rests on too few starts.
fn whole<'a>(c: &'a Comparison, design: &Design) -> impl Iterator<Item = (&'a Effect, f64)> + use<'a> {
    let least = design.min_tail;
    let tail = c.tails.iter().filter(|t| t.of == "p90").map(move |t| (t, least));
    std::iter::once((&c.total, design.min_effect)).chain(tail)
}

/// Whether a slower phase makes the whole slower, as far as can be seen.
fn agrees(phase: &Effect, c: &Comparison, design: &Design) -> bool {
    let surely_faster = |p: &&Effect| {
        p.of != phase.of && p.error > 0.0 && p.change < 0.0 && upper_tail(-p.change / p.error) <= design.alpha
    };
    let faster: f64 = c.phases.iter().filter(surely_faster).map(|p| p.change).sum();
    let at_most = c.total.change + quantile(design.alpha) * c.total.error;
    phase.change + faster >= LEFT * design.min_effect && at_most >= phase.change / 2.0
}

/// Judges.
pub(crate) fn judge(c: &Comparison, design: &Design) -> Verdict {
    let phases = c.phases.iter().filter(|p| agrees(p, c, design)).map(|p| (p, design.min_effect));
    let all: Vec<(&Effect, f64)> = whole(c, design).chain(phases).collect();
    let mut ranked: Vec<(f64, &Effect, f64)> = all.iter().map(|(e, least)| (e.p_value(), *e, *least)).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut moved = Vec::new();
    for (i, (p, effect, least)) in ranked.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let budget = design.alpha / (ranked.len() - i) as f64;
        if *p > budget {
            break;
        }
        if effect.change >= *least {
            moved.push(Moved { of: effect.of.clone(), change: effect.change });
        }
    }
    if moved.is_empty() {
        return Verdict::NotSlower;
    }
    if !moved.iter().any(phases_named) {
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
