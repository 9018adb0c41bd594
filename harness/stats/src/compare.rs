//! Two sides measured in turn: how much later B is than A, in total, in its tail and by phase, each with an interval.
//!
//! The figure is the mean of the lower half: on a busy machine it sees what the median does not. Each fresh pair of clusters
//! is a round; a side's figure is the mean of its rounds' figures. Blocks of starts are drawn again within their round, the
//! same blocks for both sides, so that what the machine did to both at one time stays together.

use crate::{
    random::Stream,
    verdict::{self, Verdict},
    weighted::{Figure, Sorted},
};

/// One start: its total and its phases, in any one unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The whole.
    pub total: f64,
    /// The phases, in the order of the names.
    pub phases: Vec<f64>,
}

/// One start on each side, one right after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The side compared with.
    pub a: Sample,
    /// The side that is judged.
    pub b: Sample,
}

/// What is asked of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    /// Decides what is drawn.
    pub seed: u64,
    /// How often blocks are drawn again.
    pub resamples: usize,
    /// Changes of the total below this share of it do not matter.
    pub min_effect: f64,
    /// Changes of the 90th percentile below this share of it do not matter.
    pub min_tail: f64,
    /// How often a change that does not matter may be taken for one that does, over all that is looked at.
    pub alpha: f64,
}

impl Default for Design {
    fn default() -> Self {
        Self { seed: 1, resamples: 1000, min_effect: 0.015, min_tail: 0.25, alpha: 0.01 }
    }
}

/// How much later B is than A in one thing.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// What it is of: `total`, `p90`, `p99`, or a phase.
    pub of: String,
    /// A's figure.
    pub a: f64,
    /// B's figure.
    pub b: f64,
    /// B over A, less one; of a phase, what it adds to A's total, as a share of that.
    pub change: f64,
    /// Lower end of the interval of 99 %.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
    /// Standard error of the change.
    pub error: f64,
}

impl Effect {
    /// The smallest change that would be found nineteen times in twenty, when changes below `least` do not matter and
    /// `others` are judged beside it. Infinite when too little was measured to know the error.
    pub fn finds(&self, least: f64, others: usize, design: &Design) -> f64 {
        if self.error <= 0.0 {
            return f64::INFINITY;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let sure = verdict::quantile(design.alpha / (others + 1) as f64) * self.error;
        least.max(sure) + verdict::quantile(0.05) * self.error
    }

    /// How probable a change at least this large is, when in truth there is none.
    pub fn p_value(&self) -> f64 {
        if self.error > 0.0 { verdict::upper_tail(self.change / self.error) } else { 1.0 }
    }
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Pairs of starts it rests on.
    pub pairs: usize,
    /// The whole, lower-half mean.
    pub total: Effect,
    /// The 90th percentile of the whole, and the 99th from 300 pairs on.
    pub tails: Vec<Effect>,
    /// The phases, lower-half mean.
    pub phases: Vec<Effect>,
    /// What follows.
    pub verdict: Verdict,
}

/// Compares. `rounds` are lists of blocks of pairs; `names` are those of the phases. `None` without pairs.
pub fn compare(names: &[&str], rounds: &[Vec<Vec<Pair>>], design: &Design) -> Option<Comparison> {
    let rounds: Vec<&Vec<Vec<Pair>>> = rounds.iter().filter(|r| r.iter().any(|b| !b.is_empty())).collect();
    let pairs: usize = rounds.iter().flat_map(|r| r.iter()).map(Vec::len).sum();
    if pairs == 0 {
        return None;
    }
    let draws = draw(&rounds, design);
    let effect = |of: &str, figure: Figure, get: &dyn Fn(&Sample) -> f64, of_total: bool| {
        measure(of, &rounds, &draws, figure, get, of_total)
    };
    let whole = |s: &Sample| s.total;
    let total = effect("total", Figure::LowerHalf, &whole, false);
    let mut tails = vec![effect("p90", Figure::Rank(0.9), &whole, false)];
    if pairs >= 300 {
        tails.push(effect("p99", Figure::Rank(0.99), &whole, false));
    }
    let phases: Vec<Effect> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let get = move |s: &Sample| s.phases.get(i).copied().unwrap_or(0.0);
            effect(name, Figure::LowerHalf, &get, true)
        })
        .collect();
    let found = Comparison { pairs, total, tails, phases, verdict: Verdict::NotSlower };
    let verdict = verdict::judge(&found, design);
    Some(Comparison { verdict, ..found })
}

/// How often each block of each round counts, once for every resample. The first is the data as they are.
fn draw(rounds: &[&Vec<Vec<Pair>>], design: &Design) -> Vec<Vec<Vec<u32>>> {
    let mut stream = Stream::new(design.seed);
    let mut out = vec![rounds.iter().map(|r| vec![1; r.len()]).collect::<Vec<_>>()];
    for _ in 0..design.resamples {
        let one = |round: &&Vec<Vec<Pair>>| {
            let mut times = vec![0u32; round.len()];
            for _ in 0..round.len() {
                if let Some(t) = times.get_mut(stream.below(round.len())) {
                    *t += 1;
                }
            }
            times
        };
        out.push(rounds.iter().map(one).collect());
    }
    out
}

/// One side's samples by round.
fn side(rounds: &[&Vec<Vec<Pair>>], get: &dyn Fn(&Pair) -> f64) -> Vec<Sorted> {
    let one = |round: &&Vec<Vec<Pair>>| {
        let all = round.iter().enumerate().flat_map(|(block, pairs)| pairs.iter().map(move |p| (p, block)));
        Sorted::new(all.map(|(p, block)| (get(p), block)).collect())
    };
    rounds.iter().map(one).collect()
}

/// Mean of the rounds' figures, each counting as much as it has samples.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn mean(rounds: &[Sorted], figure: Figure, times: &[Vec<u32>]) -> f64 {
    let all: usize = rounds.iter().map(Sorted::len).sum();
    let weighted = rounds.iter().zip(times).map(|(r, t)| r.figure(figure, t) * r.len() as f64);
    weighted.sum::<f64>() / (all.max(1) as f64)
}

fn measure(
    of: &str,
    rounds: &[&Vec<Vec<Pair>>],
    draws: &[Vec<Vec<u32>>],
    figure: Figure,
    get: &dyn Fn(&Sample) -> f64,
    of_total: bool,
) -> Effect {
    let (a, b) = (side(rounds, &|p| get(&p.a)), side(rounds, &|p| get(&p.b)));
    let whole = of_total.then(|| side(rounds, &|p| p.a.total));
    let change = |times: &Vec<Vec<u32>>| {
        let (x, y) = (mean(&a, figure, times), mean(&b, figure, times));
        let base = whole.as_ref().map_or(x, |w| mean(w, Figure::LowerHalf, times));
        let change = if base > 0.0 { (y - x) / base } else { 0.0 };
        (x, y, change)
    };
    let mut all = draws.iter().map(change);
    let (x, y, seen) = all.next().unwrap_or_default();
    let mut drawn: Vec<f64> = all.map(|(_, _, c)| c).collect();
    drawn.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let n = drawn.len().max(1) as f64;
    let middle = drawn.iter().sum::<f64>() / n;
    let error = (drawn.iter().map(|c| (c - middle).powi(2)).sum::<f64>() / (n - 1.0).max(1.0)).sqrt();
    let error = error.max(between(&a, &b, figure, whole.as_deref()));
    let rank = |p: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are small")]
        let at = ((p * n).ceil() as usize).clamp(1, drawn.len().max(1)) - 1;
        drawn.get(at).copied().unwrap_or(seen)
    };
    Effect { of: of.to_owned(), a: x, b: y, change: seen, low: rank(0.005), high: rank(0.995), error }
}

/// Standard error of the change as the rounds tell it: what differs from one pair of clusters to the next is the same in all
/// blocks of a round, so drawing blocks does not see it. 0 for fewer than four rounds, which say too little.
fn between(a: &[Sorted], b: &[Sorted], figure: Figure, whole: Option<&[Sorted]>) -> f64 {
    const ENOUGH: usize = 4;
    if a.len() < ENOUGH {
        return 0.0;
    }
    let once = |r: &Sorted, f: Figure| r.figure(f, &vec![1; r.len()]);
    let one = |i: usize| {
        let (x, y) = (once(a.get(i)?, figure), once(b.get(i)?, figure));
        let base = whole.map_or(Some(x), |w| Some(once(w.get(i)?, Figure::LowerHalf)))?;
        (base > 0.0).then(|| (y - x) / base)
    };
    let all: Vec<f64> = (0..a.len()).filter_map(one).collect();
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let n = all.len().max(2) as f64;
    let mean = all.iter().sum::<f64>() / n;
    (all.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / (n - 1.0) / n).sqrt()
}
