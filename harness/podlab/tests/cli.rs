//! The command line on wrong input: one sentence, exit code 2, nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    path::Path,
    process::{Command, Output},
};

fn podlab(args: &[&str], state: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_podlab"))
        .args(args)
        .env("PODLAB_STATE", state)
        .current_dir(state)
        .output()
        .unwrap()
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

#[test]
fn an_unknown_cluster_is_one_sentence_and_exit_2_and_down_is_idempotent() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["logs", "plane"][..],
        &["enter"],
        &["node", "kill", "node-1"],
        &["image", "load", "x.tar"],
        &["image", "push", "x.tar", "registry.test/a:1"],
    ] {
        let o = podlab(args, dir.path());
        assert_eq!(o.status.code(), Some(2), "{args:?}");
        assert!(stderr(&o).contains("there is no cluster \"podlab\""), "{args:?}: {}", stderr(&o));
    }
    for _ in 0..2 {
        assert_eq!(podlab(&["down"], dir.path()).status.code(), Some(0));
    }
}

#[test]
fn a_bad_name_a_bad_size_and_a_missing_archive_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    for (args, word) in [
        (&["up", "--name", "../x"][..], "must be 1 to 40 characters"),
        (&["up", "--node-memory", "much"], "quantity"),
        (&["up", "--nodes", "0"], "nodes"),
        (&["up", "--image-archive", "nope.tar"], "nope.tar"),
        (&["up", "--isolation", "thread"], "not available"),
    ] {
        let o = podlab(args, dir.path());
        assert_eq!(o.status.code(), Some(2), "{args:?}");
        assert!(stderr(&o).contains(word), "{args:?}: {}", stderr(&o));
    }
}

#[test]
fn scenarios_that_cannot_be_used_are_all_named_and_nothing_is_played() {
    let dir = tempfile::tempdir().unwrap();
    let scenarios = dir.path().join("s");
    std::fs::create_dir(&scenarios).unwrap();
    std::fs::write(scenarios.join("a.yaml"), "apiVersion: podlab/v1\nkind: Scenario\nintention: x\n").unwrap();
    std::fs::write(scenarios.join("b.yaml"), "- 1\n").unwrap();
    let o = podlab(&["e2e", "--scenarios", "s"], dir.path());
    let text = stderr(&o);
    assert_eq!(o.status.code(), Some(2));
    assert!(text.contains("a.yaml") && text.contains("b.yaml") && text.contains("2 of the scenario files"), "{text}");
    assert_eq!(podlab(&["lint", "s"], dir.path()).status.code(), Some(1));
    assert_eq!(podlab(&["e2e", "nothing-has-this-name", "--scenarios", "s"], dir.path()).status.code(), Some(2));
}

#[test]
fn a_scenario_that_waits_for_what_cannot_happen_fails_with_what_it_saw() {
    let dir = tempfile::tempdir().unwrap();
    let scenarios = dir.path().join("s/stage");
    std::fs::create_dir_all(&scenarios).unwrap();
    let text = "apiVersion: podlab/v1
kind: Scenario
intent: A Pod that fits no node becomes Ready.
when:
- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeSelector: {no: where}, containers: [{name: c, image: \"registry.test/testimage:1\"}]}}'}
then:
- eventually: {match: {pod: a, condition: Ready}, within: 2s}
";
    std::fs::write(scenarios.join("never.yaml"), text).unwrap();
    let o = podlab(&["e2e", "--scenarios", "s", "--out", "out"], dir.path());
    let said = String::from_utf8_lossy(&o.stdout);
    assert_eq!(o.status.code(), Some(1), "{said}{}", stderr(&o));
    assert!(said.contains("then[1]: a: not within 2s") && said.contains("FailedScheduling"), "{said}");
}

/// Ends the cluster whatever the test comes to: its state is about to be deleted.
struct Down<'a>(&'a str, &'a Path);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = podlab(&["down", "--name", self.0], self.1);
    }
}

#[test]
fn a_state_directory_may_be_deeper_than_a_socket_address_is_long() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let up = podlab(&["up", "--name", "deep"], &deep);
    let _down = Down("deep", &deep);
    assert_eq!(up.status.code(), Some(0), "{}", stderr(&up));
    let stop = podlab(&["node", "kill", "node-1", "--name", "deep"], &deep);
    assert_eq!(stop.status.code(), Some(0), "{}", stderr(&stop));
}

#[test]
fn a_cluster_that_cannot_boot_says_why_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // A file where the node's own directory must be mounted.
    std::fs::write(dir.path().join("image-cache"), "").unwrap();
    let up = podlab(&["up", "--name", "broken"], dir.path());
    let _down = Down("broken", dir.path());
    assert_eq!(up.status.code(), Some(2));
    assert!(stderr(&up).contains("node-1 of cluster \"broken\" has ended: node-1 init:"), "{}", stderr(&up));
}

#[test]
fn a_cluster_comes_up_refuses_a_second_of_its_name_and_goes_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let up = podlab(&["up", "--name", "cli-test"], dir.path());
    let _down = Down("cli-test", dir.path());
    assert_eq!(up.status.code(), Some(0), "{}", stderr(&up));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(dir.path().join("podlab.kubeconfig")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let again = podlab(&["up", "--name", "cli-test"], dir.path());
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("already up"), "{}", stderr(&again));
    let ps = podlab(&["ps", "-o", "json"], dir.path());
    assert!(String::from_utf8_lossy(&ps.stdout).contains("\"live\": true"));
    let inside = podlab(&["enter", "--name", "cli-test", "--", "hostname"], dir.path());
    assert_eq!(String::from_utf8_lossy(&inside.stdout).trim(), "node-1", "{}", stderr(&inside));
    let archive = dir.path().join("i.tar");
    podlab_testimage::Image::testimage().write_archive(&archive, "docker.io/library/mine:1").unwrap();
    let load = podlab(&["image", "load", "--name", "cli-test", "i.tar"], dir.path());
    assert!(String::from_utf8_lossy(&load.stdout).contains("mine:1"), "{}", stderr(&load));
    let push = podlab(&["image", "push", "--name", "cli-test", "i.tar", "private.registry.test/mine:1"], dir.path());
    assert_eq!(push.status.code(), Some(0), "{}", stderr(&push));
    assert_eq!(podlab(&["down", "--name", "cli-test"], dir.path()).status.code(), Some(0));
    assert!(!dir.path().join("cli-test").exists());
}

/// Output of a verb whose readers have gone before it began: both ends it prints to are pipes nobody reads.
fn podlab_unheard(args: &[&str], state: &Path) -> Option<i32> {
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_podlab"));
    command.args(args).env("PODLAB_STATE", state).current_dir(state).stdout(gone()).stderr(gone());
    command.status().unwrap().code()
}

#[test]
fn a_reader_that_has_gone_changes_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("scenarios")).unwrap();
    let scenario = ["new", "probes/unheard"];
    for (args, code) in [
        (&["ps"][..], 0),
        (&["ps", "-o", "json"], 0),
        (&["schema"], 0),
        (&["gc"], 0),
        (&["--help"], 0),
        (&["logs", "plane"], 2),
        (&["no-such-verb"], 2),
        (&scenario, 0),
        (&["explain", "probes/unheard"], 0),
        (&["lint"], 0),
    ] {
        assert_eq!(podlab_unheard(args, dir.path()), Some(code), "{args:?}");
    }
}

#[test]
fn each_kind_of_leak_is_seen_where_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let scenarios = dir.path().join("s/leaks");
    std::fs::create_dir_all(&scenarios).unwrap();
    let kinds = ["ips", "netns", "sandboxes", "links", "cgroups", "mounts"];
    for kind in kinds {
        let text = format!(
            "apiVersion: podlab/v1
kind: Scenario
intent: A Pod that runs holds no {kind}, which is not so.
when:
- apply: {{yaml: '{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, image: \"registry.test/testimage:1\", command: [serve]}}], volumes: [{{name: m, emptyDir: {{medium: Memory}}}}]}}}}'}}
- eventually: {{match: {{pod: a, condition: Ready}}, within: 60s}}
then:
- leakFree: [{kind}]
"
        );
        std::fs::write(scenarios.join(format!("{kind}.yaml")), text).unwrap();
    }
    let o = podlab(&["e2e", "--scenarios", "s", "--out", "out", "-j", "3"], dir.path());
    let said = String::from_utf8_lossy(&o.stdout);
    assert_eq!(o.status.code(), Some(1), "{said}{}", stderr(&o));
    assert_eq!(said.matches("then[1]: left behind: node-1: ").count(), kinds.len(), "{said}");
}

#[test]
fn a_failed_trial_keeps_its_cluster_until_somebody_has_looked_at_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("s/x")).unwrap();
    let text = "apiVersion: podlab/v1
kind: Scenario
intent: A node has no name, which is not so.
then:
- expect: {that: 'size(podNames) == 1', within: 1s}
";
    std::fs::write(dir.path().join("s/x/fails.yaml"), text).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_podlab"))
        .args(["e2e", "--scenarios", "s", "--out", "out", "--pause"])
        .env("PODLAB_STATE", dir.path())
        .current_dir(dir.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let file = dir.path().join("out/x/fails/PAUSED");
    let deadline = podlab_clock::Clock::real().now().after(std::time::Duration::from_secs(120));
    let told = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.contains("--name ") {
            break text;
        }
        assert!(podlab_clock::Clock::real().now() < deadline && run.try_wait().unwrap().is_none(), "it never paused");
        std::thread::yield_now();
    };
    assert!(told.contains("then[1]: ") && told.contains("it compares 0 == 1"), "{told}");
    let name = told.split("--name ").nth(1).unwrap().split(' ').next().unwrap();
    let entered = podlab(&["enter", "--name", name, "--", "hostname"], dir.path());
    assert_eq!(String::from_utf8_lossy(&entered.stdout), "node-1\n", "{}", stderr(&entered));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
}
