//! What a report says, and that nothing in it can break out of it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;
use podlab_reports::{Run, Trial, Verdict, write_all};
use podlab_timeline::{PodKey, PodTimeline, Stage};

fn run() -> Run {
    let mut timeline = PodTimeline::default();
    let stages =
        [Stage::Accepted, Stage::Popped, Stage::Bound, Stage::Observed, Stage::Started, Stage::Ready, Stage::Seen];
    for (i, stage) in stages.into_iter().enumerate() {
        timeline.stages.insert(stage, Mono(1_000_000 * u64::try_from(i).unwrap()));
    }
    let key = PodKey { namespace: "default".into(), name: "<b>pod".into(), uid: "u".into() };
    let failed =
        Verdict::Failed { step: "then[1]".into(), why: "expected <1>, actual 2".into(), context: "log & more".into() };
    let trial = |name: &str, verdict| Trial {
        name: name.into(),
        intent: "it <holds>".into(),
        verdict,
        duration: Duration::from_millis(900),
        boot: Duration::from_millis(300),
        timelines: BTreeMap::from([(key.clone(), timeline.clone())]),
    };
    Run {
        suite: "e2e".into(),
        duration: Duration::from_secs(1),
        environment: BTreeMap::from([("kernel".into(), "6.1".into())]),
        trials: vec![trial("a/passes", Verdict::Passed), trial("a/fails", failed)],
    }
}

#[test]
fn all_three_forms_agree_on_the_verdicts_and_escape_what_they_quote() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&run(), dir.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (junit, html) = (read("junit.xml"), read("report.html"));
    assert!(junit.contains("tests=\"2\"") && junit.contains("failures=\"1\""), "{junit}");
    assert!(
        html.contains("1 passed, 1 failed") && html.contains("&lt;b&gt;pod") && !html.contains("<b>pod"),
        "escaped"
    );
    assert!(!html.contains("http://") && !html.contains("https://"), "the page stands alone");
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!((json["passed"].as_u64(), json["failed"].as_u64()), (Some(1), Some(1)));
    let startup = &json["trials"][0]["pods"][0]["startup"];
    let sum: u64 = startup["phases"].as_array().unwrap().iter().map(|p| p["us"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), startup["totalUs"].as_u64(), "phases sum to the total");
    assert_eq!(run().exit_code(false), 1);
}
