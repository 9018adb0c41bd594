//! The text of `FailedScheduling`. Source: k/k pkg/scheduler/framework/types.go FitError.Error; recordings of 1.36.

use std::collections::BTreeMap;

/// `<count> <reason>` for every reason, sorted as text and joined.
pub(crate) fn histogram<'a>(reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.into_iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}

/// The whole message for a Pod no node would take. `post` is what preemption had to say; empty when it succeeded.
pub(crate) fn failed(nodes: usize, why: &str, post: &str) -> String {
    let mut text = format!("0/{nodes} nodes are available: {why}.");
    if !post.is_empty() {
        text.push(' ');
        text.push_str(post);
    }
    text
}

/// What the claim plugin says before preemption's own text: nothing can be deallocated for a Pod without claims.
const NO_CLAIMS: &str = "no new claims to deallocate, preemption: ";

/// Preemption found nothing: per node either nobody to evict or eviction would not help.
pub(crate) fn no_preemption(nodes: usize, unhelpful: usize, no_victims: usize) -> String {
    let reasons = std::iter::repeat_n("Preemption is not helpful for scheduling", unhelpful)
        .chain(std::iter::repeat_n("No preemption victims found for incoming pod", no_victims));
    format!("{NO_CLAIMS}0/{nodes} nodes are available: {}.", histogram(reasons))
}

/// Preemption was not tried.
pub(crate) fn not_eligible(why: &str) -> String {
    format!("{NO_CLAIMS}not eligible due to {why}.")
}
