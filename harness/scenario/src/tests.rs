//! What is refused, and how it is said.

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
