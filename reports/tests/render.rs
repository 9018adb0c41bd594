//! What a report says in each of its forms, and that nothing in it can break out of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;
use podlab_reports::{Began, Form, ReportFile, Run, Trial, Verdict, report_file, report_schema, write_all};
use podlab_timeline::{Entry, Event, Lane, Outcome, PodKey, SCHEMA_VERSION, Stage, fold::fold};
use serde_json::{Value, json};

/// Text that would break out of every form if it were let.
const EVIL: &str = "<b>pod|`*\"'& ]]> \u{1b}[31m";
const MS: u64 = 1_000_000;

fn entries() -> Vec<Entry> {
    let pod = PodKey { namespace: "default".into(), name: EVIL.into(), uid: "u".into() };
    let mut out = Vec::new();
    let mut push = |t: u64, lane, pod: Option<&PodKey>, event| {
        out.push(Entry { v: SCHEMA_VERSION, t: Mono(t * MS), lane, pod: pod.cloned(), node: None, event });
    };
    push(1000, Lane::Run, None, Event::Run(json!({"step": "when[1]", "state": "begins", "what": "Apply."})));
    let stages =
        [Stage::Accepted, Stage::Popped, Stage::Bound, Stage::Observed, Stage::Started, Stage::Ready, Stage::Seen];
    for (i, stage) in stages.into_iter().enumerate() {
        push(1001 + u64::try_from(i).unwrap(), Lane::Agent, Some(&pod), Event::Stage(stage));
    }
    // Two calls of one lane that cross each other, and one that failed.
    for (start, end, outcome) in
        [(1002, 1005, Outcome::Ok), (1004, 1007, Outcome::Ok), (1006, 1006, Outcome::Error(EVIL.into()))]
    {
        let call =
            Event::Call { method: "RunPodSandbox".into(), start: Mono(start * MS), outcome, subject: EVIL.into() };
        push(end, Lane::Cri, Some(&pod), call);
    }
    push(1008, Lane::Run, None, Event::Run(json!({"step": "when[1]", "state": "done"})));
    out
}

fn run() -> Run {
    let failed = Verdict::Failed {
        step: "then[1]".into(),
        why: format!("expected {EVIL}\nactual 2"),
        context: "log & more".into(),
    };
    let trial = |name: &str, verdict| Trial {
        name: name.into(),
        intent: "it <holds>".into(),
        verdict,
        duration: Duration::from_millis(900),
        boot: Duration::from_millis(300),
        world: "real".into(),
        timelines: fold(&entries()),
        entries: entries(),
        timeline: "pod a\nwatch phase: Pending > Running\n".into(),
        recorded: Some("pod a\nwatch phase: Pending > Failed\n".into()),
        ..Trial::default()
    };
    let why = || EVIL.to_owned();
    Run {
        suite: "e2e".into(),
        duration: Duration::from_secs(1),
        environment: BTreeMap::from([("kernel".into(), "6.1".into())]),
        began: Some(Began { unix_ns: 1_700_000_000_000_000_000, mono: Mono(900 * MS) }),
        trials: vec![
            trial("a/passes", Verdict::Passed),
            trial("a/fails[k=\"v\"]", failed),
            trial("a/breaks", Verdict::Broken { step: "cleanup[1]".into(), why: why() }),
            trial("a/invalid", Verdict::Invalid(why())),
            trial("a/flaky", Verdict::Flaky(why())),
            trial("a/quarantined", Verdict::Quarantined(why())),
            Trial { name: "a/skipped".into(), verdict: Verdict::Skipped(why()), ..Trial::default() },
        ],
    }
}

#[test]
fn all_forms_agree_on_the_verdicts_and_escape_what_they_quote() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&run(), dir.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (junit, html, markdown) = (read("junit.xml"), read("report.html"), read("summary.md"));
    assert!(junit.contains("tests=\"7\"") && junit.contains("failures=\"1\""), "{junit}");
    assert!(
        html.contains("2 passed, 3 failed") && html.contains("&lt;b&gt;pod") && !html.contains("<b>pod"),
        "escaped"
    );
    assert!(!html.contains("http://") && !html.contains("https://"), "the page stands alone");
    assert!(!markdown.contains("<b>pod") || markdown.contains("```\nexpected <b>pod"), "{markdown}");
    for text in [&junit, &html, &markdown] {
        assert!(!text.contains('\u{1b}'), "nothing a terminal would act on");
    }
    let json: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!((json["passed"].as_u64(), json["failed"].as_u64()), (Some(1), Some(1)));
    let startup = &json["trials"][0]["pods"][0]["startup"];
    let sum: u64 = startup["phases"].as_array().unwrap().iter().map(|p| p["us"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), startup["totalUs"].as_u64(), "phases sum to the total");
    assert_eq!(run().exit_code(false), 1);
}

/// Anything a report quotes may hold anything; no form panics, and the page keeps its shape.
#[test]
fn no_text_breaks_a_page() {
    for evil in ["</script><script>alert(1)</script>", "\" onload=\"x", "'><img src=x>", "</pre></article>", "a\0b"] {
        let mut run = run();
        for t in &mut run.trials {
            t.name = evil.into();
            t.intent = evil.into();
            t.timeline = evil.into();
            t.verdict = Verdict::Failed { step: evil.into(), why: evil.into(), context: evil.into() };
            t.logs = vec![podlab_reports::LogTail { component: evil.into(), text: evil.into() }];
        }
        run.suite = evil.into();
        let html = Form::Html.render(&run).unwrap();
        assert_eq!(html.matches("<script>").count(), 1, "{evil:?}");
        assert_eq!(html.matches("<article ").count(), html.matches("</article>").count(), "{evil:?}");
        assert!(!html.contains("<img") && !html.contains(" onload=\""), "{evil:?}");
    }
}

/// Reads XML as far as the reports go: names, attributes and nesting. Panics where a reader would refuse.
fn xml(text: &str) -> Vec<(Vec<String>, BTreeMap<String, String>)> {
    let (mut stack, mut out) = (Vec::<String>::new(), Vec::new());
    for part in text.split('<').skip(1) {
        let (tag, content) = part.split_once('>').unwrap();
        assert!(!content.contains('>'), "{content}");
        if tag.starts_with('?') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(stack.pop().as_deref(), Some(name));
            continue;
        }
        let (bare, closed) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
        let (name, mut rest) = bare.split_once(' ').unwrap_or((bare, ""));
        let mut attributes = BTreeMap::new();
        while let Some((key, more)) = rest.split_once("=\"") {
            let (value, more) = more.split_once('"').unwrap();
            assert!(attributes.insert(key.trim().to_owned(), value.to_owned()).is_none(), "{key} twice");
            rest = more;
        }
        assert!(rest.trim().is_empty(), "{rest}");
        stack.push(name.to_owned());
        out.push((stack.clone(), attributes));
        if closed {
            stack.pop();
        }
    }
    assert!(stack.is_empty());
    out
}

/// An element, the elements it stands in, attributes it must have, attributes it may have.
type Element = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// What `junit-10.xsd` of Jenkins' xUnit plugin allows.
const XSD: &[Element] = &[
    ("testsuites", &[""], &[], &["name", "time", "tests", "failures", "errors"]),
    (
        "testsuite",
        &["testsuites"],
        &["name", "tests", "failures", "errors"],
        &["group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"],
    ),
    ("properties", &["testsuite"], &[], &[]),
    ("property", &["properties"], &["name", "value"], &[]),
    ("testcase", &["testsuite"], &["name"], &["time", "classname", "group"]),
    ("failure", &["testcase"], &[], &["type", "message"]),
    ("error", &["testcase"], &[], &["type", "message"]),
    ("skipped", &["testcase"], &[], &["type", "message"]),
    ("flakyFailure", &["testcase"], &["type"], &["message"]),
];

#[test]
fn junit_is_what_the_schema_of_jenkins_allows_and_what_gitlab_reads() {
    let text = Form::Junit.render(&run()).unwrap();
    let all = xml(&text);
    for (path, attributes) in &all {
        let (name, parent) = (path.last().unwrap(), path.len().checked_sub(2).map_or("", |i| path[i].as_str()));
        let (_, parents, required, optional) =
            XSD.iter().find(|(n, ..)| n == name).unwrap_or_else(|| panic!("{name} is not in the schema"));
        assert!(parents.contains(&parent), "{name} in {parent}");
        for key in *required {
            assert!(attributes.contains_key(*key), "{name} must have {key}");
        }
        for key in attributes.keys() {
            assert!(required.contains(&key.as_str()) || optional.contains(&key.as_str()), "{name} has no {key}");
        }
    }
    let of = |name: &str| all.iter().filter(|(p, _)| p.last().unwrap() == name).collect::<Vec<_>>();
    let suite = &of("testsuite")[0].1;
    let number = |key: &str| suite[key].parse::<usize>().unwrap();
    assert_eq!((number("tests"), number("failures"), number("errors"), number("skipped")), (7, 1, 2, 2));
    assert_eq!(suite["timestamp"], "2023-11-14T22:13:20");
    assert_eq!((of("failure").len(), of("error").len(), of("skipped").len(), of("flakyFailure").len()), (1, 2, 2, 1));
    // GitLab tells cases apart by class and name, and shows the body only.
    let mut keys: Vec<_> = of("testcase").iter().map(|(_, a)| (a["classname"].clone(), a["name"].clone())).collect();
    keys.dedup();
    assert_eq!(keys.len(), 7);
    assert!(
        text.contains(">then[1]: expected &lt;b&gt;pod") && text.contains("\n\nlog &amp; more</failure>"),
        "{text}"
    );
}

#[test]
fn the_schema_of_the_json_is_the_one_of_its_types_and_what_is_written_is_read_back() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/report.v1.json");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == report_schema(), "write it anew: podlab schema --report > reports/schema/report.v1.json");
    let text = Form::Json.render(&run()).unwrap();
    let read: ReportFile = serde_json::from_str(&text).unwrap();
    assert_eq!(read, report_file(&run()));
    assert_eq!(
        read.trials[0].timeline.as_ref().unwrap().difference,
        "  pod a\n~ watch phase: Pending > [-Failed-]{+Running+}\n"
    );
    let unknown = text.replacen("\"suite\"", "\"suiteName\"", 1);
    assert!(serde_json::from_str::<ReportFile>(&unknown).is_err(), "a key that is not in the schema");
}

#[test]
fn a_trace_has_every_call_on_a_row_where_nothing_crosses() {
    let tree: Value = serde_json::from_str(&Form::Perfetto.render(&run()).unwrap()).unwrap();
    let all = tree["traceEvents"].as_array().unwrap();
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap();
    let mut rows: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for e in all.iter().filter(|e| e["ph"] == "X") {
        let row = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
        rows.entry(row).or_default().push((number(e, "ts"), number(e, "ts") + number(e, "dur")));
    }
    for (row, spans) in &rows {
        for (i, a) in spans.iter().enumerate() {
            for b in &spans[i + 1..] {
                let apart = a.1 <= b.0 || b.1 <= a.0;
                let inside = (a.0 <= b.0 && b.1 <= a.1) || (b.0 <= a.0 && a.1 <= b.1);
                assert!(apart || inside, "{row:?}: {a:?} crosses {b:?}");
            }
        }
    }
    let calls = all.iter().filter(|e| e["ph"] == "X" && e["name"] == "RunPodSandbox");
    assert_eq!(calls.clone().count(), 3 * 6, "of each trial that has a log");
    // Microseconds from the begin of the run: 1002 ms on a clock that showed 900 ms then.
    assert!(calls.clone().any(|e| number(e, "ts") == 102_000.0 && number(e, "dur") == 3000.0), "{tree}");
    assert!(all.iter().any(|e| e["ph"] == "M" && e["args"]["name"] == format!("Pod {EVIL}: cri (2)")), "{tree}");
}

#[test]
fn otlp_has_a_trace_for_each_trial_whose_spans_have_parents_and_lie_inside_them() {
    let tree: Value = serde_json::from_str(&Form::Otlp.render(&run()).unwrap()).unwrap();
    let resource = &tree["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "podlab");
    let scopes = resource["scopeSpans"].as_array().unwrap();
    assert_eq!(scopes.len(), 6, "one that was not played has none");
    let mut traces = std::collections::BTreeSet::new();
    for scope in scopes {
        let spans = scope["spans"].as_array().unwrap();
        let hex =
            |v: &Value, n: usize| v.as_str().is_some_and(|s| s.len() == n && s.bytes().all(|b| b.is_ascii_hexdigit()));
        let time = |s: &Value, key: &str| s[key].as_str().unwrap().parse::<u64>().unwrap();
        traces.insert(spans[0]["traceId"].as_str().unwrap());
        for s in spans {
            assert!(hex(&s["traceId"], 32) && hex(&s["spanId"], 16) && s["traceId"] == spans[0]["traceId"]);
            assert_eq!(spans.iter().filter(|o| o["spanId"] == s["spanId"]).count(), 1, "an id is of one span");
            let (from, to) = (time(s, "startTimeUnixNano"), time(s, "endTimeUnixNano"));
            assert!(1_700_000_000_000_000_000 < from && from <= to, "{s}");
            match spans.iter().find(|p| p["spanId"] == s["parentSpanId"]) {
                Some(p) => assert!(time(p, "startTimeUnixNano") <= from, "{s} begins before {p}"),
                None => assert_eq!(s["spanId"], spans[0]["spanId"], "only the trial has no parent"),
            }
        }
        assert!(spans.iter().any(|s| s["name"] == "cri RunPodSandbox" && s["status"]["code"] == 2), "{scope}");
        assert!(spans.iter().any(|s| s["name"] == "when[1]"));
    }
    assert_eq!(traces.len(), 6);
    let again: Value = serde_json::from_str(&Form::Otlp.render(&run()).unwrap()).unwrap();
    assert_eq!(again, tree, "sent twice it is one trace");
    assert_eq!(podlab_reports::otlp_requests(&run()).unwrap().len(), 6);
}

#[test]
fn a_summary_tells_what_did_not_pass_and_stays_small() {
    let mut run = run();
    let text = Form::Markdown.render(&run).unwrap();
    for word in ["## ❌ e2e", "### What did not pass", "a/fails\\[k=\"v\"\\]", "log & more", "| slowest |"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let long = "x\n".repeat(100_000);
    run.trials = (0..200)
        .map(|i| Trial {
            name: format!("t/{i}"),
            verdict: Verdict::Failed { step: "then[1]".into(), why: long.clone(), context: format!("````\n{long}") },
            ..Trial::default()
        })
        .collect();
    let text = Form::Markdown.render(&run).unwrap();
    assert!(text.len() < 1 << 20 && text.contains("and 170 more, in the report"), "{} bytes", text.len());
    assert!(text.contains("\n`````\n````\n"), "the fence is longer than what is inside");
}
