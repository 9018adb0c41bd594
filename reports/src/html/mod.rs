//! One page without any outside resource, for a browser that has nothing but the file: a table of all trials, and a page for
//! each. Everything is there without the script, which only filters, sorts, and shows one page at a time.

mod compare;
mod frame;
mod lanes;
mod startup;
mod suite;
mod trial;

pub(crate) use compare::render as render_comparison;

use crate::Run;

/// Renders a run.
pub(crate) fn render(run: &Run) -> String {
    let mut body = String::new();
    suite::render(&mut body, run);
    for (i, t) in run.trials.iter().enumerate() {
        let neighbour = |j: Option<usize>| j.and_then(|j| run.trials.get(j)).map(|t| t.name.as_str());
        trial::render(&mut body, t, (neighbour(i.checked_sub(1)), neighbour(Some(i + 1))));
    }
    frame::page(&run.suite, &format!("{} report", run.suite), &body)
}
