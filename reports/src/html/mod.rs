//! One page without any outside resource: a table of trials, and per Pod a waterfall of its startup with its calls.

mod waterfall;

use std::fmt::Write;

use crate::{Run, Trial, Verdict, text};

const STYLE: &str = include_str!("style.css");

/// Makes text safe inside HTML.
pub(crate) fn escape(s: &str) -> String {
    s.chars().fold(String::with_capacity(s.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

/// Renders a run.
pub(crate) fn render(run: &Run) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(out, "<title>{} report</title><style>{STYLE}</style></head><body>", escape(&run.suite));
    let _ = write!(out, "<h1>{}</h1><p class=\"sum\">{}</p>", escape(&run.suite), escape(&text::summary_line(run)));
    out.push_str("<dl>");
    for (name, value) in &run.environment {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    out.push_str("</dl><table><thead><tr><th>Scenario</th><th>Verdict</th><th>Duration</th><th>What holds</th></tr></thead><tbody>");
    for t in &run.trials {
        let word = t.verdict.word();
        let _ = write!(
            out,
            "<tr class=\"{word}\"><td><a href=\"#{0}\">{0}</a></td><td>{word}</td><td class=\"num\">{1:.0} ms</td><td>{2}</td></tr>",
            escape(&t.name),
            t.duration.as_secs_f64() * 1000.0,
            escape(&t.intent)
        );
    }
    out.push_str("</tbody></table>");
    run.trials.iter().for_each(|t| trial(&mut out, t));
    out.push_str("</body></html>\n");
    out
}

fn trial(out: &mut String, t: &Trial) {
    let _ = write!(
        out,
        "<section id=\"{0}\"><h2>{0} <small>{1}</small></h2><p>{2}</p>",
        escape(&t.name),
        t.verdict.word(),
        escape(&t.intent)
    );
    match &t.verdict {
        Verdict::Failed { step, why, context } => {
            let _ = write!(out, "<p class=\"why\">{}: {}</p><pre>{}</pre>", escape(step), escape(why), escape(context));
        }
        Verdict::Broken { step, why } => drop(write!(out, "<p class=\"why\">{}: {}</p>", escape(step), escape(why))),
        Verdict::Invalid(why) | Verdict::Skipped(why) | Verdict::Flaky(why) | Verdict::Quarantined(why) => {
            let _ = write!(out, "<p class=\"why\">{}</p>", escape(why));
        }
        Verdict::Passed => {}
    }
    for (key, timeline) in t.timelines.iter().filter(|(k, _)| !k.uid.is_empty()) {
        let _ = write!(out, "<h3>Pod {}</h3>", escape(&key.name));
        if let Some(phases) = timeline.phases() {
            out.push_str(&waterfall::render(&phases, timeline));
            let _ = write!(out, "<pre>{}</pre>", escape(&text::phase_table(&phases)));
        }
        if !timeline.events.is_empty() {
            out.push_str("<ul>");
            for e in &timeline.events {
                let _ = write!(
                    out,
                    "<li class=\"{}\"><b>{}</b> ×{} <i>{}</i> {}</li>",
                    escape(&e.kind),
                    escape(&e.reason),
                    e.count,
                    escape(&e.source),
                    escape(&e.message)
                );
            }
            out.push_str("</ul>");
        }
    }
    out.push_str("</section>");
}
