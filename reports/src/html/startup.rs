//! A Pod's startup as a waterfall on one axis: its phases, and the calls inside them.

use std::{fmt::Write, time::Duration};

use podlab_clock::Mono;
use podlab_timeline::{Outcome, PodTimeline, fold::Phases};

use super::{frame::escape, lanes::lane_word};
use crate::text::millis;

/// More calls than this say nothing in a picture.
const MAX_CALLS: usize = 60;

/// A bar in a cell: where it begins and how long it is, in parts of the whole.
fn bar(class: &str, from: Duration, length: Duration, total: Duration) -> String {
    let total = total.as_secs_f64().max(1e-9);
    let (left, width) = (100.0 * from.as_secs_f64() / total, 100.0 * length.as_secs_f64() / total);
    format!(
        "<span class=\"track\" aria-hidden=\"true\"><i class=\"{class}\" style=\"left:{left:.2}%;width:max(2px,{width:.2}%)\"></i></span>"
    )
}

pub(super) fn render(out: &mut String, phases: &Phases, timeline: &PodTimeline) {
    let Some(begin) = phases.phases.first().map(|p| p.start) else { return };
    let end = begin.after(phases.total);
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Startup\"><table class=\"fall\"><caption>{} {}{}</caption><thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"num\">Took</th><th scope=\"col\" class=\"num\">Share</th><th scope=\"col\" class=\"wide\"><span class=\"sr\">On the axis of the startup</span></th></tr></thead><tbody>",
        if phases.complete { "Ready after" } else { "Not seen Ready; until its last milestone" },
        millis(phases.total),
        if phases.unattributed.is_zero() {
            String::new()
        } else {
            format!(", of which {} without a milestone of its own", millis(phases.unattributed))
        }
    );
    let total = phases.total.as_secs_f64().max(1e-9);
    for p in &phases.phases {
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><span class=\"key ph-{0}\" aria-hidden=\"true\"></span>{0}</th><td class=\"num\">{1}</td><td class=\"num\">{2:.1} %</td><td class=\"wide\">{3}</td></tr>",
            p.name,
            millis(p.duration),
            100.0 * p.duration.as_secs_f64() / total,
            bar(&format!("ph-{}", p.name), p.start.since(begin), p.duration, phases.total)
        );
    }
    out.push_str("</tbody>");
    calls(out, timeline, (begin, end), phases.total);
    out.push_str("</table></div>");
}

fn calls(out: &mut String, timeline: &PodTimeline, (begin, end): (Mono, Mono), total: Duration) {
    let mut inside: Vec<_> = timeline.calls.iter().filter(|c| c.start >= begin && c.end <= end).collect();
    inside.sort_by_key(|c| (c.start, std::cmp::Reverse(c.end)));
    if inside.is_empty() {
        return;
    }
    out.push_str("<tbody class=\"calls\"><tr><th scope=\"rowgroup\" colspan=\"4\">Calls meanwhile</th></tr>");
    for c in inside.iter().take(MAX_CALLS) {
        let (class, why) = match &c.outcome {
            Outcome::Ok => ("call", String::new()),
            Outcome::Error(why) => ("bad", format!(" <span class=\"why\">{}</span>", escape(why))),
        };
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><span class=\"lane\">{}</span> {} <small>{}</small>{why}</th><td class=\"num\">{}</td><td></td><td class=\"wide\">{}</td></tr>",
            lane_word(c.lane),
            escape(&c.method),
            escape(&c.subject),
            millis(c.end.since(c.start)),
            bar(class, c.start.since(begin), c.end.since(c.start), total)
        );
    }
    if inside.len() > MAX_CALLS {
        let _ = write!(out, "<tr><td colspan=\"4\">and {} more</td></tr>", inside.len() - MAX_CALLS);
    }
    out.push_str("</tbody>");
}
