//! A trial's page: how it ended and why, its steps, each Pod's startup, lanes and events, what differs from what was recorded,
//! and the ends of the components' logs.

use std::fmt::Write;

use podlab_clock::Mono;
use podlab_timeline::{PodKey, PodTimeline, diff};

use super::{
    frame::{anchor, chip, escape, link},
    lanes, startup,
};
use crate::{LogTail, StepState, Trial, Verdict, steps, text::millis};

/// Pods beyond this many begin folded up.
const OPEN_PODS: usize = 3;

pub(super) fn render(out: &mut String, t: &Trial, (before, after): (Option<&str>, Option<&str>)) {
    let word = t.verdict.word();
    let name = escape(&t.name);
    let near = |name: Option<&str>, text: &str| {
        name.map_or_else(String::new, |n| {
            format!("<a href=\"#{}\" title=\"{}\">{text}</a>", escape(&anchor(n)), escape(n))
        })
    };
    let _ = write!(
        out,
        "<article class=\"page {word}\" id=\"{name}\" data-page=\"{name}\" aria-label=\"{name}\"><nav class=\"crumbs\" aria-label=\"Around {name}\"><a href=\"#\">All trials</a><span class=\"grow\"></span>{}{}</nav><h1 tabindex=\"-1\">{}{name}</h1><p class=\"intent\">{}</p>",
        near(before, "← before"),
        near(after, "after →"),
        chip(word),
        escape(t.intent.trim())
    );
    out.push_str("<dl class=\"facts\">");
    if !t.world.is_empty() {
        let _ = write!(out, "<div><dt>world</dt><dd>{}</dd></div>", escape(&t.world));
    }
    let _ = write!(
        out,
        "<div><dt>took</dt><dd>{}</dd></div><div><dt>boot</dt><dd>{}</dd></div>",
        millis(t.duration),
        millis(t.boot)
    );
    if let Some((key, phases)) = t.startup() {
        let _ = write!(out, "<div><dt>{} Ready after</dt><dd>{}</dd></div>", escape(&key.name), millis(phases.total));
    }
    let again = format!("podlab e2e '{}'", t.name.split('@').next().unwrap_or_default());
    let _ = write!(
        out,
        "<div><dt>again</dt><dd><code>{0}</code> <button type=\"button\" class=\"copy needs-js\" data-copy=\"{0}\">Copy</button></dd></div></dl>",
        escape(&again)
    );
    reason(out, &t.verdict);
    difference(out, t);
    step_table(out, t);
    let pods: Vec<_> = t.timelines.iter().filter(|(k, _)| !k.uid.is_empty()).collect();
    let many = pods.len() > OPEN_PODS;
    for (i, (key, timeline)) in pods.into_iter().enumerate() {
        pod(out, t, (key, timeline), !many || i == 0);
    }
    log_tails(out, &t.logs);
    out.push_str("</article>");
}

fn reason(out: &mut String, verdict: &Verdict) {
    let Some((step, why)) = verdict.why() else { return };
    let at = if step.is_empty() { String::new() } else { format!("<p>At <code>{}</code>:</p>", escape(step)) };
    let _ = write!(
        out,
        "<div class=\"reason {}\">{at}<pre class=\"why\">{}</pre></div>",
        verdict.word(),
        escape(why.trim_end())
    );
    // What differs from what was recorded is shown below, better.
    if let Verdict::Failed { context, .. } = verdict
        && !context.is_empty()
        && step != "snapshot"
    {
        let _ = write!(
            out,
            "<h2>What was there at that moment</h2><pre class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"What was there\">{}</pre>",
            escape(context)
        );
    }
}

/// The normal form against what was recorded.
fn difference(out: &mut String, t: &Trial) {
    if t.timeline.is_empty() {
        return;
    }
    let Some(recorded) = &t.recorded else {
        let _ = write!(
            out,
            "<h2>Timeline in normal form</h2><p>Nothing was recorded of it before.</p><pre class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Normal form\">{}</pre>",
            escape(&t.timeline)
        );
        return;
    };
    let lines = diff::diff(recorded.trim_end(), t.timeline.trim_end());
    if diff::differs(&lines) {
        out.push_str("<h2>Timeline against what was recorded</h2>");
        diff_lines(out, &lines);
    } else {
        let _ = write!(
            out,
            "<details class=\"same\"><summary><span class=\"good\">✓</span> The timeline is the one that was recorded ({} lines)</summary><pre class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Normal form\">{}</pre></details>",
            lines.len(),
            escape(&t.timeline)
        );
    }
}

/// A comparison, a line each; what came and went is marked by a sign and by a colour.
pub(super) fn diff_lines(out: &mut String, lines: &[diff::Line]) {
    use diff::{Line, Part};
    out.push_str("<div class=\"diff scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Difference\">");
    for line in lines {
        let (class, sign, text) = match line {
            Line::Same(t) => ("same", " ", escape(t)),
            Line::Gone(t) => ("gone", "−", format!("<del>{}</del>", escape(t))),
            Line::New(t) => ("new", "+", format!("<ins>{}</ins>", escape(t))),
            Line::Changed(parts) => {
                let part = |p: &Part| match p {
                    Part::Same(t) => escape(t),
                    Part::Gone(t) => format!("<del>{}</del>", escape(t)),
                    Part::New(t) => format!("<ins>{}</ins>", escape(t)),
                };
                ("changed", "~", parts.iter().map(part).collect())
            }
        };
        let _ = write!(out, "<div class=\"{class}\"><span class=\"sign\">{sign}</span>{text}</div>");
    }
    out.push_str("</div>");
}

fn step_table(out: &mut String, t: &Trial) {
    let all = steps(&t.entries);
    let (Some(begin), Some(end)) = (all.iter().map(|s| s.start).min(), all.iter().map(|s| s.end).max()) else { return };
    let whole = end.since(begin).as_secs_f64().max(1e-9);
    let percent = |from: Mono, to: Mono| 100.0 * to.since(from).as_secs_f64() / whole;
    out.push_str("<h2>Steps</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Steps\"><table class=\"steps\"><thead><tr><th scope=\"col\">Step</th><th scope=\"col\">What it does</th><th scope=\"col\">Ended</th><th scope=\"col\" class=\"num\">Began</th><th scope=\"col\" class=\"num\">Waited</th><th scope=\"col\" class=\"wide\"><span class=\"sr\">On the axis of the trial</span></th></tr></thead><tbody>");
    for s in &all {
        let (class, word) = match s.state {
            StepState::Done => ("done", "done"),
            StepState::Failed => ("failed", "failed"),
            StepState::CutOff => ("cut", "cut off"),
        };
        let notes: String = s.notes.iter().map(|n| format!("<br><small>{}</small>", escape(n))).collect();
        let _ = write!(
            out,
            "<tr class=\"{class}\"><th scope=\"row\" style=\"padding-left:{}rem\"><code>{}</code></th><td>{}{notes}</td><td>{word}</td><td class=\"num\">+{}</td><td class=\"num\">{}</td><td class=\"wide\"><span class=\"track\" aria-hidden=\"true\"><i class=\"{class}\" style=\"left:{:.2}%;width:max(2px,{:.2}%)\"></i></span></td></tr>",
            0.5 + 1.2 * f64::from(u32::try_from(s.depth().min(8)).unwrap_or(8)),
            escape(&s.at),
            escape(&s.what),
            millis(s.start.since(begin)),
            millis(s.end.since(s.start)),
            percent(begin, s.start),
            percent(s.start, s.end)
        );
    }
    out.push_str("</tbody></table></div>");
}

fn pod(out: &mut String, t: &Trial, (key, timeline): (&PodKey, &PodTimeline), open: bool) {
    let _ = write!(
        out,
        "<details class=\"pod\"{}><summary><h2>Pod {}</h2></summary>",
        if open { " open" } else { "" },
        escape(&key.name)
    );
    if let Some(phases) = timeline.phases() {
        out.push_str("<h3>Startup</h3>");
        startup::render(out, &phases, timeline);
    }
    if !t.entries.is_empty() {
        out.push_str("<h3>Lanes</h3>");
        lanes::render(out, &t.entries, key);
    }
    events(out, timeline);
    fields(out, timeline);
    out.push_str("</details>");
}

fn events(out: &mut String, timeline: &PodTimeline) {
    if timeline.events.is_empty() {
        return;
    }
    let begin = timeline.stages.values().min().copied().or(timeline.events.iter().map(|e| e.first).min());
    out.push_str("<h3>Events</h3><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Events\"><table class=\"list\"><thead><tr><th scope=\"col\" class=\"num\">First seen</th><th scope=\"col\">Type</th><th scope=\"col\">Reason</th><th scope=\"col\" class=\"num\">Times</th><th scope=\"col\">From</th><th scope=\"col\">Message</th></tr></thead><tbody>");
    for e in &timeline.events {
        let _ = write!(
            out,
            "<tr class=\"{}\"><td class=\"num\">+{}</td><td>{}</td><td><b>{}</b></td><td class=\"num\">×{}</td><td>{}</td><td>{} <small>{}</small></td></tr>",
            if e.kind == "Warning" { "warn" } else { "note" },
            millis(e.first.since(begin.unwrap_or(e.first))),
            escape(&e.kind),
            escape(&e.reason),
            e.count,
            escape(&e.source),
            escape(&e.message),
            escape(&e.field_path)
        );
    }
    out.push_str("</tbody></table></div>");
}

/// What a watcher saw, value after value.
fn fields(out: &mut String, timeline: &PodTimeline) {
    if timeline.fields.is_empty() {
        return;
    }
    let first = timeline.fields.values().flatten().map(|(t, _)| *t).min().unwrap_or_default();
    let begin = timeline.stages.values().min().copied().unwrap_or(first);
    out.push_str("<h3>What a watcher saw</h3><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"What a watcher saw\"><table class=\"list\"><thead><tr><th scope=\"col\">Field</th><th scope=\"col\">Values, and when each was seen first</th></tr></thead><tbody>");
    for (name, values) in &timeline.fields {
        let value = |(t, v): &(Mono, String)| {
            format!("<span class=\"value\">{} <small>+{}</small></span>", escape(v), millis(t.since(begin)))
        };
        let all: Vec<String> = values.iter().map(value).collect();
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape(name),
            all.join("<span aria-hidden=\"true\"> → </span>")
        );
    }
    out.push_str("</tbody></table></div>");
}

fn log_tails(out: &mut String, logs: &[LogTail]) {
    if logs.is_empty() {
        return;
    }
    out.push_str("<h2>Ends of the components' logs</h2>");
    for log in logs {
        let _ = write!(
            out,
            "<details><summary>{0} ({1} lines)</summary><pre class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Log of {0}\">{2}</pre></details>",
            escape(&log.component),
            log.text.lines().count(),
            escape(&log.text)
        );
    }
}

/// The trial's name as a link, for other pages of the file.
pub(super) fn name_link(t: &Trial) -> String {
    link(&t.name, &t.name)
}
