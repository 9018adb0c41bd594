//! A summary in Markdown, for what a CI shows beside a run.

use std::{fmt::Write, time::Duration};

use crate::{Run, Trial, Verdict, text};

/// What CI systems show at most is a mebibyte; this many failures are told in full, each cut to a screenful.
const MAX_FAILURES: usize = 30;
const MAX_LINES: usize = 40;
/// How many of the slowest are named.
const SLOWEST: usize = 5;

/// Makes text safe in a cell of a table or in a line.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A block of text that nothing in it can end: its fence is longer than any inside.
fn block(text: &str) -> String {
    let text = &text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let lines: Vec<&str> = text.lines().collect();
    let rest = lines.len().saturating_sub(MAX_LINES);
    let cut = if rest > 0 { format!("… {rest} more lines\n") } else { String::new() };
    let kept: String = lines.iter().take(MAX_LINES).map(|l| l.chars().take(400).collect::<String>() + "\n").collect();
    format!("{fence}\n{kept}{cut}{fence}\n")
}

/// Renders a run.
pub(crate) fn render(run: &Run) -> String {
    let words = ["passed", "failed", "broken", "invalid", "flaky", "quarantined", "skipped"];
    let good = ["failed", "broken", "invalid"].iter().all(|w| run.count(w) == 0);
    let mut out = format!("## {} {}\n\n", if good { "✅" } else { "❌" }, cell(&run.suite));
    let there: Vec<&str> = words.into_iter().filter(|w| run.count(w) > 0).collect();
    let row = |cells: &mut dyn Iterator<Item = String>| format!("|{}|\n", cells.collect::<Vec<_>>().join("|"));
    out.push_str(&row(&mut there.iter().map(|w| format!(" {w} ")).chain([" took ".to_owned()])));
    out.push_str(&row(&mut there.iter().map(|_| "--:".to_owned()).chain(["--:".to_owned()])));
    out.push_str(&row(&mut there
        .iter()
        .map(|w| format!(" {} ", run.count(w)))
        .chain([format!(" {} ", text::millis(run.duration))])));
    failures(&mut out, run);
    slowest(&mut out, run);
    out
}

fn failures(out: &mut String, run: &Run) {
    let wrong: Vec<&Trial> = run.trials.iter().filter(|t| !["passed", "skipped"].contains(&t.verdict.word())).collect();
    if wrong.is_empty() {
        return;
    }
    out.push_str("\n### What did not pass\n\n");
    for t in wrong.iter().take(MAX_FAILURES) {
        let (step, why) = t.verdict.why().unwrap_or_default();
        let at = if step.is_empty() { String::new() } else { format!("at {}", cell(step)) };
        let _ = write!(
            out,
            "<details><summary><b>{}</b> {} {at}</summary>\n\n{}\n\n{}",
            t.verdict.word(),
            cell(&t.name),
            cell(t.intent.trim()),
            block(why)
        );
        if let Verdict::Failed { context, .. } = &t.verdict
            && !context.is_empty()
        {
            out.push_str(&block(context));
        }
        out.push_str("\n</details>\n");
    }
    if wrong.len() > MAX_FAILURES {
        let _ = writeln!(out, "\nand {} more, in the report", wrong.len() - MAX_FAILURES);
    }
}

fn slowest(out: &mut String, run: &Run) {
    let mut all: Vec<&Trial> = run.trials.iter().filter(|t| t.duration > Duration::ZERO).collect();
    all.sort_by(|a, b| b.duration.cmp(&a.duration).then(a.name.cmp(&b.name)));
    if all.is_empty() {
        return;
    }
    out.push_str("\n| slowest | took | first Pod Ready after |\n|---|--:|--:|\n");
    for t in all.iter().take(SLOWEST) {
        let ready = t.startup().map(|(_, p)| text::millis(p.total)).unwrap_or_default();
        let _ = writeln!(out, "| {} | {} | {ready} |", cell(&t.name), text::millis(t.duration));
    }
}
