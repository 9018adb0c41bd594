//! A Pod's timeline as lanes, in the order in which things happened: one column for each thing, so that a call of a
//! microsecond is as easy to see as a wait of minutes. Long waits are columns that say how long. What overlaps stands on one
//! shaded block: inside a block the order between lanes is nobody's promise.

use std::fmt::Write;

use podlab_clock::Mono;
use podlab_timeline::{Entry, Event, Lane, Outcome, PodKey};

use super::frame::escape;
use crate::text::millis;

const COLUMN: usize = 15;
const ROW: usize = 26;
const LEFT: usize = 84;
const TOP: usize = 24;
/// More than this nobody looks at; the table below has no picture's limits, and the log has everything.
const MAX_MARKS: usize = 240;
/// A pause that is shown: a twentieth of the whole, and long enough to mean something.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// Rows from top to bottom.
const ROWS: [&str; 12] =
    ["milestone", "api", "sched", "control", "agent", "csi", "cri", "cni", "image", "probe", "watch", "event"];

/// A lane in a word.
pub(super) fn lane_word(lane: Lane) -> &'static str {
    match lane {
        Lane::Api => "api",
        Lane::Sched => "sched",
        Lane::Controllers => "control",
        Lane::Agent => "agent",
        Lane::Csi => "csi",
        Lane::Cri => "cri",
        Lane::Cni => "cni",
        Lane::Image => "image",
        Lane::Probe => "probe",
        Lane::Watch => "watch",
        Lane::Run => "run",
    }
}

/// One thing that happened.
struct Mark {
    row: usize,
    class: &'static str,
    label: String,
    start: Mono,
    end: Mono,
}

fn mark(e: &Entry) -> Option<Mark> {
    let row = |name: &str| ROWS.iter().position(|r| *r == name);
    let (row, class, label, start) = match &e.event {
        Event::Stage(stage) => {
            let word = serde_json::to_value(stage).ok()?.as_str()?.to_owned();
            (row("milestone")?, "stage", word, e.t)
        }
        Event::Call { method, start, outcome, subject } => {
            let what = if subject.is_empty() { method.clone() } else { format!("{method} {subject}") };
            let (class, what) = match outcome {
                Outcome::Ok => ("call", what),
                Outcome::Error(why) => ("bad", format!("{what} failed: {why}")),
            };
            (row(lane_word(e.lane))?, class, what, *start)
        }
        Event::Field { name, value } => (row("watch")?, "field", format!("{name} = {value}"), e.t),
        Event::KubeEvent { kind, reason, message, source, .. } => {
            let class = if kind == "Warning" { "warn" } else { "note" };
            (row("event")?, class, format!("{reason} ({source}): {message}"), e.t)
        }
        Event::Run(_) => return None,
    };
    Some(Mark { row, class, label, start: start.min(e.t), end: e.t })
}

/// The first of each milestone and everything else that a log says of a Pod, in order.
fn marks(entries: &[Entry], pod: &PodKey) -> Vec<Mark> {
    let mine = |e: &&Entry| {
        e.pod.as_ref().is_some_and(|p| {
            p.namespace == pod.namespace && p.name == pod.name && (p.uid == pod.uid || p.uid.is_empty())
        })
    };
    let mut seen: Vec<String> = Vec::new();
    let mut all: Vec<Mark> = entries.iter().filter(mine).filter_map(mark).collect();
    all.retain(|m| m.class != "stage" || !seen.contains(&m.label) && (seen.push(m.label.clone()), true).1);
    all.sort_by_key(|m| m.end);
    all
}

/// Where a mark begins and ends, in columns.
struct Columns {
    of: Vec<(usize, usize)>,
    /// Waits: the column, and how long.
    pauses: Vec<(usize, std::time::Duration)>,
    /// Blocks of what overlaps: from, to (columns), how many.
    blocks: Vec<(usize, usize, usize)>,
    count: usize,
}

fn columns(marks: &[Mark]) -> Columns {
    let (first, last) = (marks.iter().map(|m| m.start).min(), marks.iter().map(|m| m.end).max());
    let whole = last.unwrap_or_default().since(first.unwrap_or_default());
    // A point is the beginning of a call that takes time, or the end of anything.
    let mut points: Vec<(Mono, bool, usize)> = Vec::new();
    for (i, m) in marks.iter().enumerate() {
        if m.start < m.end {
            points.push((m.start, false, i));
        }
        points.push((m.end, true, i));
    }
    points.sort_by_key(|p| p.0);
    let mut c = Columns { of: vec![(0, 0); marks.len()], pauses: Vec::new(), blocks: Vec::new(), count: 0 };
    let (mut open, mut block, mut before) = (0usize, None::<(usize, usize)>, first.unwrap_or_default());
    for (t, ends, i) in points {
        let gap = t.since(before);
        if gap >= PAUSE.max(whole / 20) {
            c.pauses.push((c.count, gap));
            c.count += 4;
        }
        before = t;
        let takes_time = marks[i].start < marks[i].end;
        if !ends || !takes_time {
            c.of[i].0 = c.count;
        }
        c.of[i].1 = c.count;
        if takes_time && !ends {
            open += 1;
            block = block.or(Some((c.count, 0)));
        }
        if let Some((_, n)) = &mut block {
            *n += usize::from(ends);
        }
        if takes_time && ends {
            open -= 1;
        }
        c.count += 1;
        if open == 0
            && let Some((from, n)) = block.take()
            && n > 1
        {
            c.blocks.push((from, c.count, n));
        }
    }
    c
}

/// Draws a Pod's lanes.
pub(super) fn render(out: &mut String, entries: &[Entry], pod: &PodKey) {
    let mut marks = marks(entries, pod);
    let all = marks.len();
    marks.truncate(MAX_MARKS);
    if marks.is_empty() {
        return;
    }
    let begin = marks.iter().map(|m| m.start).min().unwrap_or_default();
    let c = columns(&marks);
    let used: Vec<usize> = (0..ROWS.len()).filter(|r| marks.iter().any(|m| m.row == *r)).collect();
    let (width, height) = (LEFT + (c.count + 1) * COLUMN, TOP + used.len() * ROW);
    let x = |column: usize| LEFT + column * COLUMN;
    let name = escape(&pod.name);
    let _ = write!(
        out,
        "<div class=\"scroll lanes\" tabindex=\"0\" role=\"region\" aria-label=\"Lanes of {name}\"><svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{} things in {} lanes, in their order; the same as a table below\">",
        marks.len(),
        used.len()
    );
    for (i, (from, to, n)) in c.blocks.iter().enumerate() {
        let _ = write!(
            out,
            "<rect class=\"block\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>block {}: {n} things that overlap; their order between lanes is nobody's promise</title></rect>",
            x(*from) - 2,
            TOP - 4,
            (to - from) * COLUMN + 2,
            height - TOP + 4,
            i + 1
        );
    }
    for (n, row) in used.iter().enumerate() {
        let y = TOP + n * ROW;
        let _ = write!(
            out,
            "<line class=\"rule\" x1=\"0\" x2=\"{width}\" y1=\"{0}\" y2=\"{0}\"/><text class=\"row\" x=\"{1}\" y=\"{2}\">{3}</text>",
            y + ROW,
            LEFT - 10,
            y + 17,
            ROWS[*row]
        );
    }
    for (column, gap) in &c.pauses {
        let (from, y) = (x(*column), height);
        let _ = write!(
            out,
            "<rect class=\"pause\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/><text class=\"wait\" x=\"{}\" y=\"14\">{}</text>",
            from + 2,
            TOP - 4,
            4 * COLUMN - 6,
            y - TOP + 4,
            from + 2 * COLUMN,
            millis(*gap)
        );
    }
    for (m, (from, to)) in marks.iter().zip(&c.of) {
        let y = TOP + used.iter().position(|r| *r == m.row).unwrap_or(0) * ROW + 4;
        shape(out, m, (x(*from), x(*to)), y, begin);
    }
    out.push_str("</svg></div>");
    table(out, &marks, all, begin);
}

fn shape(out: &mut String, m: &Mark, (from, to): (usize, usize), y: usize, begin: Mono) {
    let took = if m.start < m.end { format!(", took {}", millis(m.end.since(m.start))) } else { String::new() };
    let label: String = m.label.chars().take(300).collect();
    let title = format!("<title>+{}{took}: {}</title>", millis(m.end.since(begin)), escape(&label));
    let (middle, half) = (to + COLUMN / 2, y + ROW / 2 - 4);
    let _ = match m.class {
        "stage" => write!(out, "<path class=\"stage\" d=\"M{middle} {y}l5 9l-5 9l-5 -9z\">{title}</path>"),
        "call" | "bad" => write!(
            out,
            "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"16\" rx=\"3\">{title}</rect>",
            m.class,
            from + 1,
            y + 1,
            to - from + COLUMN - 2
        ),
        _ => write!(out, "<circle class=\"{}\" cx=\"{middle}\" cy=\"{}\" r=\"5\">{title}</circle>", m.class, half),
    };
    // A name is written where there is room for it.
    let word = m.label.split(' ').next().unwrap_or_default();
    if matches!(m.class, "call" | "bad") && word.len() * 7 + 6 <= to - from + COLUMN {
        let _ = write!(out, "<text class=\"in\" x=\"{}\" y=\"{}\">{}</text>", from + 5, y + 13, escape(word));
    }
}

/// The same for those who do not see pictures, and for searching.
fn table(out: &mut String, marks: &[Mark], all: usize, begin: Mono) {
    let rest = if all > marks.len() { format!(" of {all}; the run log has the rest") } else { String::new() };
    let _ = write!(
        out,
        "<details><summary>In order, as a table ({}{rest})</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"In order\"><table class=\"list\"><thead><tr><th scope=\"col\" class=\"num\">At</th><th scope=\"col\">Lane</th><th scope=\"col\">What</th><th scope=\"col\" class=\"num\">Took</th></tr></thead><tbody>",
        marks.len()
    );
    for m in marks {
        let took = if m.start < m.end { millis(m.end.since(m.start)) } else { String::new() };
        let _ = write!(
            out,
            "<tr class=\"{}\"><td class=\"num\">+{}</td><td>{}</td><td>{}</td><td class=\"num\">{took}</td></tr>",
            m.class,
            millis(m.end.since(begin)),
            ROWS[m.row],
            escape(&m.label)
        );
    }
    out.push_str("</tbody></table></div></details>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(start: u64, end: u64) -> Mark {
        Mark { row: 4, class: "call", label: "x".into(), start: Mono(start), end: Mono(end) }
    }

    #[test]
    fn what_overlaps_is_one_block_and_what_follows_is_another() {
        // Two that overlap, a long wait, one alone, an instant.
        let second = 1_000_000_000;
        let marks = [call(0, 10), call(5, 12), call(second, second + 5), call(second + 7, second + 7)];
        let c = columns(&marks);
        assert_eq!(c.of, [(0, 2), (1, 3), (8, 9), (10, 10)]);
        assert_eq!(c.blocks, [(0, 4, 2)]);
        assert_eq!(c.pauses.len(), 1);
    }
}
