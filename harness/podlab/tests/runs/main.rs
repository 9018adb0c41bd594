//! Runs of trials as a user and CI hold them: what is chosen, what the exit code says, what is left when the runner is ended or
//! killed. Played in the virtual world, so that nothing is needed of the host.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod meta;
mod reports;
mod support;

use std::fs;

use crate::support::{POD, READY, begin, command, e2e, fails, folder, passes, said, scenario, slow, verdict};

#[test]
fn the_exit_code_says_what_the_worst_trial_came_to() {
    let unfired =
        "faults:\n- {id: f, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}, must: {fired: 7}}\n";
    let dir = folder(&[
        ("passes", passes()),
        ("fails", fails()),
        (
            "breaks",
            scenario("A Pod is Ready, its cleanup is not.", &format!("{POD}{READY}cleanup:\n- delete: {{pod: b}}\n")),
        ),
        ("invalid", scenario("A fault fires seven times, which is not so.", &format!("{unfired}{POD}{READY}"))),
    ]);
    for (names, code) in [
        (&["passes"][..], 0),
        (&["fails", "breaks", "invalid", "passes"], 1),
        (&["breaks", "invalid", "passes"], 2),
        (&["invalid", "passes"], 3),
        (&["no-such-trial"], 2),
    ] {
        let o = e2e(dir.path(), names);
        assert_eq!(o.status.code(), Some(code), "{names:?}: {}", said(&o));
    }
    e2e(dir.path(), &[]);
    for (name, word) in [("passes", "passed"), ("fails", "failed"), ("breaks", "broken"), ("invalid", "invalid")] {
        assert_eq!(verdict(dir.path(), &format!("t/{name}")), word);
    }
}

#[test]
fn a_quarantine_excuses_a_failure_until_its_day_and_has_to_be_right() {
    let dir = folder(&[("fails", fails())]);
    let entry = |expires: &str, name: &str| {
        let text = format!(
            "apiVersion: podlab/v1\nkind: Quarantine\nentries:\n- {{scenario: {name}, owner: me, reason: it races, expires: {expires}}}\n"
        );
        fs::write(dir.path().join("s/quarantine.yaml"), text).unwrap();
    };
    entry("9999-01-01", "t/fails");
    let o = e2e(dir.path(), &[]);
    // Nothing was judged: that is not a success.
    assert_eq!(o.status.code(), Some(5), "{}", said(&o));
    assert_eq!(verdict(dir.path(), "t/fails"), "quarantined");
    entry("2020-01-01", "t/fails");
    let o = e2e(dir.path(), &[]);
    assert!(
        o.status.code() == Some(1) && said(&o).contains("the quarantine of t/fails ended on 2020-01-01"),
        "{}",
        said(&o)
    );
    entry("9999-01-01", "t/gone");
    assert_eq!(e2e(dir.path(), &[]).status.code(), Some(2));
}

#[test]
fn trials_are_listed_and_chosen_without_playing_any() {
    let dir = folder(&[
        ("a", passes()),
        ("b", fails()),
        ("m", scenario("One for each.", &format!("matrix: {{n: [1, 2]}}\nbudget: \"${{matrix.n}}h\"\n{POD}{READY}"))),
    ]);
    let list = |more: &[&str]| {
        let mut args = vec!["--list"];
        args.extend(more);
        let o = e2e(dir.path(), &args);
        assert!(!dir.path().join("out").exists(), "listing plays nothing");
        String::from_utf8_lossy(&o.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list(&[]), ["t/a", "t/b", "t/m[n=1]", "t/m[n=2]"]);
    assert_eq!(list(&["m[n=2]", "t/a"]), ["t/a", "t/m[n=2]"]);
    assert_eq!(list(&["--tag", "quick"]), ["t/a"]);
    assert_eq!(list(&["--filter", "intent.contains('not so')"]), ["t/b"]);
    assert_eq!([list(&["--shard", "1/3"]), list(&["--shard", "2/3"]), list(&["--shard", "3/3"])].concat().len(), 4);
    let json: serde_json::Value = serde_json::from_str(&list(&["--format", "json", "t/a"]).join("\n")).unwrap();
    assert_eq!(json[0]["trial"], "t/a");
    for bad in [["--shard", "4/3"], ["--filter", "nam == 'x'"], ["--param", "x=1"]] {
        assert_eq!(e2e(dir.path(), &bad).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn a_run_stops_where_it_is_told_to_and_goes_on_with_what_failed() {
    let dir = folder(&[("a", passes()), ("b", fails()), ("c", passes().replace("and passes", "too"))]);
    let o = e2e(dir.path(), &["--fail-fast", "-j", "1"]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    assert_eq!((verdict(dir.path(), "t/b").as_str(), verdict(dir.path(), "t/c").as_str()), ("failed", "skipped"));
    let o = e2e(dir.path(), &["--failed", "--format", "json"]);
    let lines: Vec<serde_json::Value> =
        String::from_utf8_lossy(&o.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.first().unwrap()["trials"][0]["trial"], "t/b");
    assert_eq!(lines.iter().filter(|l| l["event"] == "trialEnd").count(), 1, "{lines:?}");
    // Played again it fails again: a retry excuses nothing.
    let o = e2e(dir.path(), &["t/b", "--retries", "2", "--format", "json"]);
    let ends = String::from_utf8_lossy(&o.stdout).lines().filter(|l| l.contains("\"trialEnd\"")).count();
    assert_eq!((o.status.code(), ends), (Some(1), 3));
    let o = e2e(dir.path(), &["t/a", "t/b", "--until-fail"]);
    assert!(o.status.code() == Some(1) && !said(&o).contains("round 2"), "{}", said(&o));
    fs::write(dir.path().join("s/t/b.yaml"), passes().replace("and passes", "at last")).unwrap();
    assert_eq!(e2e(dir.path(), &["--failed"]).status.code(), Some(0));
    assert!(said(&e2e(dir.path(), &["--failed"])).contains("nothing failed last time"));
}

#[test]
fn a_runner_that_is_killed_leaves_results_that_a_report_is_made_of() {
    let dir = folder(&[("a", passes()), ("b", slow()), ("c", fails())]);
    let mut child = begin(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!dir.path().join("out/report.json").exists(), "it was killed before it could report");
    let o = command(dir.path(), &["report", "out"]).output().unwrap();
    assert_eq!(o.status.code(), Some(2), "{}", said(&o));
    let words = ["a", "b", "c"].map(|t| verdict(dir.path(), &format!("t/{t}")));
    assert_eq!(words, ["passed", "broken", "skipped"]);
    let junit = fs::read_to_string(dir.path().join("out/junit.xml")).unwrap();
    assert!(junit.contains("tests=\"3\"") && junit.contains("the run ended before this trial did"), "{junit}");
}

#[test]
fn somebody_who_ends_a_run_gets_its_cleanup_and_its_report() {
    let dir = folder(&[("a", passes()), ("b", slow()), ("c", fails())]);
    let child = begin(dir.path());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(130), "{}", said(&o));
    let words = ["a", "b", "c"].map(|t| verdict(dir.path(), &format!("t/{t}")));
    assert_eq!(words, ["passed", "broken", "skipped"]);
    let log = fs::read_to_string(dir.path().join("out/t/b/run.jsonl")).unwrap();
    let done = |line: &str| {
        let run = serde_json::from_str::<serde_json::Value>(line).unwrap()["event"]["run"].clone();
        run["step"] == "cleanup[1]" && run["state"] == "done"
    };
    assert!(log.lines().any(done), "its cleanup is in its log");
}

#[test]
fn a_report_made_again_is_the_report_of_the_run() {
    let dir = folder(&[("a", passes()), ("b", fails())]);
    e2e(dir.path(), &[]);
    let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    let names = ["junit.xml", "report.json", "report.html", "summary.md"];
    let before = names.map(read);
    let o = command(dir.path(), &["report", "out/session.jsonl"]).output().unwrap();
    assert_eq!(o.status.code(), Some(1));
    for (name, old) in names.iter().zip(before) {
        assert!(old == read(name), "{name}");
    }
    assert_eq!(command(dir.path(), &["report", "nowhere"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn lint_says_what_it_finds_in_words_and_for_programs() {
    let dir = folder(&[
        ("a", passes()),
        ("b", passes()),
        ("c", scenario("Nothing holds.", "then: [{leakFree: []}]\nwhn: 1\n")),
    ]);
    let lint = |more: &[&str]| {
        let mut args = vec!["lint", "s"];
        args.extend(more);
        command(dir.path(), &args).output().unwrap()
    };
    let o = lint(&[]);
    let text = said(&o);
    assert_eq!(o.status.code(), Some(1));
    for word in ["s/t/c.yaml:6:1: there is no key \"whn\"", "[same-intent] intent: t/a has the same intent"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&lint(&["--format", "json"]).stdout).unwrap();
    assert!(
        json["findings"].as_array().unwrap().iter().any(|f| f["lint"] == "same-intent" && f["line"] == 4),
        "{json}"
    );
    fs::remove_file(dir.path().join("s/t/b.yaml")).unwrap();
    fs::remove_file(dir.path().join("s/t/c.yaml")).unwrap();
    assert_eq!(lint(&[]).status.code(), Some(0), "{}", said(&lint(&[])));
    assert!(said(&lint(&["--list"])).contains("unknown-pod"));
    assert!(said(&lint(&["--explain", "sleep"])).contains("It is content with:"));
    assert_eq!(lint(&["--explain", "slep"]).status.code(), Some(2));
}

#[test]
fn docs_have_every_scenario_and_every_lint() {
    let dir = folder(&[("a", passes()), ("b", fails())]);
    let o = command(dir.path(), &["docs", "--scenarios", "s", "--out", "docs"]).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", said(&o));
    let read = |name: &str| fs::read_to_string(dir.path().join("docs").join(name)).unwrap();
    assert!(read("README.md").contains("- `t/b` (virtual world): A Pod fails, which is not so."));
    assert!(read("t.md").contains("# t/a\n\nA Pod becomes Ready and passes."));
    assert!(read("lints.md").contains("## wait-within-grace"));
}

#[test]
fn a_new_scenario_passes_as_it_is_and_brings_what_an_editor_needs() {
    let dir = tempfile::tempdir().unwrap();
    let o = command(dir.path(), &["new", "probes/mine", "--scenarios", "s"]).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", said(&o));
    let file = dir.path().join("s/probes/mine.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let schema = text.lines().next().unwrap().split("$schema=").nth(1).unwrap();
    let schema = fs::read_to_string(file.parent().unwrap().join(schema)).unwrap();
    assert!(schema.contains("\"title\": \"Podlab scenario v1\""));
    fs::write(&file, text.replacen("kind: Scenario", "kind: Scenario\nclock: virtual", 1)).unwrap();
    let o = e2e(dir.path(), &[]);
    assert_eq!(o.status.code(), Some(0), "{}", said(&o));
    let again = command(dir.path(), &["new", "probes/mine", "--scenarios", "s"]).output().unwrap();
    assert!(again.status.code() == Some(2) && said(&again).contains("mine.yaml"), "{}", said(&again));
}
