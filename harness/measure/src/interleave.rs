//! Two clusters measured in turn, start by start: whatever the machine does meanwhile happens to both.

use std::time::Duration;

use podlab_clock::{Clock, Mono, Rng};

use crate::{MeasureError, Start, Subject, small_pod};

/// How to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides the order of each pair.
    pub seed: u64,
    /// Pairs of starts left out at the beginning.
    pub warmup: usize,
    /// Pairs of starts in a block: they are judged together.
    pub block: usize,
    /// Pods that may stand on each of the two. They are deleted together before a block that would make them more, so that
    /// as little of the time as can be goes into deleting.
    pub standing: usize,
    /// No block begins after this long.
    pub budget: Duration,
    /// Nor after this many.
    pub blocks: usize,
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub struct Interleaved {
    /// Blocks of starts on A and on B, in pairs.
    pub blocks: Vec<Vec<(Start, Start)>>,
    /// From the first measured block to the end of the last.
    pub took: Duration,
}

/// Which of the two is first in the pairs of a block: A in one half of them, in an order of the seed's.
pub fn order(rng: &Rng, pairs: usize) -> Vec<bool> {
    let mut out: Vec<bool> = (0..pairs).map(|i| i % 2 == 0).collect();
    for i in (1..out.len()).rev() {
        let j = rng.below(i as u64 + 1);
        out.swap(i, usize::try_from(j).unwrap_or(0));
    }
    out
}

/// Measures A and B in turn. Pods are left standing on both, dropped midway or not.
///
/// # Errors
/// The first [`MeasureError`]: a comparison with a lost Pod is none.
pub async fn run(a: &mut Subject, b: &mut Subject, plan: &Plan, clock: Clock) -> Result<Interleaved, MeasureError> {
    let rng = Rng::seeded(plan.seed).fork("interleave");
    // Names of an earlier comparison on the same clusters must not come again.
    let run = rng.name_suffix(5);
    let mut out = Interleaved::default();
    let mut number = 0;
    let mut standing: Vec<String> = Vec::new();
    let warmup = plan.warmup.div_ceil(plan.block.max(1));
    let mut begin = Mono(0);
    for n in 0..warmup.saturating_add(plan.blocks) {
        if n == warmup {
            begin = clock.now();
        }
        if n > warmup && clock.now().since(begin) >= plan.budget {
            break;
        }
        if standing.len() + plan.block > plan.standing {
            a.remove(&standing).await?;
            b.remove(&standing).await?;
            standing.clear();
        }
        let block = block(a, b, &order(&rng, plan.block.max(1)), &run, &mut number).await?;
        standing.extend(block.iter().map(|(s, _)| s.name.clone()));
        if n >= warmup {
            out.blocks.push(block);
            out.took = clock.now().since(begin);
        }
    }
    Ok(out)
}

async fn block(
    a: &mut Subject,
    b: &mut Subject,
    order: &[bool],
    run: &str,
    number: &mut usize,
) -> Result<Vec<(Start, Start)>, MeasureError> {
    let mut pairs = Vec::with_capacity(order.len());
    for a_first in order {
        *number += 1;
        let name = format!("m-{run}-{number}");
        let pod = || small_pod(&name);
        let pair = if *a_first {
            let first = a.start(&name, pod()).await?;
            (first, b.start(&name, pod()).await?)
        } else {
            let first = b.start(&name, pod()).await?;
            (a.start(&name, pod()).await?, first)
        };
        pairs.push(pair);
    }
    Ok(pairs)
}
