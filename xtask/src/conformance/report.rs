//! Reading the suite's reports, and telling what came of each spec.

use std::fmt::Write;

use serde_json::{Value, json};

/// One spec of a report of the suite.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spec {
    /// Its whole name.
    pub name: String,
    /// Whether the focus chose it.
    pub ran: bool,
    outcome: Outcome,
    seconds: f64,
}

/// What came of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It passed.
    Passed,
    /// It failed, with the suite's words.
    Failed(String),
    /// It was not played, or gave up at once, and why.
    NotRun(String),
}

/// A spec and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Played {
    pub name: String,
    pub outcome: Outcome,
    pub seconds: f64,
}

impl Spec {
    /// Whether it must be played alone.
    pub fn is_serial(&self) -> bool {
        self.name.contains("[Serial]") || self.name.contains("[Disruptive]")
    }

    /// A spec that passed.
    #[cfg(test)]
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), ran: true, outcome: Outcome::Passed, seconds: 0.0 }
    }
}

/// The name of what is done before the first spec, in our own list.
const SET_UP: &str = "set-up";

/// The specs of a Ginkgo report; what failed of the suite's set-up is one of them.
///
/// # Errors
/// When it is no such report.
pub(super) fn specs(report: &str) -> Result<Vec<Spec>, String> {
    let tree: Value = serde_json::from_str(report).map_err(|e| format!("the suite's report: {e}"))?;
    let suites = tree.as_array().ok_or("the suite's report is no list")?;
    let all = suites.iter().flat_map(|s| s["SpecReports"].as_array().into_iter().flatten());
    Ok(all.filter_map(spec).collect())
}

fn spec(entry: &Value) -> Option<Spec> {
    let text = |key: &str| entry[key].as_str().unwrap_or_default();
    let state = text("State");
    let why = entry["Failure"]["Message"].as_str().unwrap_or_default();
    let outcome = match state {
        "passed" => Outcome::Passed,
        "skipped" | "pending" => Outcome::NotRun(why.to_owned()),
        _ => Outcome::Failed(if why.is_empty() { state.to_owned() } else { why.to_owned() }),
    };
    let name = if text("LeafNodeType") == "It" {
        let above = entry["ContainerHierarchyTexts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let parts: Vec<&str> = above.chain([text("LeafNodeText")]).filter(|t| !t.is_empty()).collect();
        parts.join(" ")
    } else {
        matches!(outcome, Outcome::Failed(_)).then(|| SET_UP.to_owned())?
    };
    // What the focus left out is skipped without a word.
    let ran = outcome != Outcome::NotRun(String::new());
    Some(Spec { name, ran, outcome, seconds: entry["RunTime"].as_f64().unwrap_or(0.0) / 1e9 })
}

/// What came of a spec, from the reports of all parts.
pub(super) fn fate(spec: &Spec, reports: &[Vec<Spec>]) -> Played {
    let found = reports.iter().flatten().find(|s| s.ran && s.name == spec.name);
    let Some(found) = found else {
        let set_up = reports.iter().flatten().find(|s| s.name == SET_UP);
        let why = match set_up.map(|s| &s.outcome) {
            Some(Outcome::Failed(why)) => format!("the suite's set-up failed: {why}"),
            _ => "the suite ended before it".to_owned(),
        };
        return Played { name: spec.name.clone(), outcome: Outcome::NotRun(why), seconds: 0.0 };
    };
    Played { name: found.name.clone(), outcome: found.outcome.clone(), seconds: found.seconds }
}

/// `N passed, N failed, N not run`.
pub(super) fn summary(all: &[Played]) -> String {
    let count = |f: fn(&Outcome) -> bool| all.iter().filter(|p| f(&p.outcome)).count();
    format!(
        "{} passed, {} failed, {} not run of {}",
        count(|o| *o == Outcome::Passed),
        count(|o| matches!(o, Outcome::Failed(_))),
        count(|o| matches!(o, Outcome::NotRun(_))),
        all.len()
    )
}

/// One line a spec, passed ones first; under the others why.
pub(super) fn table(all: &[Played]) -> String {
    let mut out = String::new();
    for group in ["passed", "failed", "notRun"] {
        let word = if group == "notRun" { "not run" } else { group };
        for played in all.iter().filter(|p| words(&p.outcome).0 == group) {
            let _ = writeln!(out, "{word:<8} {:>7.1} s  {}", played.seconds, played.name);
            if let Outcome::Failed(why) | Outcome::NotRun(why) = &played.outcome {
                for line in gist(why) {
                    let _ = writeln!(out, "                      {line}");
                }
            }
        }
    }
    out
}

/// The first and the last lines of a reason: objects are shown in full between them.
fn gist(why: &str) -> Vec<String> {
    let lines: Vec<&str> = why.lines().map(str::trim).filter(|l| l.chars().any(char::is_alphanumeric)).collect();
    let shown = if lines.len() > 6 { [&lines[..2], &["…"], &lines[lines.len() - 3..]].concat() } else { lines };
    shown.into_iter().map(|l| shorten(l, 200)).collect()
}

/// At most `most` characters.
fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most).chain(['…']).collect()
}

/// The outcomes as JSON.
pub(super) fn json(all: &[Played]) -> String {
    let specs: Vec<Value> = all
        .iter()
        .map(|p| {
            let (outcome, why) = words(&p.outcome);
            json!({"name": p.name, "outcome": outcome, "why": why, "seconds": p.seconds})
        })
        .collect();
    format!("{:#}\n", json!({"version": 1, "specs": specs}))
}

/// The outcomes as JUnit.
pub(super) fn junit(all: &[Played]) -> String {
    let count = |word: &str| all.iter().filter(|p| words(&p.outcome).0 == word).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"conformance\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
        all.len(),
        count("failed"),
        count("notRun"),
    );
    for p in all {
        let _ = write!(out, "<testcase name=\"{}\" time=\"{:.3}\">", xml(&p.name), p.seconds);
        match &p.outcome {
            Outcome::Passed => {}
            Outcome::Failed(why) => {
                let _ = write!(out, "<failure>{}</failure>", xml(why));
            }
            Outcome::NotRun(why) => {
                let _ = write!(out, "<skipped message=\"{}\"/>", xml(why));
            }
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n");
    out
}

fn words(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(why) => ("failed", why),
        Outcome::NotRun(why) => ("notRun", why),
    }
}

/// Text for XML; what XML cannot hold becomes a blank.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
        {"ContainerHierarchyTexts": ["[sig-node] Pods", ""], "LeafNodeType": "It", "LeafNodeText": "a", "State": "passed", "RunTime": 1500000000},
        {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "failed",
         "Failure": {"Message": "timed out\nwaiting <x>"}},
        {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped",
         "Failure": {"Message": "needs 3 nodes"}},
        {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped"}
    ]}]"#;

    #[test]
    fn what_the_focus_left_out_did_not_run_and_what_gave_up_says_why() {
        let specs = specs(REPORT).unwrap();
        let ran: Vec<&str> = specs.iter().filter(|s| s.ran).map(|s| s.name.as_str()).collect();
        assert_eq!(ran, ["[sig-node] Pods a", "[sig-node] Pods b", "[sig-node] Pods c"]);
        let all: Vec<Played> = specs.iter().map(|s| fate(s, std::slice::from_ref(&specs))).collect();
        assert_eq!(summary(&all), "1 passed, 1 failed, 2 not run of 4");
        assert_eq!(all[2].outcome, Outcome::NotRun("needs 3 nodes".into()));
        assert_eq!(all[3].outcome, Outcome::NotRun("the suite ended before it".into()));
        assert!((all[0].seconds - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_failed_set_up_is_the_reason_of_all_that_did_not_run() {
        let broken = specs(
            r#"[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no nodes"}}]}]"#,
        )
        .unwrap();
        let played = fate(&Spec::named("x"), &[broken]);
        assert_eq!(played.outcome, Outcome::NotRun("the suite's set-up failed: no nodes".into()));
    }

    #[test]
    fn of_a_long_reason_the_beginning_and_the_end_are_shown() {
        assert_eq!(gist("a\n\n{\nb"), ["a", "b"]);
        let long = (0..9).map(|i| format!("line {i}\n")).collect::<String>();
        assert_eq!(gist(&long), ["line 0", "line 1", "…", "line 6", "line 7", "line 8"]);
    }

    #[test]
    fn reports_hold_any_text() {
        let specs = specs(REPORT).unwrap();
        let all: Vec<Played> = specs.iter().map(|s| fate(s, std::slice::from_ref(&specs))).collect();
        assert!(junit(&all).contains("<failure>timed out\nwaiting &lt;x&gt;</failure>"));
        let back: Value = serde_json::from_str(&json(&all)).unwrap();
        assert_eq!(back["specs"][1]["outcome"], "failed");
        assert!(table(&all).contains("failed       0.0 s  [sig-node] Pods b\n"));
    }
}
