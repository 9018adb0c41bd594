//! What is refused, and how it is said.

mod acts;
mod language;
mod noop;
mod typos;
mod workload;

use std::path::Path;

use crate::{LoadError, parse};

const GOOD: &str = "apiVersion: podlab/v1
kind: Scenario
intent: A Pod becomes Ready.
given:
- apply: {yaml: 'kind: Pod'}
then:
- eventually: {match: {pod: a, condition: Ready}, within: 10s}
";

fn error(text: &str) -> String {
    match parse(text, Path::new("x.yaml")) {
        Err(e @ LoadError::Invalid { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_one_is_read() {
    let scenario = parse(GOOD, Path::new("x.yaml")).unwrap();
    assert_eq!(scenario.steps().count(), 2);
}

#[test]
fn an_unknown_key_a_bad_type_and_a_bad_duration_point_at_their_line() {
    for (from, to, line, word) in [
        ("intent:", "intention:", "3:", "intention"),
        ("within: 10s", "within: soon", "7:", "duration"),
        ("condition: Ready", "condition: [1]", "7:", ""),
        ("eventually:", "eventualy:", "7:", "eventualy"),
        ("kind: Scenario", "kind: Scenery", "2:", "Scenery"),
    ] {
        let text = error(&GOOD.replace(from, to));
        assert!(text.contains(line) && text.contains(word), "{to}: {text}");
    }
}

#[test]
fn what_demands_nothing_is_refused() {
    assert!(error(&GOOD.replace(", condition: Ready", "")).contains("then[1]: eventually.match demands nothing"));
    let no_then = GOOD.split("then:").next().unwrap();
    assert!(error(no_then).contains("then must demand something"));
}

#[test]
fn a_missing_file_and_an_alias_bomb_are_refused_at_once() {
    assert!(error(&GOOD.replace("yaml: 'kind: Pod'", "file: nope.yaml")).contains("not a file beside the scenario"));
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for i in 1..10 {
        let refs = vec![format!("*a{}", i - 1); 9].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
    }
    assert!(!error(&format!("{bomb}{GOOD}")).is_empty());
}

const FAULTY: &str = "apiVersion: podlab/v1
kind: Scenario
intent: A Pod becomes Ready.
requires: [fault.cri]
faults:
- {id: f, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}, must: {fired: 1}}
then:
- eventually: {match: {pod: a, condition: Ready}, within: 10s}
";

#[test]
fn a_fault_that_cannot_fire_or_whose_absence_nobody_would_notice_is_refused() {
    parse(FAULTY, Path::new("x.yaml")).unwrap();
    for (from, to, words) in [
        ("StartContainer", "StartContainers", "at.cri has no \"StartContainers\""),
        (", must: {fired: 1}", "", "must.fired has to say"),
        ("fault.cri", "fault.cni", "requires must list fault.cri"),
        ("must:", "when: {nth: [0]}, must:", "counts from 1"),
        ("cri: {method: StartContainer}", "csi: {method: CreateVolume}", "at.csi has no"),
    ] {
        let text = error(&FAULTY.replace(from, to));
        assert!(text.contains("faults.f") && text.contains(words), "{to}: {text}");
    }
}

#[test]
fn an_effect_where_it_means_nothing_and_a_caller_that_does_not_exist_are_refused() {
    let faulty = |fault: &str| {
        let from = "{id: f, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}, must: {fired: 1}}";
        FAULTY.replace(from, fault).replace("[fault.cri]", "[fault.cri, fault.api, node.agent]")
    };
    let api = |verb: &str, more: &str, effect: &str| {
        format!("{{id: f, at: {{api: {{verb: {verb}, resource: pods{more}}}}}, effect: {effect}, must: {{fired: 1}}}}")
    };
    let by = ", client: node-1";
    for good in [
        api("watch", by, "{truncate: {after: 3}}"),
        api("watch", by, "{slowTrickle: {ms: 10}}"),
        api("get", by, "stale"),
        api("list", ", client: controllers", "stale"),
        api("create", ", client: scheduler", "duplicate"),
        api("patch", by, "{crashAt: {point: after, downMs: 100}}"),
        api("patch", by, "{dropRequest: {msg: lost}}").replace("fired: 1", "fired: 1, healedBy: 10s"),
    ] {
        parse(&faulty(&good), Path::new("x.yaml")).unwrap_or_else(|e| panic!("{good}: {e}"));
    }
    for (bad, words) in [
        (api("get", by, "{truncate: {after: 3}}"), "truncate needs a stream"),
        (api("get", by, "{slowTrickle: {ms: 3}}"), "slowTrickle needs a stream"),
        (api("patch", by, "stale"), "stale needs a read"),
        (api("watch", by, "duplicate"), "duplicate of a stream"),
        (api("fetch", by, "{delay: {ms: 3}}"), "there is no \"fetch\""),
        (api("get", ", client: node-2", "{delay: {ms: 3}}"), "there is no \"node-2\""),
        (api("get", ", client: schedular", "{delay: {ms: 3}}"), "scheduler"),
        (api("get", "", "{delay: {ms: 3}}"), "at.api.client has to be said"),
        (api("get", ", client: scheduler", "{crashAt: {point: after, downMs: 1}}"), "crashAt kills a node's agent"),
        (api("get", by, "{delay: {ms: 3}}").replace("fired: 1", "fired: 0, healedBy: 1s"), "healedBy demands nothing"),
        (api("get", by, "{delay: {ms: 3}}").replace("fired: 1", "fired: 1, healedBy: soon"), "duration"),
    ] {
        let text = error(&faulty(&bad));
        assert!(text.contains(words), "{bad}: {text}");
    }
    let no_agent = api("patch", by, "{crashAt: {point: after, downMs: 100}}");
    assert!(error(&faulty(&no_agent).replace(", node.agent", "")).contains("requires must list node.agent"));
    let both =
        faulty("{id: f, at: {cni: {command: ADD}}, effect: {crashAt: {point: after, downMs: 9}}, must: {fired: 1}}");
    assert!(error(&both.replace("requires:", "clock: both\nrequires:")).contains("needs `clock: real`"));
}

#[test]
fn a_tape_is_played_in_the_virtual_world_and_lies_beside_its_scenario() {
    let with = |clock: &str, tape: &str| {
        format!("{GOOD}- replay: {{tape: {tape}}}\n").replace("given:", &format!("clock: {clock}\ngiven:"))
    };
    assert!(error(&with("real", "a.jsonl")).contains("replay needs `clock: virtual`"));
    assert!(error(&with("virtual", "a.jsonl")).contains("\"a.jsonl\" is not a file beside the scenario"));
    assert!(error(&with("virtual", "../a.jsonl")).contains("not a file beside"));
}

#[test]
fn a_seam_can_be_recorded_once_and_on_real_containers_alone() {
    let with = |record: &str, clock: &str| GOOD.replace("given:", &format!("record: {record}\nclock: {clock}\ngiven:"));
    for clock in ["real", "both"] {
        parse(&with("[cri, csi]", clock), Path::new("x.yaml")).unwrap();
    }
    assert!(error(&with("[cri]", "virtual")).contains("record: it needs real containers"));
    assert!(error(&with("[csi, csi]", "real")).contains("record: it names a seam twice"));
    assert!(error(&with("[cni]", "real")).contains("cni"));
}

#[test]
fn the_schema_beside_the_scenarios_is_the_one_of_these_types_and_every_file_points_to_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let kept = std::fs::read_to_string(root.join(crate::SCHEMA_FILE)).unwrap_or_default();
    assert!(kept == crate::schema(), "write it anew: podlab schema > scenarios/{}", crate::SCHEMA_FILE);
    let steps = std::fs::read_to_string(root.join(crate::LIBRARY_SCHEMA_FILE)).unwrap_or_default();
    let how = format!("write it anew: podlab schema --steps > scenarios/{}", crate::LIBRARY_SCHEMA_FILE);
    assert!(steps == crate::library_schema(), "{how}");
    for (name, path) in crate::discover(&root).unwrap() {
        let up = "../".repeat(name.matches('/').count());
        let first = std::fs::read_to_string(path).unwrap().lines().next().map(str::to_owned);
        assert_eq!(first, Some(format!("# yaml-language-server: $schema={up}{}", crate::SCHEMA_FILE)), "{name}");
    }
}

#[test]
fn every_step_of_every_scenario_has_a_sentence_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    for (name, path) in crate::discover(&root).unwrap() {
        let scenario = crate::load(&path).unwrap();
        scenario.walk(&mut |at, step| {
            let sentence = crate::sentence(step);
            let whole = sentence.ends_with(['.', ':']) && !sentence.contains(" .") && !sentence.contains(" ,");
            assert!(whole && sentence.len() >= 8, "{name} {at}: {sentence:?}");
        });
    }
}

#[test]
fn an_explanation_has_a_sentence_for_every_fault_and_step() {
    let scenario = parse(FAULTY, Path::new("x.yaml")).unwrap();
    let text = crate::explain("a/b", &scenario);
    assert!(text.starts_with("# a/b\n\nA Pod becomes Ready.\n"), "{text}");
    assert!(
        text.contains("- Every CRI StartContainer is made 5 ms late; that must happen 1 times (fault `f`)."),
        "{text}"
    );
    assert!(text.contains("1. Within 10 s, Pod a has Ready=True."), "{text}");
}

#[test]
fn a_list_of_events_is_about_one_object_and_not_empty() {
    let with = |events: &str| format!("{GOOD}- events: {events}\n");
    let one = "{type: Normal, reason: Started, message: Container started}";
    let good = parse(&with(&format!("{{pod: a, are: [{one}]}}")), Path::new("x.yaml")).unwrap();
    assert!(crate::explain("x", &good).contains("The events of Pod a are, in order: Started (Container started)."));
    for (events, words) in [
        (format!("{{are: [{one}]}}"), "exactly one of pod and about"),
        ("{pod: a, are: []}".to_owned(), "shows nothing"),
        ("{pod: a, are: [{type: Normal, reason: R, message: m, count: 1, atLeast: 1}]}".to_owned(), "not both"),
        ("{pod: a, are: [{type: Odd, reason: R, message: m}]}".to_owned(), "Odd"),
    ] {
        let text = error(&with(&events));
        assert!(text.contains(words), "{events}: {text}");
    }
}
