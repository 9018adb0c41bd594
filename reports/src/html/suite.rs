//! The first page: totals, what did not pass and why, where startup time went, and a table of all trials.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use podlab_timeline::fold::Phases;

use super::frame::{chip, escape, link};
use crate::{Run, Trial, text};

/// Verdicts in order of how much they want to be looked at.
pub(super) const WORDS: [&str; 7] = ["failed", "broken", "invalid", "flaky", "quarantined", "skipped", "passed"];

pub(super) fn render(out: &mut String, run: &Run) {
    let _ = write!(
        out,
        "<section class=\"page\" id=\"all\" data-page=\"\"><h1 tabindex=\"-1\">{}</h1>",
        escape(&run.suite)
    );
    let _ = write!(out, "<p class=\"sum\">{}</p>", escape(&text::summary_line(run)));
    totals(out, run);
    facts(out, run);
    troubles(out, run);
    table(out, run);
    where_time_went(out, run);
    out.push_str("</section>");
}

/// How many of each, as a bar.
fn totals(out: &mut String, run: &Run) {
    let said: Vec<String> =
        WORDS.iter().filter(|w| run.count(w) > 0).map(|w| format!("{} {w}", run.count(w))).collect();
    let _ = write!(out, "<div class=\"totals\" role=\"img\" aria-label=\"{}\">", said.join(", "));
    for word in WORDS.iter().rev() {
        let n = run.count(word);
        if n > 0 {
            let _ = write!(out, "<span class=\"{word}\" style=\"flex-grow:{n}\" title=\"{n} {word}\"></span>");
        }
    }
    out.push_str("</div>");
}

fn facts(out: &mut String, run: &Run) {
    out.push_str("<dl class=\"facts\">");
    let _ = write!(out, "<div><dt>trials</dt><dd>{}</dd></div>", run.trials.len());
    let _ = write!(out, "<div><dt>took</dt><dd>{}</dd></div>", text::millis(run.duration));
    for (name, value) in &run.environment {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    out.push_str("</dl>");
}

/// What did not pass, with its reason, before anything else.
fn troubles(out: &mut String, run: &Run) {
    let wrong: Vec<&Trial> = run.trials.iter().filter(|t| !["passed", "skipped"].contains(&t.verdict.word())).collect();
    if wrong.is_empty() {
        return;
    }
    out.push_str("<h2>What did not pass</h2><ul class=\"troubles\">");
    for t in wrong {
        let (step, why) = t.verdict.why().unwrap_or_default();
        let why: String = why.lines().next().unwrap_or_default().chars().take(300).collect();
        let at = if step.is_empty() { String::new() } else { format!("<code>{}</code> ", escape(step)) };
        let _ = write!(
            out,
            "<li class=\"{}\">{} {}<br><span class=\"why\">{at}{}</span></li>",
            t.verdict.word(),
            chip(t.verdict.word()),
            link(&t.name, &t.name),
            escape(&why)
        );
    }
    out.push_str("</ul>");
}

fn table(out: &mut String, run: &Run) {
    out.push_str("<h2>Trials</h2><form class=\"filter needs-js\" role=\"search\"><label>Filter <input type=\"search\" id=\"q\" autocomplete=\"off\" placeholder=\"part of a name, an intent, a reason\"></label><span role=\"group\" aria-label=\"verdicts\">");
    for word in WORDS.iter().filter(|w| run.count(w) > 0) {
        let _ = write!(
            out,
            "<button type=\"button\" class=\"pick {word}\" data-verdict=\"{word}\" aria-pressed=\"true\">{} {}</button>",
            run.count(word),
            word
        );
    }
    out.push_str("</span><output id=\"shown\" aria-live=\"polite\"></output></form>");
    let head = |key: &str, text: &str, class: &str| {
        format!("<th scope=\"col\" class=\"{class}\" data-key=\"{key}\"><button type=\"button\">{text}</button></th>")
    };
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Trials\"><table id=\"trials\"><thead><tr>{}{}{}{}{}<th scope=\"col\">What holds</th></tr></thead><tbody>",
        head("verdict", "Verdict", ""),
        head("name", "Scenario", ""),
        head("duration", "Duration", "num"),
        head("boot", "Boot", "num"),
        head("ready", "First Ready", "num")
    );
    let longest = run.trials.iter().map(|t| t.duration).max().unwrap_or_default().as_secs_f64().max(1e-9);
    for t in &run.trials {
        row(out, t, longest);
    }
    out.push_str("</tbody></table></div>");
}

fn row(out: &mut String, t: &Trial, longest: f64) {
    let word = t.verdict.word();
    let rank = WORDS.iter().position(|w| *w == word).unwrap_or(0);
    let startup = t.startup();
    let ready = startup.as_ref().map_or(0.0, |(_, p)| p.total.as_secs_f64());
    let played = t.duration > Duration::ZERO;
    let _ = write!(
        out,
        "<tr class=\"{word}\" data-verdict=\"{word}\" data-rank=\"{rank}\" data-name=\"{0}\" data-duration=\"{1:.6}\" data-boot=\"{2:.6}\" data-ready=\"{ready:.6}\"><td>{3}</td><th scope=\"row\">{4}{5}</th>",
        escape(&t.name),
        t.duration.as_secs_f64(),
        t.boot.as_secs_f64(),
        chip(word),
        link(&t.name, &t.name),
        if t.world == "virtual" { " <span class=\"tag\">virtual</span>" } else { "" }
    );
    let cell = |d: Duration| if played { text::millis(d) } else { String::new() };
    let _ = write!(
        out,
        "<td class=\"num\">{}<span class=\"meter\" aria-hidden=\"true\"><i style=\"width:{:.1}%\"></i></span></td><td class=\"num\">{}</td><td class=\"num\">",
        cell(t.duration),
        100.0 * t.duration.as_secs_f64() / longest,
        cell(t.boot)
    );
    if let Some((_, phases)) = &startup {
        let _ = write!(out, "{}{}", text::millis(phases.total), mini(phases));
    }
    let _ = write!(out, "</td><td class=\"intent\">{}</td></tr>", escape(t.intent.trim()));
}

/// A startup as one thin bar of its phases.
fn mini(phases: &Phases) -> String {
    let total = phases.total.as_secs_f64();
    let mut out = String::from("<span class=\"mini\" aria-hidden=\"true\">");
    for p in phases.phases.iter().filter(|p| total > 0.0 && p.duration.as_secs_f64() / total >= 0.005) {
        let _ =
            write!(out, "<i class=\"ph-{}\" style=\"flex-grow:{:.3}\"></i>", p.name, p.duration.as_secs_f64() / total);
    }
    out.push_str("</span>");
    out
}

/// The value that `part` of the sorted ones are not above (nearest rank).
pub(super) fn rank(sorted: &[Duration], part: f64) -> Duration {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank of few"
    )]
    let i = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(i).copied().unwrap_or_default()
}

/// Durations of each phase over every Pod that became Ready in a world, in order of the phases.
pub(super) fn by_phase(run: &Run, world: &str) -> (Vec<(&'static str, Vec<Duration>)>, Vec<Duration>) {
    let all = run.trials.iter().filter(|t| t.world == world).flat_map(|t| t.timelines.values());
    let all: Vec<Phases> = all.filter_map(|t| t.phases().filter(|p| p.complete)).collect();
    let mut order: Vec<&'static str> = Vec::new();
    let mut each: BTreeMap<&'static str, Vec<Duration>> = BTreeMap::new();
    for p in all.iter().flat_map(|p| &p.phases) {
        if !order.contains(&p.name) {
            order.push(p.name);
        }
        each.entry(p.name).or_default().push(p.duration);
    }
    order.sort_by_key(|name| podlab_timeline::fold::PHASES.iter().position(|p| p == name));
    each.values_mut().for_each(|v| v.sort());
    let mut totals: Vec<Duration> = all.iter().map(|p| p.total).collect();
    totals.sort();
    (order.into_iter().map(|name| (name, each.remove(name).unwrap_or_default())).collect(), totals)
}

/// Phases over all Pods, on real containers: in the virtual world only waits take time.
fn where_time_went(out: &mut String, run: &Run) {
    let world = if run.trials.iter().any(|t| t.world == "real") { "real" } else { "" };
    let (phases, totals) = by_phase(run, world);
    let sum: Duration = totals.iter().sum();
    if sum.is_zero() {
        return;
    }
    let _ = write!(
        out,
        "<h2>Where startup time went</h2><p>{} Pods that became Ready{}; from the accepted create until a watcher saw it.</p><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Phases\"><table class=\"phases\"><thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"num\">Pods</th><th scope=\"col\" class=\"num\">Median</th><th scope=\"col\" class=\"num\">p90</th><th scope=\"col\" class=\"num\">Longest</th><th scope=\"col\" class=\"num\">Share</th><th scope=\"col\" class=\"wide\"><span class=\"sr\">Share as a bar</span></th></tr></thead><tbody>",
        totals.len(),
        if world.is_empty() { "" } else { " on real containers" }
    );
    let total = ("total", totals.clone());
    for (name, sorted) in phases.iter().chain([&total]) {
        let share = 100.0 * sorted.iter().sum::<Duration>().as_secs_f64() / sum.as_secs_f64();
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><span class=\"key ph-{name}\" aria-hidden=\"true\"></span>{name}</th><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{share:.1} %</td><td class=\"wide\"><span class=\"meter\" aria-hidden=\"true\"><i class=\"ph-{name}\" style=\"width:{share:.1}%\"></i></span></td></tr>",
            sorted.len(),
            text::millis(rank(sorted, 0.5)),
            text::millis(rank(sorted, 0.9)),
            text::millis(rank(sorted, 1.0)),
        );
    }
    out.push_str("</tbody></table></div>");
}
