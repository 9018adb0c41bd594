//! A Pod's startup as bars: one row per phase, and below the calls that took part, on the same axis.

use std::fmt::Write;

use podlab_timeline::{Outcome, PodTimeline, fold::Phases};

use super::escape;

const WIDTH: f64 = 760.0;
const LABEL: f64 = 150.0;
const ROW: f64 = 18.0;
/// More calls than this say nothing in a picture.
const MAX_CALLS: usize = 40;

/// Renders one Pod as inline SVG. Calls outside the startup are left out.
pub(super) fn render(phases: &Phases, timeline: &PodTimeline) -> String {
    let Some(begin) = phases.phases.first().map(|p| p.start) else { return String::new() };
    let end = begin.after(phases.total);
    let calls: Vec<_> = timeline.calls.iter().filter(|c| c.start >= begin && c.end <= end).take(MAX_CALLS).collect();
    let total = phases.total.as_secs_f64().max(1e-9);
    let scale = |seconds: f64| seconds / total * (WIDTH - LABEL - 60.0);
    let rows = phases.phases.len() + calls.len();
    #[expect(clippy::cast_precision_loss, reason = "a picture has few rows")]
    let height = ROW * (rows as f64 + 1.0);
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"startup waterfall\">");
    let mut y = 0.0;
    let mut bar = |class: &str, label: &str, from: f64, length: f64| {
        let x = LABEL + scale(from);
        let width = scale(length).max(1.0);
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"l\">{}</text><rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{:.1} ms</text>",
            LABEL - 6.0,
            y + 13.0,
            escape(label),
            y + 2.0,
            ROW - 4.0,
            x + width + 4.0,
            y + 13.0,
            length * 1000.0
        );
        y += ROW;
    };
    for p in &phases.phases {
        bar("phase", p.name, p.start.since(begin).as_secs_f64(), p.duration.as_secs_f64());
    }
    for c in calls {
        let class = if c.outcome == Outcome::Ok { "call" } else { "bad" };
        bar(class, &c.method, c.start.since(begin).as_secs_f64(), c.end.since(c.start).as_secs_f64());
    }
    out.push_str("</svg>");
    out
}
