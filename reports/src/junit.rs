//! JUnit XML as Jenkins (`junit-10.xsd` of its xUnit plugin, which takes no attribute it does not know) and GitLab read it.
//! Failed trials are failures; broken and invalid ones are errors. GitLab shows a case's body only, so it repeats the message.

use std::fmt::Write;

use crate::{Run, Trial, Verdict};

/// Makes text safe in XML 1.0, as content or between quotes. What XML has no way to write becomes U+FFFD.
fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\r' => out.push_str("&#13;"),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
        out
    })
}

/// The same for a body, in which lines stay lines.
fn body(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// Renders a run.
pub(crate) fn render(run: &Run) -> String {
    let (tests, failures) = (run.trials.len(), run.count("failed"));
    let errors = run.count("broken") + run.count("invalid");
    let skipped = run.count("skipped") + run.count("quarantined");
    let (name, time) = (escape(&run.suite), run.duration.as_secs_f64());
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuites name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" time=\"{time:.3}\">"
    );
    let _ = write!(
        out,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{time:.3}\""
    );
    if let Some(at) = run.began.and_then(|b| jiff::Timestamp::from_nanosecond(i128::from(b.unix_ns)).ok()) {
        // Whole seconds without a zone, as Ant began it; it is UTC.
        let _ = write!(out, " timestamp=\"{}\"", at.strftime("%Y-%m-%dT%H:%M:%S"));
    }
    out.push_str(">\n");
    if !run.environment.is_empty() {
        out.push_str("    <properties>\n");
        for (name, value) in &run.environment {
            let _ = writeln!(out, "      <property name=\"{}\" value=\"{}\"/>", escape(name), escape(value));
        }
        out.push_str("    </properties>\n");
    }
    run.trials.iter().for_each(|t| case(&mut out, run, t));
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn case(out: &mut String, run: &Run, t: &Trial) {
    let _ = write!(
        out,
        "    <testcase name=\"{}\" classname=\"{}\" time=\"{:.3}\"",
        escape(&t.name),
        escape(&run.suite),
        t.duration.as_secs_f64()
    );
    let Some((step, why)) = t.verdict.why() else {
        out.push_str("/>\n");
        return;
    };
    let message = if step.is_empty() { why.to_owned() } else { format!("{step}: {why}") };
    let (tag, more) = match &t.verdict {
        Verdict::Failed { context, .. } => ("failure", context.as_str()),
        Verdict::Broken { .. } | Verdict::Invalid(_) => ("error", ""),
        Verdict::Skipped(_) | Verdict::Quarantined(_) => ("skipped", ""),
        // It passed in the end; what readers of JUnit do with a flaky test is theirs.
        Verdict::Flaky(_) | Verdict::Passed => ("flakyFailure", ""),
    };
    let first = message.lines().next().unwrap_or_default();
    let _ = write!(out, ">\n      <{tag} type=\"{}\" message=\"{}\">", t.verdict.word(), escape(first));
    let text = if more.is_empty() { message.clone() } else { format!("{message}\n\n{more}") };
    let _ = write!(out, "{}</{tag}>\n    </testcase>\n", body(&text));
}
