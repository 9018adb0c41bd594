//! Each lint finds what its bad example has, and nothing in its good one; and nothing in the scenarios of this repository.

use std::{collections::BTreeMap, path::Path};

use super::{LINTS, lint, same_intent};
use crate::{Scenario, discover, load_all, parse_all};

fn read(text: &str) -> Result<Vec<Scenario>, String> {
    let all = parse_all(text, Path::new("x.yaml"), &BTreeMap::new());
    all.map(|all| all.into_iter().map(|(_, s)| s).collect()).map_err(|e| e.to_string())
}

#[test]
fn each_lint_finds_its_bad_example_and_nothing_in_its_good_one() {
    for l in LINTS {
        let good = read(l.good).unwrap_or_else(|e| panic!("{}: {e}", l.id));
        assert_eq!(lint(&good), [], "{}", l.id);
        match read(l.bad) {
            Err(_) => assert!(l.refused, "{}: its bad example is refused, not found", l.id),
            Ok(bad) => {
                assert!(!l.refused, "{}: it says that its bad example is refused", l.id);
                let ids: Vec<&str> = lint(&bad).iter().map(|f| f.lint).collect();
                assert_eq!(ids, [l.id], "its bad example has this and nothing else");
            }
        }
        assert!(!l.what.is_empty() && !l.why.is_empty());
    }
    assert!(LINTS.is_sorted_by_key(|l| l.id), "for whoever looks one up");
}

#[test]
fn what_is_allowed_is_not_found_and_an_allowance_of_nothing_is() {
    let bad = LINTS.iter().find(|l| l.id == "sleep").unwrap().bad;
    let allowed = bad.replace("when:", "allow: [{lint: sleep, because: the test of allowing}]\nwhen:");
    assert_eq!(lint(&read(&allowed).unwrap()), []);
    let mistyped = read(&allowed.replace("lint: sleep", "lint: slep")).unwrap();
    let ids: Vec<&str> = lint(&mistyped).iter().map(|f| f.lint).collect();
    assert_eq!(ids, ["sleep", "idle-allow"]);
}

#[test]
fn the_scenarios_of_this_repository_have_none_and_say_different_things() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut all = Vec::new();
    let mut wrong = Vec::new();
    for (name, path) in discover(&root).unwrap() {
        let variants: Vec<Scenario> =
            load_all(&path, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}")).into_iter().map(|(_, s)| s).collect();
        let first = variants[0].clone();
        wrong.extend(
            lint(&variants).into_iter().map(|f| first.origin.render(&f.path, &format!("[{}] {}", f.lint, f.text))),
        );
        all.push((name, first));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let same = same_intent(all.iter().map(|(n, s)| (n.as_str(), s)));
    assert!(same.is_empty(), "files of the same intent: {same:?}");
}
