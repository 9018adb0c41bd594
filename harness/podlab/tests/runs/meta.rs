//! The runner itself: whatever the outcomes, the exit code, the report and the log say the same; whatever moment it is killed
//! at, what was known is known.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use crate::support::{POD, READY, begin, command, e2e, fails, folder, passes, report, said, scenario, verdict};

const UNFIRED: &str =
    "faults:\n- {id: f, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}, must: {fired: 7}}\n";

/// One scenario for each outcome that needs no second attempt: its name, its verdict, its exit code alone.
fn each() -> [(&'static str, &'static str, i32, String); 5] {
    let cleanup = format!("{POD}{READY}cleanup:\n- delete: {{pod: b}}\n");
    [
        ("fails", "failed", 1, fails()),
        ("breaks", "broken", 2, scenario("A Pod is Ready, its cleanup is not.", &cleanup)),
        ("invalid", "invalid", 3, scenario("A fault fires seven times.", &format!("{UNFIRED}{POD}{READY}"))),
        ("passes", "passed", 0, passes()),
        ("excused", "quarantined", 5, fails().replace("A Pod fails", "An excused Pod fails")),
    ]
}

/// Every combination of outcomes, with flags that change by turns: the worst decides, and everything that tells it agrees.
#[test]
fn the_exit_code_is_the_verdict_in_every_combination_and_every_form_says_the_same() {
    let all = each();
    let files: Vec<(&str, String)> = all.iter().map(|(name, .., text)| (*name, text.clone())).collect();
    let dir = folder(&files);
    let excuse = "{scenario: t/excused, owner: me, reason: it races, expires: 9999-01-01}";
    let text = format!("apiVersion: podlab/v1\nkind: Quarantine\nentries:\n- {excuse}\n");
    fs::write(dir.path().join("s/quarantine.yaml"), text).unwrap();
    let flags: [&[&str]; 4] = [&[], &["--flaky-fails"], &["--format", "json"], &["--retries", "1", "-j", "3"]];
    for set in 1..1usize << all.len() {
        let chosen: Vec<usize> = (0..all.len()).filter(|i| set >> i & 1 == 1).collect();
        let names: Vec<String> = chosen.iter().map(|i| format!("t/{}", all[*i].0)).collect();
        let mut args: Vec<&str> = names.iter().map(String::as_str).collect();
        args.extend(flags[set % flags.len()]);
        let o = e2e(dir.path(), &args);
        // In this order the first that is there decides; a run of excuses judged nothing.
        let expected = chosen.iter().map(|i| all[*i].2).find(|code| *code != 5).unwrap_or(5);
        assert_eq!(o.status.code(), Some(expected), "{args:?}: {}", said(&o));
        let told: BTreeMap<String, String> = report(dir.path())["trials"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| (t["name"].as_str().unwrap().to_owned(), t["verdict"].as_str().unwrap().to_owned()))
            .collect();
        let wanted = chosen.iter().map(|i| (format!("t/{}", all[*i].0), all[*i].1.to_owned())).collect();
        assert_eq!(told, wanted, "{args:?}");
        let again = command(dir.path(), &["report", "out"]).output().unwrap();
        assert_eq!(again.status.code(), Some(expected), "a report made again says the same: {args:?}");
        let junit = fs::read_to_string(dir.path().join("out/junit.xml")).unwrap();
        let (bad, errors) = (junit.matches("<failure ").count(), junit.matches("<error ").count());
        let count = |word: &str| told.values().filter(|w| *w == word).count();
        assert_eq!((bad, errors), (count("failed"), count("broken") + count("invalid")), "{args:?}");
    }
}

/// A trial that fails until a file beside it is another one passes in the end, and is flaky whichever attempt that was.
#[test]
fn a_trial_that_passes_only_when_it_is_played_again_is_flaky_everywhere_it_is_told() {
    let pod = |image: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, image: \"registry.test/{image}\", command: [serve]}}]}}}}\n"
        )
    };
    let text = scenario("A Pod becomes Ready some day.", &format!("when:\n- apply: {{file: _pods/pod.yaml}}\n{READY}"));
    let dir = folder(&[("a", text)]);
    let file = dir.path().join("s/t/_pods/pod.yaml");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, pod("nothing:1")).unwrap();
    let args = ["e2e", "--scenarios", "s", "--out", "out", "--retries", "500", "--flaky-fails"];
    let run = command(dir.path(), &args).spawn().unwrap();
    wait_for(&dir.path().join("out/session.jsonl"), |log| log.contains("\"trialEnd\""));
    let new = dir.path().join("new.yaml");
    fs::write(&new, pod("testimage:1")).unwrap();
    fs::rename(&new, &file).unwrap();
    let o = run.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(4), "{}", said(&o));
    assert_eq!(verdict(dir.path(), "t/a"), "flaky");
    for (flags, code) in [(&[][..], 0), (&["--flaky-fails"], 4)] {
        let args = [&["report", "out"], flags].concat();
        assert_eq!(command(dir.path(), &args).output().unwrap().status.code(), Some(code), "{flags:?}");
    }
    let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert!(read("junit.xml").contains("<flakyFailure type=\"flaky\""), "{}", read("junit.xml"));
    assert!(read("summary.md").contains("| flaky |"), "{}", read("summary.md"));
}

/// Returns when a file says something.
fn wait_for(file: &Path, says: impl Fn(&str) -> bool) {
    let clock = podlab_clock::Clock::real();
    let deadline = clock.now().after(std::time::Duration::from_secs(120));
    while !says(&fs::read_to_string(file).unwrap_or_default()) {
        assert!(clock.now() < deadline, "{} never said it", file.display());
        std::thread::yield_now();
    }
}

/// Kills runs at moments a seed chooses: at some byte of the log, wherever in it. `PODLAB_KILLED_RUNS` says how many.
#[test]
fn whatever_moment_a_runner_is_killed_at_its_log_gives_a_report_of_what_was_known() {
    let runs = std::env::var("PODLAB_KILLED_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(8u64);
    let names = ["a", "b", "c", "d", "e", "f"];
    let text = |n: &str| if n < "d" { passes().replace("and passes", n) } else { fails().replace("Pod fails", n) };
    let files: Vec<(&str, String)> = names.iter().map(|n| (*n, text(n))).collect();
    let dir = folder(&files);
    let log = dir.path().join("out/session.jsonl");
    // How long a log becomes that nobody cuts off.
    e2e(dir.path(), &[]);
    let whole = fs::metadata(&log).unwrap().len();
    let mut seed = 42u64;
    for run in 0..runs {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 33) % whole;
        let _ = fs::remove_dir_all(dir.path().join("out"));
        let args = ["e2e", "--scenarios", "s", "--out", "out", "--seed", "1", "-j", "2"];
        let mut child = command(dir.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let length = || fs::metadata(&log).map(|m| m.len()).unwrap_or(0);
        while length() <= at && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        // Only what it had not reported may be lost.
        let over = dir.path().join("out/report.json").exists();
        child.kill().unwrap();
        child.wait().unwrap();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let o = command(dir.path(), &["report", "out"]).output().unwrap();
        if !text.contains('\n') {
            assert_eq!(o.status.code(), Some(2), "run {run}: no run begins in it: {}", said(&o));
            continue;
        }
        let lines: Vec<serde_json::Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        let of = |event: &str| -> BTreeSet<String> {
            let all = lines.iter().filter(|l| l["event"] == event);
            all.map(|l| l["trial"].as_str().unwrap().to_owned()).collect()
        };
        let (begun, ended) = (of("trialBegin"), of("trialEnd"));
        for n in names {
            let trial = format!("t/{n}");
            let wanted = match (begun.contains(&trial), ended.contains(&trial)) {
                (_, true) if n < "d" => "passed",
                (_, true) => "failed",
                (true, false) => "broken",
                (false, false) => "skipped",
            };
            assert_eq!(verdict(dir.path(), &trial), wanted, "run {run}, killed at byte {at}, {over}");
        }
        let code = match () {
            () if ended.iter().any(|t| t.as_str() >= "t/d") => 1,
            () if begun.len() > ended.len() => 2,
            () if ended.is_empty() => 5,
            () => 0,
        };
        assert_eq!(o.status.code(), Some(code), "run {run}, killed at byte {at}: {}", said(&o));
    }
}

/// Once, and its cleanup is done; twice, and nothing more is.
#[test]
fn somebody_who_ends_a_run_twice_ends_it_at_once_and_keeps_what_was_known() {
    let long = "cleanup:\n- repeat: {times: 1000, steps: [{pause: {duration: 1h, because: it takes long}}]}\n";
    let probes = POD
        .replace("command: [serve]", "command: [serve], readinessProbe: {periodSeconds: 1, tcpSocket: {port: 8080}}");
    let wait = "- repeat: {times: 1000, steps: [{pause: {duration: 1h, because: it takes long}}]}\n";
    // A day of probes each second, of more Pods than one: it takes seconds on any machine.
    let budgets = "budget: 24h\nbudgets: {cleanup: 24h}\n";
    let probes =
        ["a", "b", "c", "d", "e"].map(|n| probes.replace("when:\n", "").replace("name: a", &format!("name: {n}")));
    let probes = format!("when:\n{}", probes.concat());
    let slow = scenario("A Pod is cleaned up for a long time.", &format!("{budgets}{probes}{wait}{READY}{long}"));
    let dir = folder(&[("a", passes()), ("b", slow)]);
    let mut child = begin(dir.path());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let interrupt = || nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    interrupt();
    let mut said = String::new();
    // It says that it has heard before it can be asked again.
    let heard = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok).any(|line| {
        said.push_str(&line);
        line.contains("once more to end at once")
    });
    assert!(heard, "{said}");
    interrupt();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let log = fs::read_to_string(dir.path().join("out/session.jsonl")).unwrap();
    assert!(!log.contains("\"event\":\"end\"") && log.matches("\"trialEnd\"").count() == 1, "{log}");
    let o = command(dir.path(), &["report", "out"]).output().unwrap();
    assert_eq!(o.status.code(), Some(2));
    assert_eq!(["a", "b"].map(|t| verdict(dir.path(), &format!("t/{t}"))), ["passed", "broken"]);
}

/// What a server leaves out of what it is given would else be played as something that the file does not say.
#[test]
fn a_field_of_a_manifest_that_is_misspelled_fails_where_it_is_given() {
    let apply = POD.replace("command: [serve]", "comand: [serve]");
    let patch = format!("{POD}- patch: {{kind: Pod, name: a, with: {{metadata: {{label: {{x: y}}}}}}}}\n");
    let create = POD.replace("apply:", "create:").replace("spec: {", "spec: {nodename: x, ");
    let each =
        [("a", apply, "spec.containers[0].comand"), ("b", patch, "metadata.label"), ("c", create, "spec.nodename")];
    let file = |(name, steps, _): &(&'static str, String, &str)| {
        (*name, scenario(&format!("A field is misspelled in {name}."), &format!("{steps}{READY}")))
    };
    let dir = folder(&each.iter().map(file).collect::<Vec<_>>());
    let o = e2e(dir.path(), &[]);
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    for (name, _, field) in each {
        let why = format!("the API did not keep {field}; is it misspelled?");
        assert!(said(&o).contains(&why), "{name}: {why}: {}", said(&o));
    }
}
