//! Two runs side by side: what ended otherwise, which phases moved, and each trial's difference.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use podlab_timeline::diff;

use super::{
    frame::{chip, escape, page},
    suite::{by_phase, rank},
    trial::{diff_lines, name_link},
};
use crate::{
    Run, Trial,
    compare::{Compared, compare},
    text::millis,
};

/// Renders a comparison of a run with one of before.
pub(crate) fn render(before: &Run, after: &Run) -> String {
    let all = compare(before, after);
    let mut out = String::new();
    let moved = all.iter().filter(|c| c.verdict_moved()).count();
    let _ = write!(
        out,
        "<section class=\"page\" id=\"all\" data-page=\"\"><h1 tabindex=\"-1\">{} against before</h1><p class=\"sum\">{} trials, {moved} ended otherwise, {} with another timeline</p>",
        escape(&after.suite),
        all.len(),
        all.iter().filter(|c| c.differs()).count()
    );
    facts(&mut out, before, after);
    phases(&mut out, before, after);
    table(&mut out, &all);
    out.push_str("</section>");
    all.iter().for_each(|c| one(&mut out, c));
    page(&after.suite, &format!("{} comparison", after.suite), &out)
}

/// Where the two were played, and what of that is not the same.
fn facts(out: &mut String, before: &Run, after: &Run) {
    out.push_str("<dl class=\"facts\">");
    let names: std::collections::BTreeSet<&String> =
        before.environment.keys().chain(after.environment.keys()).collect();
    for name in names {
        let of = |r: &Run| r.environment.get(name).map_or("–", String::as_str).to_owned();
        let (a, b) = (of(before), of(after));
        let text = if a == b { escape(&a) } else { format!("<del>{}</del> <ins>{}</ins>", escape(&a), escape(&b)) };
        let _ = write!(out, "<div><dt>{}</dt><dd>{text}</dd></div>", escape(name));
    }
    out.push_str("</dl>");
}

fn change(before: Duration, after: Duration) -> (f64, String) {
    let by = after.as_secs_f64() - before.as_secs_f64();
    let part = if before.is_zero() { 0.0 } else { 100.0 * by / before.as_secs_f64() };
    let sign = if by < 0.0 { "−" } else { "+" };
    (part, format!("{sign}{} <small>({part:+.1} %)</small>", millis(Duration::from_secs_f64(by.abs()))))
}

/// A bar to the left for what became faster, to the right for what became slower.
fn swing(part: f64) -> String {
    let (class, width) = (if part > 0.0 { "slower" } else { "faster" }, part.abs().min(100.0) / 2.0);
    let left = if part > 0.0 { 50.0 } else { 50.0 - width };
    format!(
        "<span class=\"track swing\" aria-hidden=\"true\"><i class=\"{class}\" style=\"left:{left:.2}%;width:{width:.2}%\"></i></span>"
    )
}

fn phases(out: &mut String, before: &Run, after: &Run) {
    let world = if after.trials.iter().any(|t| t.world == "real") { "real" } else { "" };
    let ((a, total_a), (b, total_b)) = (by_phase(before, world), by_phase(after, world));
    if total_a.iter().sum::<Duration>().is_zero() || total_b.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<h2>Phases</h2><p>Medians over {} Pods before and {} after. A difference of two runs is no proof: `podlab bench` compares with an interval.</p><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Phases\"><table class=\"phases\"><thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"num\">Before</th><th scope=\"col\" class=\"num\">After</th><th scope=\"col\" class=\"num\">Change</th><th scope=\"col\" class=\"wide\"><span class=\"sr\">Change as a bar</span></th></tr></thead><tbody>",
        total_a.len(),
        total_b.len()
    );
    let (a, b): (BTreeMap<_, _>, Vec<_>) =
        (a.into_iter().chain([("total", total_a)]).collect(), b.into_iter().chain([("total", total_b)]).collect());
    for (name, after) in &b {
        let (old, new) = (a.get(name).map_or(Duration::ZERO, |v| rank(v, 0.5)), rank(after, 0.5));
        let (part, text) = change(old, new);
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><span class=\"key ph-{name}\" aria-hidden=\"true\"></span>{name}</th><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{text}</td><td class=\"wide\">{}</td></tr>",
            millis(old),
            millis(new),
            swing(part)
        );
    }
    out.push_str("</tbody></table></div>");
}

fn verdicts(c: &Compared<'_>) -> String {
    let word = |t: Option<&Trial>| {
        t.map_or_else(|| "<span class=\"tag\">not there</span>".to_owned(), |t| chip(t.verdict.word()))
    };
    if c.verdict_moved() { format!("{} → {}", word(c.before), word(c.after)) } else { word(c.after) }
}

fn table(out: &mut String, all: &[Compared<'_>]) {
    out.push_str("<h2>Trials</h2><form class=\"filter needs-js\" role=\"search\"><label>Filter <input type=\"search\" id=\"q\" autocomplete=\"off\" placeholder=\"part of a name\"></label><output id=\"shown\" aria-live=\"polite\"></output></form>");
    let head = |key: &str, text: &str, class: &str| {
        format!("<th scope=\"col\" class=\"{class}\" data-key=\"{key}\"><button type=\"button\">{text}</button></th>")
    };
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Trials\"><table id=\"trials\"><thead><tr>{}{}{}{}{}{}</tr></thead><tbody>",
        head("rank", "Verdict", ""),
        head("name", "Scenario", ""),
        head("duration", "Duration", "num"),
        head("ready", "First Ready", "num"),
        head("change", "Change of it", "num"),
        head("boot", "Timeline", "")
    );
    for c in all {
        let of = |t: Option<&Trial>| t.map_or(Duration::ZERO, |t| t.duration);
        let (a, b) = (c.ready_before(), c.ready_after());
        let (part, text) = if a.is_zero() || b.is_zero() { (0.0, String::new()) } else { change(a, b) };
        let class = if c.verdict_moved() || c.differs() { "moved" } else { "" };
        let verdict = c.after.or(c.before).map_or("skipped", |t| t.verdict.word());
        let _ = write!(
            out,
            "<tr class=\"{class}\" data-verdict=\"{verdict}\" data-rank=\"{}\" data-name=\"{}\" data-duration=\"{:.6}\" data-ready=\"{:.6}\" data-change=\"{part:.3}\" data-boot=\"{}\"><td>{}</td><th scope=\"row\">{}</th><td class=\"num\">{} → {}</td><td class=\"num\">{}</td><td class=\"num\">{text}</td><td>{}</td></tr>",
            u8::from(!c.verdict_moved()),
            escape(c.name()),
            of(c.after).as_secs_f64(),
            b.as_secs_f64(),
            u8::from(!c.differs()),
            verdicts(c),
            c.after.or(c.before).map(name_link).unwrap_or_default(),
            c.before.map_or_else(|| "–".to_owned(), |t| millis(t.duration)),
            c.after.map_or_else(|| "–".to_owned(), |t| millis(t.duration)),
            if b.is_zero() { String::new() } else { millis(b) },
            match (c.before.and(c.after), c.differs()) {
                (None, _) => "–",
                (_, true) => "differs",
                (_, false) => "the same",
            }
        );
    }
    out.push_str("</tbody></table></div>");
}

fn one(out: &mut String, c: &Compared<'_>) {
    let name = escape(c.name());
    let _ = write!(
        out,
        "<article class=\"page\" id=\"{name}\" data-page=\"{name}\" aria-label=\"{name}\"><nav class=\"crumbs\" aria-label=\"Around {name}\"><a href=\"#\">All trials</a></nav><h1 tabindex=\"-1\">{name}</h1><p>{}</p>",
        verdicts(c)
    );
    for (title, t) in [("Before", c.before), ("After", c.after)] {
        if let Some((step, why)) = t.and_then(|t| t.verdict.why()) {
            let _ = write!(out, "<h2>{title}</h2><pre class=\"why\">{} {}</pre>", escape(step), escape(why));
        }
    }
    let (first, second) = (c.before.and_then(Trial::startup), c.after.and_then(Trial::startup));
    if let (Some((key, a)), Some((_, b))) = (first, second) {
        let _ = write!(
            out,
            "<h2>Startup of {}</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Startup\"><table class=\"phases\"><thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"num\">Before</th><th scope=\"col\" class=\"num\">After</th><th scope=\"col\" class=\"num\">Change</th></tr></thead><tbody>",
            escape(&key.name)
        );
        let old = |name: &str| a.phases.iter().find(|p| p.name == name).map_or(Duration::ZERO, |p| p.duration);
        let rows = b.phases.iter().map(|p| (p.name, old(p.name), p.duration)).chain([("total", a.total, b.total)]);
        for (name, old, new) in rows {
            let _ = write!(
                out,
                "<tr><th scope=\"row\"><span class=\"key ph-{name}\" aria-hidden=\"true\"></span>{name}</th><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td></tr>",
                millis(old),
                millis(new),
                change(old, new).1
            );
        }
        out.push_str("</tbody></table></div>");
    }
    out.push_str("<h2>Timeline in normal form</h2>");
    let lines = diff::diff(&c.normal_before, &c.normal_after);
    match (lines.is_empty(), diff::differs(&lines)) {
        (true, _) => out.push_str("<p>Neither run has one.</p>"),
        (_, true) => diff_lines(out, &lines),
        (_, false) => {
            let _ = write!(out, "<p><span class=\"good\">✓</span> The same in both, {} lines.</p>", lines.len());
        }
    }
    out.push_str("</article>");
}
